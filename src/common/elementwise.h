// The CPU loop of an elementwise op: output[i] = op(inputs[i]...) for i in [begin, end). A plain
// loop over flat arrays, which the compiler vectorises.
#pragma once

#include <cstdint>

namespace torch_ops {

template <class Op, class T, class... Inputs>
void map_range(Op op, int64_t begin, int64_t end, T* output, const Inputs*... inputs) {
  for (int64_t i = begin; i < end; ++i) output[i] = op(inputs[i]...);
}

}  // namespace torch_ops
