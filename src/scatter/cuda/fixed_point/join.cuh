// How the sums of parts become those of rows: step 4 of tables.cuh. No torch.
#pragma once

#include <cstdint>

#include "common/cuda/kernel_overlap.cuh"
#include "scatter/cuda/fixed_point/bins.cuh"

namespace torch_ops::fixed_point {

constexpr int kJoinColumns = 64;  // values of many parts that a block joins at a time,
constexpr int kJoinGroups = 8;    // and threads for each, among which its parts are divided
constexpr int kJoinThreads = kJoinColumns * kJoinGroups;

// The partial tables. Without bins each table of the result has `parts` of them.
struct Joined {
  const Counters* counters;  // null without bins
  const uint32_t* joins;
  const Partials* partials;  // of cells
  uint32_t tables;           // without bins; with bins, the most that are possible
  uint32_t parts;
  uint32_t bins;      // of a slab; 1 without bins
  uint32_t segments;  // of a slab; 1 without bins
  int64_t axis_size;  // of a slab
  int64_t first_slab;
  uint32_t table_rows;

  struct Table {
    uint32_t cell;
    uint32_t number;
    int64_t row;   // of the result, its first
    int64_t rows;  // that there are
  };

  __device__ uint32_t few() const {
    return counters != nullptr ? counters->few : parts <= kFewParts ? tables : 0;
  }
  __device__ uint32_t many() const {
    return counters != nullptr ? counters->many : parts <= kFewParts ? 0 : tables;
  }
  __device__ Table few_at(uint32_t number) const {
    return find(number, counters != nullptr ? joins[number] : number);
  }
  __device__ Table many_at(uint32_t number) const {
    return find(number, counters != nullptr ? joins[tables - 1 - number] : number);
  }

  // Of a segment.
  __device__ Partials parts_of(const Table& table, uint32_t segment) const {
    return counters != nullptr ? partials[table.cell + segment * bins]
                               : Partials{table.number * parts, parts};
  }

 private:
  __device__ Table find(uint32_t number, uint32_t cell) const {
    const uint32_t slab = cell / (bins * segments), bin = cell % bins;
    const int64_t in_slab = int64_t{bin} * table_rows;
    return {cell, number, (first_slab + slab) * axis_size + in_slab,
            min(int64_t{table_rows}, axis_size - in_slab)};
  }
};

// For a table of few parts: a thread per value.
template <int D, class Value>
__device__ __forceinline__ void join_few(const float* partials, const Joined& call,
                                         const Joined::Table& table, uint32_t value,
                                         Value* result) {
  if (value >= table.rows * D) return;
  double sum = 0;
  for (uint32_t segment = 0; segment < call.segments; ++segment) {
    const Partials parts = call.parts_of(table, segment);
#pragma unroll 4
    for (uint32_t part = 0; part < parts.count; ++part) {
      sum += partials[(int64_t{parts.first} + part) * call.table_rows * D + value];
    }
  }
  result[table.row * D + value] = static_cast<Value>(static_cast<float>(sum));
}

// For one of many: kJoinGroups threads per value. They take segments in turn; or, of a single one,
// its parts.
template <int D, class Value>
__device__ __forceinline__ void join_many(const float* partials, const Joined& call,
                                          const Joined::Table& table, uint32_t piece,
                                          double (&sums)[kJoinGroups][kJoinColumns],
                                          Value* result) {
  const uint32_t column = threadIdx.x % kJoinColumns, group = threadIdx.x / kJoinColumns;
  const uint32_t value = piece * kJoinColumns + column;
  const bool live = value < table.rows * D, several = call.segments > 1;
  const uint32_t step = several ? 1 : kJoinGroups;
  double sum = 0;
  for (uint32_t segment = several ? group : 0; segment < call.segments; segment += kJoinGroups) {
    const Partials parts = call.parts_of(table, segment);
    if (!live) continue;
#pragma unroll 4
    for (uint32_t part = several ? 0 : group; part < parts.count; part += step) {
      sum += partials[(int64_t{parts.first} + part) * call.table_rows * D + value];
    }
  }
  sums[group][column] = sum;
  __syncthreads();
  if (group == 0 && live) {
#pragma unroll
    for (int other = 1; other < kJoinGroups; ++other) sum += sums[other][column];
    result[table.row * D + value] = static_cast<Value>(static_cast<float>(sum));
  }
  __syncthreads();
}

// Blocks walk the tables that are to be joined, in pieces.
template <int D, class Value>
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const float* partials, const __grid_constant__ Joined call,
                Value* __restrict__ result) {
  __shared__ double sums[kJoinGroups][kJoinColumns];
  wait_for_kernel_before();
  const uint32_t values = call.table_rows * D;
  const uint32_t few_pieces = (values + kJoinThreads - 1) / kJoinThreads;
  const uint32_t many_pieces = (values + kJoinColumns - 1) / kJoinColumns;
  const int64_t few = int64_t{call.few()} * few_pieces;
  const int64_t all = few + int64_t{call.many()} * many_pieces;
  for (int64_t item = blockIdx.x; item < all; item += gridDim.x) {
    if (item < few) {
      const auto number = static_cast<uint32_t>(item / few_pieces);
      const auto piece = static_cast<uint32_t>(item - int64_t{number} * few_pieces);
      join_few<D>(partials, call, call.few_at(number), piece * kJoinThreads + threadIdx.x, result);
    } else {
      const auto number = static_cast<uint32_t>((item - few) / many_pieces);
      const auto piece = static_cast<uint32_t>(item - few - int64_t{number} * many_pieces);
      join_many<D>(partials, call, call.many_at(number), piece, sums, result);
    }
  }
}

}  // namespace torch_ops::fixed_point
