#include <limits>

#include "common/cuda/fast_divisor.cuh"
#include "common/cuda/kernel_overlap.cuh"
#include "common/cuda/launch.cuh"
#include "common/cuda/ordered_key.cuh"
#include "common/cuda/vectorized.cuh"
#include "common/host/float16.h"
#include "common/indexing/index_error.cuh"
#include "common/indexing/index_view.cuh"
#include "common/layout/row_layout.h"
#include "embedding/bag_launch.h"

namespace torch_ops::kernels {
namespace {

constexpr int kShortThreads = 64;  // of a block of short bags, which lasts as long as the longest
constexpr int kBagUnroll = 4;      // rows that a thread reads at a time
// A bag is long, the work of a block, if it has more entries than a limit, which grows with the
// number of blocks that all bags would take: an entry for so many of them. All bags may have the
// average length; such ones are short up to a larger limit.
constexpr int64_t kLeastLimit = 8, kMostLimit = 128;
constexpr int64_t kBlocksPerEntry = 256, kBlocksPerAverageEntry = 64;
constexpr int64_t kAloneBlocks = 1024;   // one for each strip of a bag, if so few suffice for all
constexpr int64_t kLongBlocks = 1024;    // that look for such bags, about, ...
constexpr int64_t kMostBags = kThreads;  // ... each among so many at most

// What a thread has of a bag: V columns of its rows' sum, ...
template <int V, class Value>
struct BagSum {
  using Number = ComputeType<Value>;
  static constexpr bool kHasFactors = true;
  Number sums[V] = {};
  int64_t kept = 0;  // entries

  __device__ __forceinline__ void take(int64_t /*entry*/, Number factor,
                                       const Vector<Value, V>& row) {
    ++kept;
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] += factor * static_cast<Number>(row.values[v]);
  }

  __device__ __forceinline__ void join(const BagSum& other) {
    kept += other.kept;
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] += other.sums[v];
  }

  __device__ __forceinline__ void write(const BagCall<Value>& call, const IndexView& /*entries*/,
                                        int64_t bag, int64_t column) const {
    const Number divisor = call.mean && kept > 0 ? static_cast<Number>(kept) : Number(1);
    Vector<Value, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) result.values[v] = static_cast<Value>(sums[v] / divisor);
    store(call.result + bag * call.width + column, result);
  }
};

// ... or the entries of their largest values: of equal ones the first; NaN is the largest.
template <int V, class Value>
struct BagLargest {
  static constexpr bool kHasFactors = false;
  OrderedKey<Value> keys[V] = {};
  int64_t entries[V];

  __device__ __forceinline__ BagLargest() {
#pragma unroll
    for (int64_t& entry : entries) entry = kNone;
  }

  __device__ __forceinline__ void take(int64_t entry, ComputeType<Value> /*factor*/,
                                       const Vector<Value, V>& row) {
#pragma unroll
    for (int v = 0; v < V; ++v) take(v, entry, ordered_key(row.values[v], /*largest=*/true));
  }

  __device__ __forceinline__ void join(const BagLargest& other) {
#pragma unroll
    for (int v = 0; v < V; ++v) take(v, other.entries[v], other.keys[v]);
  }

  __device__ __forceinline__ void write(const BagCall<Value>& call, const IndexView& of_bags,
                                        int64_t bag, int64_t column) const {
    const int64_t place = bag * call.width + column;
    Vector<Value, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int64_t row = entries[v] == kNone ? call.rows : of_bags[entries[v]];
      result.values[v] =
          row == call.rows ? Value(0.0f) : call.weight[row * call.width + column + v];
      call.rows_of_largest[place + v] = row;
    }
    store(call.result + place, result);
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  // No value has the key 0, which goes with no entry.
  __device__ __forceinline__ void take(int v, int64_t entry, OrderedKey<Value> key) {
    const bool larger = key > keys[v] || (key == keys[v] && entry < entries[v]);
    keys[v] = larger ? key : keys[v];
    entries[v] = larger ? entry : entries[v];
  }
};

template <int V, class Value, class Total>
struct Bags {
  BagCall<Value> call;
  IndexView entries;
  unsigned vectors;  // of V columns, in a row
  int64_t limit;     // a bag of more entries is long

