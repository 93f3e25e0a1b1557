// The two launchers of an elementwise op in the kernel library, in these forms:
//
//   void sigmoid(on, walk, T* output, const T* input, parameters...)
//   void sigmoid_backward(on, walk, T* grad_input, const T* grad_output, const T* saved,
//                         parameters...)
//
// T is float, double, Float16 or BFloat16. Nothing is checked; arrays may be empty, and the output
// may be an input. What is saved is the output of the forward pass or its input. Three lines make
// them:
//
//   TORCH_OPS_DECLARE_LAUNCHERS(sigmoid)                                     in sigmoid_launch.h
//   TORCH_OPS_DEFINE_LAUNCHERS(OnCpu, sigmoid, CpuSigmoid<T>, SigmoidBackward)   sigmoid_cpu.cpp
//   TORCH_OPS_DEFINE_LAUNCHERS(OnCuda, sigmoid, Sigmoid, SigmoidBackward)       sigmoid_cuda.cu
//
// The last two arguments are the formulas, which are constructed from the parameters. They are
// followed by the parameters' types, if an op has any: ..., double). No torch.
#pragma once

#include "common/elementwise/strided_walk.h"
#include "common/host/host_program.h"

#define TORCH_OPS_DECLARE_LAUNCHERS(name)      \
  namespace torch_ops::kernels {               \
  TORCH_OPS_DECLARE_LAUNCHERS_ON(OnCpu, name)  \
  TORCH_OPS_DECLARE_LAUNCHERS_ON(OnCuda, name) \
  }

#define TORCH_OPS_DECLARE_LAUNCHERS_ON(On, name)                                                \
  template <class T, class... Parameters>                                                       \
  TORCH_OPS_KERNELS_API void name(On on, const StridedWalk<2>& walk, T* output, const T* input, \
                                  Parameters... parameters);                                    \
  template <class T, class... Parameters>                                                       \
  TORCH_OPS_KERNELS_API void name##_backward(On on, const StridedWalk<3>& walk, T* grad_input,  \
                                             const T* grad_output, const T* saved,              \
                                             Parameters... parameters);

// Needs map_on of elementwise_cpu.h or elementwise_cuda.cuh.
#define TORCH_OPS_DEFINE_LAUNCHERS(On, name, Forward, Backward, ...)                           \
  namespace torch_ops::kernels {                                                               \
  template <class T, class... Parameters>                                                      \
  void name(On on, const StridedWalk<2>& walk, T* output, const T* input,                      \
            Parameters... parameters) {                                                        \
    map_on(on, Forward(parameters...), walk, output, input);                                   \
  }                                                                                            \
  template <class T, class... Parameters>                                                      \
  void name##_backward(On on, const StridedWalk<3>& walk, T* grad_input, const T* grad_output, \
                       const T* saved, Parameters... parameters) {                             \
    map_on(on, Backward(parameters...), walk, grad_input, grad_output, saved);                 \
  }                                                                                            \
  TORCH_OPS_INSTANTIATE_LAUNCHERS(On, name, float __VA_OPT__(, ) __VA_ARGS__)                  \
  TORCH_OPS_INSTANTIATE_LAUNCHERS(On, name, double __VA_OPT__(, ) __VA_ARGS__)                 \
  TORCH_OPS_INSTANTIATE_LAUNCHERS(On, name, Float16 __VA_OPT__(, ) __VA_ARGS__)                \
  TORCH_OPS_INSTANTIATE_LAUNCHERS(On, name, BFloat16 __VA_OPT__(, ) __VA_ARGS__)               \
  }

#define TORCH_OPS_INSTANTIATE_LAUNCHERS(On, name, T, ...)                                 \
  template void name(On, const StridedWalk<2>&, T*, const T* __VA_OPT__(, ) __VA_ARGS__); \
  template void name##_backward(On, const StridedWalk<3>&, T*, const T*,                  \
                                const T* __VA_OPT__(, ) __VA_ARGS__);
