// Two parts of calls on a device that need none: the room of a workspace, and which entry of an
// index a kernel's record tells of.
#include <cstdio>

#include "c_api/frame/arguments.h"
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

}  // namespace

int main() {
  rooms();
  entries();
  return failures;
}
