// Steps that the kernel library leaves to its callers: memory for a part of a call, and small steps
// after it, element by element.
#pragma once

#include <type_traits>

#include "common/cuda/scratch.h"
#include "common/host/float16.h"
#include "common/host/parallel.h"

namespace torch_ops {

// Memory for the time of a call, on the computing device.
template <class On, class T>
class Room {
 public:
  explicit Room(int64_t size) : memory_(kOnCpu ? size : size * static_cast<int64_t>(sizeof(T))) {}
  T* get() const { return static_cast<T*>(static_cast<void*>(memory_.get())); }

 private:
  static constexpr bool kOnCpu = std::is_same_v<On, OnCpu>;
  std::conditional_t<kOnCpu, Scratch<T>, DeviceScratch> memory_;
};

// Steps: each writes element i of a result.

template <class T>
struct Fill {
  T value;
  T* to;
  TORCH_OPS_HOST_DEVICE void operator()(int64_t i) const { to[i] = value; }
};

template <class Sum, class Value>
struct RoundSums {
  const Sum* sums;
  Value* result;
  TORCH_OPS_HOST_DEVICE void operator()(int64_t i) const {
    result[i] = static_cast<Value>(sums[i]);
  }
};

template <class Sum, class Value>
struct AddSums {
  const Sum* sums;
  Value* result;
  TORCH_OPS_HOST_DEVICE void operator()(int64_t i) const {
    result[i] = static_cast<Value>(static_cast<Sum>(result[i]) + sums[i]);
  }
};

// Means from sums and from the counts of rows of `inner` sums; integers are rounded down.
template <class Sum, class Value>
struct DivideSums {
  const Sum* sums;
  const unsigned long long* counts;
  int64_t inner;
  Value* result;
  TORCH_OPS_HOST_DEVICE void operator()(int64_t i) const {
    const auto all = static_cast<int64_t>(counts[i / inner]);
    const int64_t count = all > 0 ? all : 1;
    if constexpr (!std::is_integral_v<Sum>) {
      result[i] = static_cast<Value>(sums[i] / static_cast<Sum>(count));
    } else if constexpr (std::is_signed_v<Sum>) {
      const auto sum = static_cast<int64_t>(sums[i]);
      result[i] = static_cast<Value>(sum / count - (sum % count < 0));
    } else {
      result[i] = static_cast<Value>(sums[i] / static_cast<uint64_t>(count));
    }
  }
};

// Takes a step for each i in [0, count).
template <class Step>
void for_each(OnCpu, const Step& step, int64_t count) {
  parallel_for(count, kElementsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) step(i);
  });
}
// gpu/steps.cu has the instances.
template <class Step>
void for_each(OnCuda, const Step& step, int64_t count);

// Copies within the device's memory.
void copy(OnCuda, void* to, const void* from, int64_t bytes);

constexpr int64_t kAligned = 16;  // where kernels for CUDA write results

// Calls write(to) for a result of `bytes`: in place, or if kernels could not write vectors to
// it, in memory whose contents are then copied there.
template <class On, class Write>
void write_aligned(On on, void* result, int64_t bytes, Write&& write) {
  if constexpr (std::is_same_v<On, OnCuda>) {
    if (reinterpret_cast<uintptr_t>(result) % kAligned != 0) {
      const Room<On, char> room(bytes);
      write(room.get());
      return copy(on, result, room.get(), bytes);
    }
  }
  write(result);
}

}  // namespace torch_ops