  // Takes each step-th of the entries [first, end), four at a time. Of a width of 0 nothing is
  // taken, but entries are checked.
  __device__ __forceinline__ void take(Total& total, int64_t first, int64_t end, int step,
                                       int64_t column, const IndexErrorSite& errors) const {
    if (column >= max(call.width, int64_t{1})) return;
    for (; first < end; first += step * kBagUnroll) {
      int64_t picks[kBagUnroll];
      ComputeType<Value> factors[kBagUnroll];
      Vector<Value, V> rows[kBagUnroll];
#pragma unroll
      for (int k = 0; k < kBagUnroll; ++k) {
        const int64_t n = min(first + k, end - 1);
        picks[k] = entries[n];
        const bool there = in_range(picks[k], call.rows);
        if (!there && first + k < end) record_bad_entry(errors, n, picks[k]);
        const bool counts = there && picks[k] != call.padding && first + k < end;
        factors[k] = 1;
        if (Total::kHasFactors && call.factors != nullptr && counts) {
          factors[k] = static_cast<ComputeType<Value>>(call.factors[n]);
        }
        picks[k] = counts && call.width > 0 ? picks[k] : -1;
      }
#pragma unroll
      for (int k = 0; k < kBagUnroll; ++k) {
        if (picks[k] < 0) continue;
        rows[k] = *reinterpret_cast<const Vector<Value, V>*>(call.weight + picks[k] * call.width +
                                                             column);
      }
#pragma unroll
      for (int k = 0; k < kBagUnroll; ++k) {
        if (picks[k] >= 0) total.take(first + k, factors[k], rows[k]);
      }
    }
  }

  __device__ __forceinline__ void write(const Total& total, int64_t bag, int64_t column) const {
    if (column < call.width) total.write(call, entries, bag, column);
  }
};

// A thread for each vector of a bag. Long bags are left out.
template <int V, class Value, class Total>
__global__ void __launch_bounds__(kShortThreads, sizeof(Value) == 4 ? 16 : 12)
    bag_kernel(const __grid_constant__ Bags<V, Value, Total> bags,
               const __grid_constant__ IndexErrorSite errors) {
  let_next_kernel_begin();
  const BagCall<Value>& call = bags.call;
  const int64_t all = call.bags * bags.vectors, step = int64_t{gridDim.x} * kShortThreads;
  for (int64_t n = int64_t{blockIdx.x} * kShortThreads + threadIdx.x; n < all; n += step) {
    const auto bag = static_cast<int64_t>(quotient(n, bags.vectors));
    const int64_t column = (n - bag * bags.vectors) * V;
    const int64_t begin = call.begin(bag), end = call.begin(bag + 1);
    if (end - begin > bags.limit) continue;
    Total total;
    bags.take(total, begin, end, 1, column, errors);
    bags.write(total, bag, column);
  }
}

// Blocks look for the long bags among `each`, and total them: the groups of lanes have the entries
// in turn, and join what they have in a fixed order. A strip of the table, of which each blockIdx.y
// has one, is V columns for each of `lanes` threads, a power of two up to a warp. Runs beside
// `bag_kernel`, if there is one, and looks for offsets that are out of range.
template <int V, class Value, class Total>
__global__ void __launch_bounds__(kThreads, 3)
    long_bag_kernel(const __grid_constant__ Bags<V, Value, Total> bags, int lanes,
                    int64_t first_strip, int each, const __grid_constant__ IndexErrorSite errors,
                    const __grid_constant__ IndexErrorSite offset_errors) {
  alignas(Total) __shared__ char memory[kThreads / 2 * sizeof(Total)];
  __shared__ bool is_long[kMostBags];
  auto* shared = reinterpret_cast<Total*>(memory);
  const BagCall<Value>& call = bags.call;
  const int thread = static_cast<int>(threadIdx.x), group = thread / lanes;
  const int groups = kThreads / lanes;
  const int64_t first = int64_t{blockIdx.x} * each;
  const int64_t column = ((first_strip + blockIdx.y) * lanes + thread % lanes) * V;
  bool found = false;
  if (thread < each) {
    const int64_t bag = min(first + thread, call.bags);
    found = bag < call.bags && call.begin(bag + 1) - call.begin(bag) > bags.limit;
    is_long[thread] = found;
    const int64_t last = bag + 1 == call.bags ? call.offset_count : min(bag + 1, call.bags);
    for (int64_t n = bag; call.offsets != nullptr && n < last; ++n) {
      const int64_t offset = call.offsets[n];
      if (!in_range(offset, call.count + 1)) record_bad_entry(offset_errors, n, offset);
    }
  }
  const bool any = __syncthreads_or(found);
  for (int n = 0; any && n < each; ++n) {
    if (!is_long[n]) continue;
    const int64_t bag = first + n, begin = call.begin(bag), end = call.begin(bag + 1);
    Total total;
    bags.take(total, begin + group * kBagUnroll, end, groups, column, errors);
    for (int half = groups / 2; half > 0; half /= 2) {
      __syncthreads();
      if (group >= half && group < 2 * half) shared[thread - half * lanes] = total;
      __syncthreads();
      if (group < half) total.join(shared[thread]);
    }
    if (group == 0) bags.write(total, bag, column);
  }
  if (thread == 0) wait_for_kernel_before();  // for the kernel that waits for this one
}

