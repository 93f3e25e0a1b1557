// What an index entry that is not a row of its axis means: the modes of the gather family. No
// torch.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host/host_device.h"

namespace torch_ops {

enum class IndexMode : int32_t {
  kRaise,      // an error
  kWrap,       // the entry modulo the axis's size
  kClip,       // the nearest row
  kFill,       // none: gathers give a fill value, scatters drop it. -1 is the last row, and so on
  kUnchecked,  // there is no such entry: the caller promises this
  kFromEnd,    // as kRaise, but -1 is the last row, and so on: the mode of source[index]
};

constexpr int64_t kNoRow = -1;

// How the entries for one axis are read. Made on the host, so that a kernel that wraps does not
// divide: a 64-bit division is a call, which uses registers in code that never reaches it.
class IndexRule {
 public:
  IndexRule() = default;
  IndexRule(IndexMode mode, int64_t axis_size)
      : mode_(mode),
        axis_size_(axis_size),
        // floor(2^64 / axis_size), except for 1, where 2^64 does not fit, and 0.
        reciprocal_(axis_size > 1 ? UINT64_MAX / static_cast<uint64_t>(axis_size) +
                                        ((axis_size & (axis_size - 1)) == 0)
                                  : UINT64_MAX) {}

  TORCH_OPS_HOST_DEVICE IndexMode mode() const { return mode_; }
  TORCH_OPS_HOST_DEVICE int64_t axis_size() const { return axis_size_; }

  // Is an entry that names no row an error?
  TORCH_OPS_HOST_DEVICE bool raises() const {
    return mode_ == IndexMode::kRaise || mode_ == IndexMode::kFromEnd;
  }

  // May `resolve` give another row than the entry? If not, a kernel need not call it.
  TORCH_OPS_HOST_DEVICE bool rewrites() const {
    return mode_ != IndexMode::kRaise && mode_ != IndexMode::kUnchecked;
  }

  // The row that an entry names, in [0, axis_size), or kNoRow; with kUnchecked the entry itself,
  // and with kFromEnd, for one that names none, a number that is not a row either. With kWrap and
  // kClip the axis must not be empty.
  TORCH_OPS_HOST_DEVICE int64_t resolve(int64_t entry) const {
    const bool is_row = static_cast<uint64_t>(entry) < static_cast<uint64_t>(axis_size_);
    switch (mode_) {
      case IndexMode::kWrap:
        return wrap(entry);
      case IndexMode::kClip:
        return entry < 0 ? 0 : is_row ? entry : axis_size_ - 1;
      case IndexMode::kFromEnd:
        return entry < 0 ? entry + axis_size_ : entry;
      case IndexMode::kFill: {
        const int64_t row = entry < 0 ? entry + axis_size_ : entry;
        return static_cast<uint64_t>(row) < static_cast<uint64_t>(axis_size_) ? row : kNoRow;
      }
      case IndexMode::kUnchecked:
        return entry;
      default:
        return is_row ? entry : kNoRow;
    }
  }

 private:
  // The remainder with the divisor's sign. -1 - entry is not negative where entry is, and never
  // overflows.
  TORCH_OPS_HOST_DEVICE int64_t wrap(int64_t entry) const {
    // Nearly all entries are rows, or rows from the end: these need no quotient.
    const int64_t row = entry < 0 ? entry + axis_size_ : entry;
    if (static_cast<uint64_t>(row) < static_cast<uint64_t>(axis_size_)) return row;
    const auto size = static_cast<uint64_t>(axis_size_);
    const auto number = static_cast<uint64_t>(entry < 0 ? -1 - entry : entry);
    // The quotient, or one less: the reciprocal is too small by less than 1.
    uint64_t rest = number - high_half(number, reciprocal_) * size;
    if (rest >= size) rest -= size;
    return static_cast<int64_t>(entry < 0 ? size - 1 - rest : rest);
  }

  static TORCH_OPS_HOST_DEVICE uint64_t high_half(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
  }

  IndexMode mode_ = IndexMode::kRaise;
  int64_t axis_size_ = 0;
  uint64_t reciprocal_ = 0;
};

// One element's bytes, repeated: the fill for missing rows, in words of
// any size that divides 16.
struct FillPattern {
  static constexpr int kBytes = 16;
  alignas(kBytes) unsigned char bytes[kBytes] = {};

  FillPattern() = default;
  FillPattern(const void* element, int64_t element_bytes) {
    for (int64_t at = 0; at + element_bytes <= kBytes; at += element_bytes) {
      std::memcpy(bytes + at, element, element_bytes);
    }
  }

  template <class Word>
  TORCH_OPS_HOST_DEVICE Word word() const {
    static_assert(sizeof(Word) <= kBytes);
    return *reinterpret_cast<const Word*>(bytes);
  }
};

// What a gather does with its entries.
struct GatherPolicy {
  IndexRule rule;
  FillPattern fill;  // zeros unless the mode is kFill
};

// Calls use(row_of), where row_of(entry) is the row that an entry names, or no row of the axis: the
// entry itself unless the rule rewrites it. One uniform branch around a loop, since one in it would
// serialise its loads.
template <class Use>
TORCH_OPS_HOST_DEVICE void with_rule(const IndexRule& rule, Use&& use) {
  if (rule.rewrites()) {
    use([&](auto entry) { return rule.resolve(static_cast<int64_t>(entry)); });
  } else {
    use([](auto entry) { return entry; });
  }
}

}  // namespace torch_ops
