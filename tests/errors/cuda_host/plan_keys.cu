// Which keys of sorted entries (scatter/cuda/sorted/sorted.cuh) are rows. No GPU is needed: this is
// about numbers alone.
#include <cstdio>
#include <cstdlib>

#include "scatter/cuda/sorted/sorted.cuh"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::printf("line %d: %s does not hold\n", __LINE__, #condition); \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

int main() {
  for (int64_t batch = 1; batch < 4; ++batch) {
    for (int64_t outer = 1; outer < 4; ++outer) {
      for (int64_t rows = 1; rows < 70; rows = 2 * rows + 1) {
        const torch_ops::sorted::Shape<uint32_t> shape(
            torch_ops::RowLayout::contiguous(batch, outer, rows, /*entries=*/5, /*inner=*/2));
        const int64_t last_row = (batch - 1) * outer * rows + rows - 1;  // of a first slice
        CHECK(last_row < shape.no_row);
        // A key is that of the first slice; the others are `rows` further each.
        const int64_t last_slice = (outer - 1) * rows;
        CHECK(shape.no_row - 1 + last_slice < shape.all_rows());
        // A plan counts over [batch, rows]: where its keys serve as they are, the number after its
        // last row is none in any slice.
        if (batch == 1 || outer == 1) CHECK(batch * rows >= shape.no_row);
        CHECK(uint64_t{shape.no_row} >> shape.key_bits() == 0);
      }
    }
  }
  std::puts("all checks passed");
}