template <int V, template <int, class> class TotalOf, class Value>
void launch(const BagCall<Value>& call, const IndexErrorSite& errors,
            const IndexErrorSite& offset_errors) {
  const int64_t vectors = std::max<int64_t>(ceil_div(call.width, V), 1);
  int lanes = 1;
  while (lanes < std::min<int64_t>(vectors, 32)) lanes *= 2;
  const int64_t strips = ceil_div(vectors, lanes);
  const int64_t all = call.bags * strips;
  const auto each = static_cast<int>(std::clamp<int64_t>(all / kLongBlocks, 1, kMostBags));
  // Few bags all have a block of their own: one launch takes less time than two.
  const bool is_alone = call.offsets != nullptr && all <= kAloneBlocks;
  int64_t limit = std::clamp(all / kBlocksPerEntry, kLeastLimit, kMostLimit);
  const int64_t average = call.offsets == nullptr ? call.length : ceil_div(call.count, call.bags);
  if (average <= std::max(2 * kLeastLimit, all / kBlocksPerAverageEntry)) {
    limit = std::max(limit, average);
  }
  if (is_alone) limit = -1;
  using Total = TotalOf<V, Value>;
  const Bags<V, Value, Total> bags{call, IndexView{call.entries}, static_cast<unsigned>(vectors),
                                   limit};
  const bool may_be_short = !is_alone && (call.offsets != nullptr || call.length <= limit);
  if (may_be_short) {
    const unsigned blocks = grid_x(call.bags * vectors, kShortThreads);
    TORCH_OPS_LAUNCH((bag_kernel<V, Value, Total>), blocks, kShortThreads, 0, bags, errors);
    if (call.offsets == nullptr) return;
  }
  for (int64_t strip = 0; strip < strips; strip += kMaxGridYZ) {
    const dim3 grid(grid_x(call.bags, each), grid_y(strips - strip));
    auto* const kernel = long_bag_kernel<V, Value, Total>;
    if (may_be_short) {
      launch_early(kernel, grid, kThreads, 0, bags, lanes, strip, each, errors, offset_errors);
    } else {
      TORCH_OPS_LAUNCH(kernel, grid, kThreads, 0, bags, lanes, strip, each, errors, offset_errors);
    }
  }
}

template <template <int, class> class TotalOf, class Value>
void reduce(OnCuda on, const BagCall<Value>& call, const IndexErrorSite& errors,
            const IndexErrorSite& offset_errors) {
  const HostScope scope(on.program);
  if (call.bags == 0) return;
  constexpr int V = kVectorSize<Value>;
  const bool vectors = call.width > 0 && call.width % V == 0 &&
                       is_aligned(call.weight, kVectorBytes) &&
                       is_aligned(call.result, kVectorBytes);
  vectors ? launch<V, TotalOf>(call, errors, offset_errors)
          : launch<1, TotalOf>(call, errors, offset_errors);
}

}  // namespace

template <class Value>
void reduce_bags(OnCuda on, const BagCall<Value>& call, const IndexErrorSite& errors,
                 const IndexErrorSite& offset_errors) {
  call.rows_of_largest == nullptr ? reduce<BagSum>(on, call, errors, offset_errors)
                                  : reduce<BagLargest>(on, call, errors, offset_errors);
}

#define INSTANTIATE(Value)                                                        \
  template void reduce_bags(OnCuda, const BagCall<Value>&, const IndexErrorSite&, \
                            const IndexErrorSite&);
TORCH_OPS_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace torch_ops::kernels
