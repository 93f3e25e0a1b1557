// How a generated reduction walks tensors; src/jit/reduction.cpp fills the plan.
namespace torch_ops {

// An axis: its size, and the bytes that each operand steps along it.
template <int operands>
struct Axis {
  int64_t size;
  int64_t strides[operands];
};

template <bool is_flat>
struct Flat {
  static constexpr bool value = is_flat;
};

// Moves pointers to the element of a row-major index; the innermost axis stands first.
template <int axes, int operands>
TORCH_OPS_FUNCTION void move(const Axis<operands>* axis, int64_t index, char** at) {
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
  for (int d = 0; d < axes; ++d) {
    int64_t place = index;
    if (d + 1 < axes) {
      const int64_t size = axis[d].size;
      // 64-bit division is far slower.
      const bool small = ((index | size) >> 32) == 0;
      index = small ? int64_t(uint32_t(index) / uint32_t(size)) : index / size;
      place -= index * size;
    }
    for (int k = 0; k < operands; ++k) at[k] += place * axis[d].strides[k];
  }
}

}  // namespace torch_ops
