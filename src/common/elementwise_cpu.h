// Runs an elementwise op over at::parallel_for's threads.
#pragma once

#include "common/elementwise.h"
#include "common/parallel.h"

namespace torch_ops {

template <class Op, class T, class... Inputs>
void map_cpu(Op op, int64_t n, T* output, const Inputs*... inputs) {
  at::parallel_for(0, n, kElementsPerTask, [=](int64_t begin, int64_t end) {
    map_range(op, begin, end, output, inputs...);
  });
}

}  // namespace torch_ops
