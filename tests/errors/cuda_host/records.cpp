// One record of bad index entries, kernels' side and host's: the threads of this program record
// errors as those of a kernel do, and another takes them.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "common/indexing/index_error.cuh"
#include "torch_cuda/error_record.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::printf("line %d: %s does not hold\n", __LINE__, #condition); \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

using namespace torch_ops;

namespace {

struct Device {
  IndexErrorRecord memory{};
  IndexErrorSlot slot{0, 0, &memory};
  ErrorRecord record{&slot, &memory};

  // What a call made now hands to its kernels.
  IndexErrorSite launch(int64_t call) const {
    IndexErrorSite site{};
    site.slot = record.slot();
    site.raised = record.raised();
    site.axis_size = call;
    return site;
  }
};

void test_calls_in_turn() {
  Device device;
  CHECK(!device.record.pending());
  const IndexErrorSite first = device.launch(1), beside = device.launch(2);
  record_bad_entry(first, 10, -1);
  record_bad_entry(first, 11, -2);
  record_bad_entry(beside, 12, -3);
  CHECK(device.record.pending());
  IndexErrorRecord taken = device.record.take();
  CHECK(taken.site.axis_size == 1 && taken.row == 10 && taken.value == -1);
  CHECK(!device.record.pending());

  // Kernels of calls before the error was taken still run: no call that follows is to be blamed.
  const IndexErrorSite retry = device.launch(3);
  record_bad_entry(first, 13, -4);
  record_bad_entry(beside, 14, -5);
  CHECK(!device.record.pending());

  // Nor do they take the place of an error that follows.
  record_bad_entry(retry, 15, -6);
  record_bad_entry(first, 16, -7);
  CHECK(device.record.pending());
  taken = device.record.take();
  CHECK(taken.site.axis_size == 3 && taken.row == 15 && taken.value == -6);
  CHECK(!device.record.pending());
}

// A graph's launches keep the site that they were captured with; the host sets `claimed` back.
void test_replays() {
  Device device;
  const IndexErrorSite captured = device.launch(1);
  for (int replay = 0; replay < 3; ++replay) {
    record_bad_entry(captured, replay, -1);
    CHECK(device.record.pending());
    CHECK(device.record.take().row == replay);
    device.slot.claimed = 0;
    CHECK(!device.record.pending());
  }
}

// No record is mixed of two, none is named twice, and none comes of a call made before the error
// that was taken last.
void test_threads() {
  constexpr int kThreads = 4;
  constexpr int64_t kCalls = 20'000;
  Device device;
  std::atomic<int64_t> calls{0};
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int64_t call; (call = ++calls) <= kCalls;) {
        const IndexErrorSite site = device.launch(call);
        for (int64_t i = 0; i < 3; ++i) record_bad_entry(site, call, -call);
      }
      --running;
    });
  }
  std::set<int64_t> named;
  uint32_t last = 0;
  for (bool more = true; more;) {
    more = running > 0;
    if (!device.record.pending()) continue;
    const IndexErrorRecord taken = device.record.take();
    CHECK(taken.site.axis_size == taken.row && taken.value == -taken.row);
    CHECK(named.insert(taken.row).second);
    CHECK(named.size() == 1 || taken.site.raised == last);
    last = device.record.raised();
  }
  for (auto& thread : threads) thread.join();
  CHECK(!device.record.pending());
  CHECK(!named.empty());
}

}  // namespace

int main() {
  test_calls_in_turn();
  test_replays();
  test_threads();
  std::puts("all checks passed");
}
