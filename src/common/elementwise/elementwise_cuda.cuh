// Launches an elementwise op: in whole vectors if every array is in the order of the walk and
// aligned, otherwise by each array's strides.
#pragma once

#include "common/cuda/launch.cuh"
#include "common/elementwise/elementwise.cuh"

namespace torch_ops {

template <class T, int kArrays>
DeviceWalk<kArrays> make_device_walk(const StridedWalk<kArrays>& walk,
                                     const T* const (&arrays)[kArrays]) {
  constexpr int64_t N = kVectorSize<T>;
  DeviceWalk<kArrays> result{walk, {}, walk.numel < (int64_t{1} << 31), true, {}};
  for (int a = 0; a < kArrays; ++a) {
    int64_t last = 0;
    for (int axis = 0; axis < walk.axes; ++axis)
      last += (walk.size[axis] - 1) * walk.stride[a][axis];
    result.small = result.small && last < (int64_t{1} << 31);
  }
  for (int axis = 0; result.small && axis < walk.axes; ++axis) {
    result.by_size[axis] = FastDivisor(static_cast<uint32_t>(walk.size[axis]));
  }
  result.in_rows = walk.axes > 0 && walk.size[0] % N == 0;
  for (int a = 0; a < kArrays; ++a) {
    bool wide = is_aligned(arrays[a], kVectorBytes) && walk.axes > 0 && walk.stride[a][0] == 1;
    for (int axis = 1; axis < walk.axes; ++axis) wide = wide && walk.stride[a][axis] % N == 0;
    result.wide[a] = wide;
  }
  return result;
}

// A mask is what kBits says.
template <Bits kBits = Bits::kNone, class Op, class T, class... Inputs>
void map_cuda(Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, uint8_t* mask, T* output,
              const Inputs*... inputs) {
  if (walk.numel == 0) return;
  const Arrays<T, sizeof...(Inputs)> arrays{output, {inputs...}};
  // A thread per vector, or for a few elements, and no loop: the largest grid covers 2^40 elements.
  const unsigned grid = grid_x(walk.numel, int64_t{kMapThreads} * kVectorSize<T>);
  const bool aligned =
      is_aligned(output, kVectorBytes) && (is_aligned(inputs, kVectorBytes) && ...);
  if (aligned && walk.is_flat()) {
    TORCH_OPS_LAUNCH(map_kernel<kBits>, grid, kMapThreads, 0, op, FlatWalk{walk.numel}, arrays,
                     mask);
    return;
  }
  const auto device_walk = make_device_walk<T>(walk, {output, inputs...});
  if (device_walk.in_rows) {
    TORCH_OPS_LAUNCH(map_kernel<kBits>, grid, kMapThreads, 0, op, device_walk, arrays, mask);
  } else {
    TORCH_OPS_LAUNCH(map_singly_kernel<kBits>, grid_x(walk.numel, kMapThreads * kSingles),
                     kMapThreads, 0, op, device_walk, arrays, mask);
  }
}

// The same for a call of the kernel library, without a mask.
template <class Op, class T, class... Inputs>
void map_on(const OnCuda& on, Op op, const StridedWalk<1 + sizeof...(Inputs)>& walk, T* output,
            const Inputs*... inputs) {
  const HostScope scope(on.program);
  map_cuda(op, walk, nullptr, output, inputs...);
}

}  // namespace torch_ops
