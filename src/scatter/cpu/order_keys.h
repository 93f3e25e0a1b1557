// Numbers of any type as signed integers of their size that have the same order, so that the
// largest or smallest of them is found by one loop for each size. No torch.
#pragma once

#include <cstdint>
#include <limits>

#include "common/host/host_device.h"

namespace torch_ops {

enum class NumberKind { kSigned, kUnsigned, kFloat };

// `Key` is a signed integer. The best number has the largest key: that is the largest number or,
// with `largest` false, the smallest; NaN is better than all others.
template <class Key>
class KeyOrder {
 public:
  // No number at all. It is also the key of a number, the worst integer, but of no float.
  static constexpr Key kNone = std::numeric_limits<Key>::min();

  // `infinity`: the bits of a float's.
  KeyOrder(NumberKind kind, bool largest, Key infinity)
      : magnitude_(kind == NumberKind::kFloat ? kMost : Key()),
        flip_(static_cast<Key>((kind == NumberKind::kUnsigned ? kNone : Key()) ^
                               (largest ? Key() : Key(-1)))),
        infinity_(kind == NumberKind::kFloat ? infinity : kMost) {}

  TORCH_OPS_HOST_DEVICE Key key(Key bits) const {
    return (bits & kMost) > infinity_ ? kMost : static_cast<Key>(turned(bits) ^ flip_);
  }

  // The number that has this key.
  TORCH_OPS_HOST_DEVICE Key bits(Key key) const { return turned(static_cast<Key>(key ^ flip_)); }

 private:
  static constexpr Key kMost = std::numeric_limits<Key>::max();

  // Negative floats grow with their magnitude: its bits are inverted, which is its own inverse.
  TORCH_OPS_HOST_DEVICE Key turned(Key bits) const {
    return static_cast<Key>(bits ^ ((bits >> std::numeric_limits<Key>::digits) & magnitude_));
  }

  Key magnitude_;  // the bits to invert
  Key flip_;
  Key infinity_;
};

}  // namespace torch_ops
