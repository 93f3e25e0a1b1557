// How gather_elements and scatter_elements_add see their tensors: an index with an entry
// for each element. No torch.
#pragma once

#include <cstdint>

namespace torch_ops {

// One position of `sizes` is an element of the index and of the values (gather's output, scatter's
// input). It belongs to the table's element at the same coordinates, except on the axis, where the
// entry gives the coordinate. Axes of size 1 are left out, and neighbours joined if one stride
// walks them in each tensor. Strides count elements.
struct ElementLayout {
  static constexpr int kMaxRank = 16;

  int rank;
  int axis;  // which of them the index picks from; -1 if the index has size 1 there
  int64_t sizes[kMaxRank];
  int64_t table_strides[kMaxRank];  // 0 at the axis
  int64_t index_strides[kMaxRank];
  int64_t value_strides[kMaxRank];
  int64_t axis_size;  // of the table
  int64_t axis_stride;
  int64_t count;  // the product of sizes

  // Are there at most 2^31 places from the first to the last one, in each of the tensors?
  bool fits_32_bits() const {
    int64_t table = (axis_size - 1) * axis_stride, index = 0, values = 0;
    for (int d = 0; d < rank; ++d) {
      table += (sizes[d] - 1) * table_strides[d];
      index += (sizes[d] - 1) * index_strides[d];
      values += (sizes[d] - 1) * value_strides[d];
    }
    return table <= INT32_MAX && index <= INT32_MAX && values <= INT32_MAX;
  }

  // Are the elements in row-major order without gaps?
  static bool is_dense(const int64_t* strides, const int64_t* sizes, int rank) {
    int64_t expected = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (strides[d] != expected) return false;
      expected *= sizes[d];
    }
    return true;
  }
};

// Where a part of a layout begins.
struct ElementOffsets {
  int64_t position;  // counted over all elements
  int64_t table;
  int64_t index;
  int64_t values;
};

// Calls use(part, offsets) for parts of at most `most` elements, in order, so that 32 bits number
// the elements of a part.
template <class Use>
void for_each_part(const ElementLayout& layout, int64_t most, Use&& use,
                   ElementOffsets offsets = {}, int dim = 0) {
  if (layout.count <= most) return use(layout, offsets);
  const int64_t slice = layout.count / layout.sizes[dim];  // elements, the axes before have size 1
  const int64_t step = slice < most ? most / slice : 1;
  for (int64_t begin = 0; begin < layout.sizes[dim]; begin += step) {
    ElementLayout part = layout;
    part.sizes[dim] = step < layout.sizes[dim] - begin ? step : layout.sizes[dim] - begin;
    part.count = slice * part.sizes[dim];
    for_each_part(
        part, most, use,
        {offsets.position + begin * slice, offsets.table + begin * layout.table_strides[dim],
         offsets.index + begin * layout.index_strides[dim],
         offsets.values + begin * layout.value_strides[dim]},
        dim + 1);
  }
}

}  // namespace torch_ops
