// Who computes a call on host pointers, by src/c_api/gpu/host_choice.h: no GPU is needed to see it.
#include "c_api/gpu/host_choice.h"

#include <cstdio>

using namespace torch_ops;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (!holds) std::printf("not so: %s\n", what);
  failures += !holds;
}

RowCall gather(int64_t batch, int64_t axis_size, int64_t entries, int64_t inner) {
  return {nullptr, nullptr, nullptr, batch, axis_size, entries, inner, TORCH_OPS_FLOAT32, 4, 4};
}

}  // namespace

int main() {
  int questions = 0;
  const auto pinned = [&](const void*) { return ++questions > 0; };
  const auto pageable = [&](const void*) { return ++questions < 0; };
  constexpr int64_t kMi = 1 << 20;

  expect(!gather_on_device(gather(1, kMi, 100, 1), pinned), "a small call is the CPU's");
  expect(questions == 0, "nobody asks what memory a small call has");

  const RowCall sparse = gather(2, 128 * kMi, kMi, 1);
  expect(is_sparse(sparse), "2 x 1 Mi of 2 x 128 Mi touch an eighth of the lines");
  expect(gather_on_device(sparse, pinned), "a pinned source is read in place");
  expect(!gather_on_device(sparse, pageable), "from a pageable one the CPU picks");

  const RowCall dense = gather(2, 128 * kMi, 128 * kMi, 1);
  expect(!is_sparse(dense), "as many entries as elements");
  expect(gather_on_device(dense, pinned) && gather_on_device(dense, pageable), "dense: streamed");

  // Of rows of 64 bytes each entry touches one line, of 68 two.
  expect(is_sparse(gather(1, 4 * kMi, kMi, 16)), "a quarter of the rows, of one line each");
  expect(!is_sparse(gather(1, 4 * kMi, kMi, 17)), "of two lines");
  const int64_t large = int64_t{1} << 40;
  expect(is_sparse(gather(large, 64, 1, 1)), "no overflow");

  expect(stream_on_device(64 * kMi, pinned, &dense, &dense), "all pinned");
  expect(!stream_on_device(64 * kMi, pageable, &dense, &dense), "pageable");
  expect(!stream_on_device(1000, pinned, &dense), "small");
  return failures;
}
