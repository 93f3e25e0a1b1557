// Parts of calls on a device that need none: the room of a workspace, which entry of an index a
// kernel's record tells of, and who computes a call on host pointers (src/c_api/gpu/host_choice.h).
#include <cstdio>

#include "c_api/frame/arguments.h"
#include "c_api/gpu/host_choice.h"
#include "c_api/own_program.h"

using namespace torch_ops;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (!holds) std::printf("not so: %s\n", what);
  failures += !holds;
}

void rooms() {
  alignas(16) char memory[100];
  expect(own::take_from_workspace(1) == nullptr, "without a workspace there is no room");
  expect(!own::give_to_workspace(memory), "nor does memory come back to it");
  {
    const own::WorkspaceScope scope({memory, sizeof(memory)});
    void* const first = own::take_from_workspace(20);
    expect(first == memory, "the first block is at the begin");
    expect(own::take_from_workspace(69) == nullptr, "69 bytes do not fit after 32");
    void* const second = own::take_from_workspace(68);
    expect(second == memory + 32, "68 do, at a multiple of 16");
    expect(own::take_from_workspace(1) == nullptr, "then it is full");
    expect(!own::give_to_workspace(memory + 100), "what is after it is not its own");
    expect(own::give_to_workspace(first), "a block comes back");
    expect(own::take_from_workspace(1) == nullptr, "its room waits for the other");
    expect(own::give_to_workspace(second), "which comes back too");
    expect(own::take_from_workspace(100) == memory, "and all is there again");
  }
  expect(own::take_from_workspace(1) == nullptr, "the workspace was the scope's");
  const own::WorkspaceScope scope({memory, 16});
  expect(own::take_from_workspace(16) == memory, "what was not given back is forgotten");
}

void entries() {
  const EntryKind raises{20, IndexMode::kRaise}, from_end{20, IndexMode::kFromEnd};
  const EntryKind point{0, IndexMode::kFromEnd, /*is_point=*/true};
  expect(raises.entry_of(-1, 20) == -1, "an entry is what it is");
  expect(from_end.entry_of(-1, 20) == -21, "-21 was recorded as row -1");
  expect(from_end.entry_of(25, 20) == 25, "rows after the last are entries");
  expect(from_end.entry_of(-25, 20) == -45, "-45 was recorded as row -25");
  expect(point.entry_of(-21, 20) == -21, "coordinates are recorded as they are");
}

RowCall gather(int64_t batch, int64_t axis_size, int64_t entries, int64_t inner) {
  return {nullptr, nullptr, nullptr, batch, axis_size, entries, inner, TORCH_OPS_FLOAT32, 4, 4};
}

void choices() {
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
}

}  // namespace

int main() {
  rooms();
  entries();
  choices();
  return failures;
}
