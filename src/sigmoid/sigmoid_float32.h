// sigmoid of float32 on the CPU, off by less than one ulp: branch-free, so that a loop that calls
// it vectorises. The bound holds with and without fused multiplications and additions. No torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/host/float16.h"
#include "sigmoid/exp.h"
#include "sigmoid/sigmoid_kernels.h"

namespace torch_ops {

// Over all floats its largest error is 0.89 ulp, and 0.88 with fused operations.
//
// With a = |x|, exp(a) = 2^k exp(r) as in ExpParts (vector_math.h), and w = 2^(1 - k),
//
//   sigmoid(-a) = 1 / (1 + exp(a)) = w / d, where d = w + 2 exp(r) = w + 2 + 2r + m,
//
// and sigmoid(a) = 1 - sigmoid(-a). Rounding d to a float, and 1 / d, would cost half an ulp each.
// So d is kept as b, its upper bits, and `rest`, and a rough inverse h is corrected by the
// remainder that it leaves:
//
//   1 / d = h + (1 - h b - h rest) / d
//
// As b and h have 12 bits each, 1 - h b is exact. The correction is at most about a tenth of h, so
// its own errors are small; only the last sum is rounded at full size.
struct SigmoidFloat32 {
  TORCH_OPS_HOST_DEVICE float operator()(float x) const {
    constexpr uint32_t kMagnitude = 0x7fffffff;
    constexpr uint32_t kUpperBits = 0xfffff000;  // leaves 12 of the 24 bits of a float
    constexpr float kMost = -MathFormat<float>::kLeast;
    float a = bit_cast<float>(bit_cast<uint32_t>(x) & kMagnitude);
    a = a > kMost ? kMost : a;

    // As there, except for -k: a sum with kRound is rounded to an integer; its lowest bits are
    // 191 - k. Those are the exponent bits of 2^(64 - k); 2^(1 - k) itself may be denormal.
    constexpr float kRound = 0x1.8p23f + 191;
    const float rounded = a * -1.44269504088896340736f + kRound;
    const float minus_k = rounded - kRound;
    const float r = (a + minus_k * 0.693359375f) + minus_k * -2.121944400546905827679e-4f;
    const float w = bit_cast<float>(bit_cast<uint32_t>(rounded) << 23) * 0x1p-63f;

    // m = 2 (exp(r) - 1 - r), by the minimax polynomial, which is off by 2^-28 of exp(r) at most.
    // Its halves do not depend on each other, which shortens the chain of operations.
    const float square = r * r;
    const float lower = 0x1.fffffcp-1f + 0x1.555492p-2f * r;
    const float upper = (0x1.5558f2p-4f + 0x1.1239d6p-6f * r) + square * 0x1.6a244ap-9f;
    const float m = square * (lower + square * upper);

    // b does without m, which is ready last. `rest` takes the part of w that 2 + w rounds away.
    const float c = 2 + w;
    const float body = c + (r + r);
    const float b = bit_cast<float>(bit_cast<uint32_t>(body) & kUpperBits);
    const float rest = (((c - b) + (r + r)) + (w - (c - 2))) + m;

    // The bits of a float are nearly linear in its logarithm, so this difference has nearly those
    // of 1 / b. The constant was found by trials; its 12 lower bits are 0, as those of h must be.
    const float h = bit_cast<float>(0x7ee60000 - bit_cast<uint32_t>(b));
    const float inverse = h + ((1 - h * b) - h * rest) / (body + m);
    const float tail = w * inverse;
    return x < 0 ? tail : 1 - tail;
  }
};

// The op for values of type T on the CPU. A result that is rounded to 16 bits need not be right to
// the last bit of float32.
template <class T>
using CpuSigmoid = std::conditional_t<std::is_same_v<T, float>, SigmoidFloat32, Sigmoid>;

}  // namespace torch_ops
