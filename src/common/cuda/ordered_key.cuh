// Values as unsigned numbers of the same order.
#pragma once

#include <cstdint>
#include <type_traits>

namespace torch_ops {

template <class Value>
using OrderedKey = std::conditional_t<(sizeof(Value) > 4), unsigned long long, unsigned int>;

// A number whose order is that of the values, or its reverse; NaN has the highest. Both zeros have
// one, unless they are told apart: then 0 is larger than -0.
template <class Value>
__device__ __forceinline__ OrderedKey<Value> ordered_key(Value value, bool largest,
                                                         bool signed_zeros = false) {
  using U = OrderedKey<Value>;
  constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  U key;
  if constexpr (std::is_integral_v<Value>) {
    using Wide = std::conditional_t<(sizeof(Value) > 4), long long, int>;
    key = static_cast<U>(static_cast<Wide>(value)) ^ kSign;
  } else if constexpr (sizeof(Value) == 8) {
    if (isnan(value)) return ~U(0);
    key = static_cast<U>(__double_as_longlong(signed_zeros ? value : value + 0.0));  // -0 + 0 is 0
    key = key & kSign ? ~key : key | kSign;
  } else {
    const float number = static_cast<float>(value);
    if (isnan(number)) return ~U(0);
    key = __float_as_uint(signed_zeros ? number : number + 0.0f);
    key = key & kSign ? ~key : key | kSign;
  }
  return largest ? key : ~key;
}

}  // namespace torch_ops
