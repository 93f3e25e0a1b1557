// The ops relu and leaky_relu, except for their masks, which are in relu_mask.cpp.
#pragma once

#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/relu.h>

#include "common/elementwise/elementwise_op.h"
#include "relu/relu_launch.h"

namespace torch_ops {

inline Slope slope_of() { return std::nullopt; }
inline Slope slope_of(double slope) { return slope; }

// Is the output positive where the input is? With a negative slope it is positive everywhere.
inline bool output_tells(Slope slope) { return slope.value_or(0) >= 0; }

// For the Autograd key: both, if the derivative is to keep a mask.
bool saves_mask(const at::Tensor& input, bool save_mask);
at::Tensor forward_with_mask(c10::DispatchKeySet keys, const at::Tensor& input, Slope slope);
at::Tensor& inplace_with_mask(c10::DispatchKeySet keys, at::Tensor& input, Slope slope);

// relu, which has no slope, and leaky_relu: the pack is empty or a double. Both are piecewise
// linear, so only grad_output has a second derivative.
template <class... SlopeArg>
struct Activation final : ElementwiseOp<Activation<SlopeArg...>, Types<SlopeArg...>, Types<bool>> {
  using Frame = ElementwiseOp<Activation, Types<SlopeArg...>, Types<bool>>;
  using Tensor = at::Tensor;

  static constexpr bool kHasSlope = sizeof...(SlopeArg) > 0;
  static constexpr const char* kSchema =
      kHasSlope ? "leaky_relu(Tensor input, float negative_slope=0.01, *, bool save_mask=True) -> "
                  "Tensor"
                : "relu(Tensor input, *, bool save_mask=True) -> Tensor";
  static constexpr const char* kInplaceSchema =
      kHasSlope
          ? "leaky_relu_(Tensor(a!) input, float negative_slope=0.01, *, bool save_mask=True) "
            "-> Tensor(a!)"
          : "relu_(Tensor(a!) input, *, bool save_mask=True) -> Tensor(a!)";
  static constexpr const char* kBackwardSchema =
      kHasSlope
          ? "leaky_relu_backward(Tensor grad_output, Tensor output, float negative_slope) -> Tensor"
          : "relu_backward(Tensor grad_output, Tensor output) -> Tensor";
  static constexpr const char* kNode = "Relu";
  static constexpr bool kSavesOutput = true;
  static constexpr bool kPiecewiseLinear = true;

  static bool saves_output(SlopeArg... slope) { return output_tells(slope_of(slope...)); }

  template <class On, class T>
  static void launch(const On& on, const StridedWalk<2>& walk, T* output, const T* input,
                     SlopeArg... slope) {
    kernels::relu(on, slope_of(slope...), walk, nullptr, output, input);
  }

  template <class On, class T>
  static void launch_backward(const On& on, const StridedWalk<3>& walk, T* grad_input,
                              const T* grad_output, const T* output, SlopeArg... slope) {
    kernels::relu_backward(on, slope_of(slope...), walk, grad_input, grad_output, output);
  }

  // Integers, sparse tensors and the like are torch's, and so are the errors for all others.
  static Tensor other(const Tensor& input, SlopeArg... slope) {
    if constexpr (kHasSlope) return at::leaky_relu(input, slope...);
    return at::relu(input);
  }
  static Tensor& other_(Tensor& input, SlopeArg... slope) {
    if constexpr (kHasSlope) return at::leaky_relu_(input, slope...);
    return at::relu_(input);
  }

  struct Forward : Frame::Forward {
    static Tensor derive(c10::DispatchKeySet keys, const Tensor& input, SlopeArg... slope,
                         bool save_mask) {
      if (saves_mask(input, save_mask)) return forward_with_mask(keys, input, slope_of(slope...));
      return Frame::Forward::derive(keys, input, slope..., save_mask);
    }
  };
  struct Inplace : Frame::Inplace {
    static Tensor& derive(c10::DispatchKeySet keys, Tensor& input, SlopeArg... slope,
                          bool save_mask) {
      if (saves_mask(input, save_mask)) return inplace_with_mask(keys, input, slope_of(slope...));
      return Frame::Inplace::derive(keys, input, slope..., save_mask);
    }
  };
};

}  // namespace torch_ops
