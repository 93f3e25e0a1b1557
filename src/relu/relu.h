// What the two files of the contract of relu and leaky_relu share.
#pragma once

#include "relu/relu_launch.h"

namespace torch_ops {

// Public ops come in two: relu, which has no slope, and leaky_relu. So the functions that are
// registered have a pack, `SlopeArg`, which is empty or a double.
template <class... SlopeArg>
constexpr const char* kOpName = sizeof...(SlopeArg) == 0 ? "relu" : "leaky_relu";
inline Slope slope_of() { return std::nullopt; }
inline Slope slope_of(double slope) { return slope; }

}  // namespace torch_ops
