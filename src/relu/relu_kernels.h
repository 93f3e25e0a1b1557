// The arithmetic of relu and leaky_relu and their derivatives, one value at a time; and the CPU's
// loops that write and read a mask. No torch.
//
// Either activation passes a value on where it `keeps` it, and gives off(value) elsewhere. The
// gradient likewise: grad_output where the value was kept, else off(grad_output).
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "common/bit_mask.h"
#include "common/elementwise.h"
#include "common/float16.h"

namespace torch_ops {

struct Relu {
  // NaN is not <= 0, so it stays NaN, and its gradient passes.
  template <class T>
  TORCH_OPS_HOST_DEVICE bool keeps(T x) const {
    return !at_most_zero(x);
  }

  template <class T>
  TORCH_OPS_HOST_DEVICE T off(T) const {
    return T(0);
  }

  // -0.0 becomes 0.0 on a GPU and stays on a CPU, as in torch.
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
#ifdef __CUDA_ARCH__
    return keeps(x) ? x : T(0);
#else
    return is_negative(x) ? T(0) : x;
#endif
  }
};

// Computes in float, where Relu only picks.
template <class Slope>
struct LeakyRelu : ComputesInFloat {
  Slope slope;

  explicit LeakyRelu(double slope) : slope(static_cast<Slope>(slope)) {}

  // NaN is not > 0: it is multiplied by the slope, and so is its gradient.
  template <class T>
  TORCH_OPS_HOST_DEVICE bool keeps(T x) const {
    return is_positive(x);
  }

  template <class T>
  TORCH_OPS_HOST_DEVICE T off(T x) const {
    return static_cast<T>(static_cast<Slope>(x) * slope);
  }

  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
    return keeps(x) ? x : off(x);
  }
};

// Calls use(activation) with LeakyRelu where there is a slope, else with Relu; for values of type
// T.
template <class T, class Use>
void with_activation(std::optional<double> slope, Use use) {
  if (slope) {
    use(LeakyRelu<ComputeType<T>>(*slope));
  } else {
    use(Relu());
  }
}

// The gradient from the output, or from any tensor that the activation keeps at the same places.
template <class Activation>
struct Backward : Activation {
  explicit Backward(Activation activation) : Activation(activation) {}

  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T grad_output, T output) const {
    return this->keeps(output) ? grad_output : this->off(grad_output);
  }
};

// The gradient from the mask.
template <class Activation>
struct BackwardByBit : Activation {
  explicit BackwardByBit(Activation activation) : Activation(activation) {}

  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(bool kept, T grad_output) const {
    return kept ? grad_output : this->off(grad_output);
  }
};

// ---- The CPU's loops over [begin, end) of a walk, which begins with a whole byte of the mask
// -----

template <class Activation>
struct Keeps {
  Activation activation;

  template <class T>
  TORCH_OPS_HOST_DEVICE uint8_t operator()(T x) const {
    return activation.keeps(x);
  }
};

// kept where the flag is set, else off: by bits, since GCC vectorises no choice between structs.
struct Pick {
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(uint8_t flag, T kept, T off) const {
    using Bits = BitsOf<T>;
    const Bits chosen = static_cast<Bits>(Bits{0} - flag);
    return bit_cast<T>(static_cast<Bits>((bit_cast<Bits>(kept) & chosen) |
                                         (bit_cast<Bits>(off) & static_cast<Bits>(~chosen))));
  }

  // off is 0.
  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(uint8_t flag, T kept) const {
    using Bits = BitsOf<T>;
    return bit_cast<T>(static_cast<Bits>(bit_cast<Bits>(kept) & (Bits{0} - flag)));
  }

 private:
  template <class T>
  using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
};

template <class Activation>
struct Off : Activation {
  explicit Off(Activation activation) : Activation(activation) {}

  template <class T>
  TORCH_OPS_HOST_DEVICE T operator()(T x) const {
    return this->off(x);
  }
};

// The activation of `input`, and the mask.
template <class Activation, class T>
void write_masked(Simd simd, Activation activation, const StridedWalk<2>& walk, int64_t begin,
                  int64_t end, T* output, const T* input, uint8_t* mask) {
  Piece<T> source, result;
  uint8_t flags[kPiece];
  for_each_block(begin, end, [&](int64_t first, int64_t n) {
    const T* x = source.read(walk, 1, input, first, n);
    map_range(simd, Keeps<Activation>{activation}, 0, n, flags, x);
    pack_flags(flags, n, mask + first / 8);
    map_range(simd, activation, 0, n, result.place(walk, 0, output, first, n), x);
    result.write(walk, 0, output, first, n);
  });
}

// The gradient by the mask.
template <class Activation, class T>
void read_masked(Simd simd, Activation activation, const StridedWalk<2>& walk, int64_t begin,
                 int64_t end, T* grad_input, const T* grad_output, const uint8_t* mask) {
  Piece<T> source, result;
  uint8_t flags[kPiece];
  [[maybe_unused]] T off[kPiece];
  for_each_block(begin, end, [&](int64_t first, int64_t n) {
    const T* grad = source.read(walk, 1, grad_output, first, n);
    T* to = result.place(walk, 0, grad_input, first, n);
    unpack_flags(mask + first / 8, n, flags);
    if constexpr (std::is_same_v<Activation, Relu>) {
      map_range(simd, Pick(), 0, n, to, flags, grad);
    } else {
      map_range(simd, Off<Activation>(activation), 0, n, off, grad);
      map_range(simd, Pick(), 0, n, to, flags, grad, off);
    }
    result.write(walk, 0, grad_input, first, n);
  });
}

}  // namespace torch_ops
