// Rows in the memory of other ranks, which is mapped into this process, in the kernel library:
// peers_cpu.cpp and peers_cuda.cu. Nothing is checked but the values of the index. No torch.
//
// Rank r has rows r * length to (r + 1) * length - 1 of a table, contiguous, at the address
// parts[r]. What is an address of another rank's memory here is one of this process.
#pragma once

#include <cstdint>

#include "common/host/float16.h"
#include "common/host/host_device.h"
#include "common/host/host_program.h"
#include "common/indexing/index_array.h"
#include "common/indexing/index_error.h"
#include "common/indexing/index_mode.h"
#include "common/layout/row_layout.h"
#include "scatter/scatter_launch.h"

namespace torch_ops {

// A gather from all parts. The layout is that of a gather from the whole table; its inner axis
// counts elements.
struct PeerGather {
  const int64_t* parts;  // in the memory of the call's device, as all arrays here
  int64_t ranks;
  int64_t length;
  int64_t row_bytes;
  IndexArray index;
  RowLayout layout;
  GatherPolicy policy;
  void* output;
};

// A round of sums, which go to the ranks that have the rows. Each rank has an inbox, with room for
// `capacity` rows of each other rank; inboxes[r] is its address. `rows` are numbers of rows in the
// whole table, distinct and in order; those of rank r begin at bounds[r]. This round is of those
// from `first` on. A rank's own rows stay in `values`.
//
// On CUDA a sum of 16-bit values is of float32. If it is one value, it is sent as such, in the
// first half of its place: that is what a link's time goes to. The row's number then has kNarrowRow
// added.
struct PeerSums {
  const int64_t* inboxes;
  int64_t ranks;
  int64_t rank;
  int64_t length;
  int64_t* rows;
  int64_t* bounds;  // [ranks + 1]
  char* values;     // [count, row_bytes]
  int64_t count;
  int64_t row_bytes;
  int64_t first;
  int64_t capacity;
  // In an inbox, in bytes. At its beginning are, for each sender, how many rows it has for this
  // rank in all rounds, and how many it has at most for any, or kHasError.
  int64_t rows_offset;    // int64 [ranks - 1, capacity], counted in the owner's part
  int64_t values_offset;  // [ranks - 1, capacity, row_bytes]

  // Where in a rank's inbox a sender's rows are.
  static TORCH_OPS_HOST_DEVICE int64_t slot(int64_t sender, int64_t owner) {
    return sender - (sender > owner);
  }
};

// Where ranks say that they have come to a meeting, the n-th of a group: pads[r] is the address of
// rank r's pad, of 3 * ranks numbers. The first `ranks` are the last meeting that each rank came
// to. Of the two rows after them, the one of an even or an odd n has n where a rank came with an
// error.
struct PeerPads {
  const int64_t* pads;
  int64_t ranks;
  int64_t rank;
};

// A meeting on the device, which counts meetings in `*count`. What await_peers() returns is written
// to `*outcome` if it is not kAllMet; a rank that has not come within the time is not waited for
// any longer. One that comes with an error does not wait.
//
// With a header, that of an inbox, the host can wait for what the ranks have put there: it is
// copied to `said`, and then said[2 * ranks] becomes `number`.
struct PeerMeeting {
  PeerPads pads;
  int64_t* count;
  int64_t* outcome;  // memory of the host, as `said` is
  int64_t milliseconds;
  bool failed;
  const int64_t* header;  // [2 * ranks], or null
  int64_t* said;          // [2 * ranks + 1]
  int64_t number;
};

constexpr int64_t kNarrowRow = int64_t{1} << 62;

constexpr int64_t kAllMet = -1;
constexpr int64_t kHasError = -1;

namespace kernels {

// Returns the position of the first entry that is an error, or kNoBadEntry. Where there is one, the
// output is nonsense.
TORCH_OPS_KERNELS_API int64_t gather_peers(OnCpu on, const PeerGather& call);
TORCH_OPS_KERNELS_API void put_to_peers(OnCpu on, const PeerSums& call);

// Says that this rank has come to a meeting, with all that it wrote before.
TORCH_OPS_KERNELS_API void arrive(OnCpu on, const PeerPads& pads, int64_t meeting, bool failed);
// Waits for the others for a time. Returns kAllMet; or the number of a rank that came with an
// error; or kAllMet - 1 - the number of a rank that has not come yet. `with_errors`: whether errors
// count.
TORCH_OPS_KERNELS_API int64_t await_peers(OnCpu on, const PeerPads& pads, int64_t meeting,
                                          bool with_errors, int64_t milliseconds);

// An entry that is an error gives zeros, and is recorded.
TORCH_OPS_KERNELS_API void gather_peers(OnCuda on, const PeerGather& call,
                                        const IndexErrorSite& errors);
// Sums values for each row of the table that their index names. It writes the distinct rows and
// their bounds, and sends the sums of the first round. The others are in to.values: the owner's
// own, and those for which there is no room. What `to` counts are entries of the index: as many
// rows have room in it, and what is beyond the last bound is undefined. Entries that name no row
// are dropped. `narrow`: whether sums of one value are of its type. Deterministic.
template <class Value>
TORCH_OPS_KERNELS_API void sum_to_peers(OnCuda on, const ReduceCall<Value, SumOf<Value>>& call,
                                        bool narrow, const PeerSums& to);
// Sends the header of a round, and what sum_to_peers() has left for it. A sender has an error if an
// entry out of range was recorded there that the host has not raised.
TORCH_OPS_KERNELS_API void put_to_peers(OnCuda on, const PeerSums& call,
                                        const IndexErrorSite& errors);

// Writes this rank's `count` rows, after all ranks have put what they have for these: the sums, in
// the order of the ranks. With `onto` they are added to what is there. `own` is of the dtype of the
// table, Narrow, or of its sums; a row is rounded once per round.
template <class Narrow, class Value>
TORCH_OPS_KERNELS_API void add_from_peers(OnCuda on, const PeerSums& call, int64_t count, bool onto,
                                          Value* own);

TORCH_OPS_KERNELS_API void meet_peers(OnCuda on, const PeerMeeting& meeting);
// Waits until `*said` is `number`, or the current stream has an error.
TORCH_OPS_KERNELS_API void await_said(OnCuda on, const int64_t* said, int64_t number);

}  // namespace kernels
}  // namespace torch_ops
