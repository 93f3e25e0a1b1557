// Runs an elementwise op over threads, in the available instruction set.
#pragma once

#include <cstdint>

#include "common/elementwise/elementwise.h"
#include "common/host/float16.h"
#include "common/host/host_program.h"
#include "common/host/parallel.h"

namespace torch_ops {

inline Simd cpu_simd() { return host_program().simd(); }

template <class Op, class T, class... Inputs>
void map_cpu(Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, T* output,
             const Inputs*... inputs) {
  const Simd simd = cpu_simd();
  parallel_for(walk.numel, kElementsPerTask, [&](int64_t begin, int64_t end) {
    map_walk(simd, op, walk, begin, end, output, inputs...);
  });
}

// The same for a call of the kernel library.
template <class Op, class T, class... Inputs>
void map_on(const OnCpu& on, Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, T* output,
            const Inputs*... inputs) {
  const HostScope scope(on.program);
  map_cpu(op, walk, output, inputs...);
}

}  // namespace torch_ops
