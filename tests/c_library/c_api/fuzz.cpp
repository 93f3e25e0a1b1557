// Random calls of the C library on the CPU path: sizes, nulls, misaligned pointers, unknown enums
// and indices, each result compared with a plain loop, each status with what the arguments deserve.
// Compiled with the library's sources under AddressSanitizer and UndefinedBehaviorSanitizer by
// tests/c_library/test_c_programs.py. Usage: fuzz CALLS SEED
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "torch_ops.h"

namespace {

int64_t element_bytes(int dtype) {
  const int64_t bytes[] = {2, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8};
  return bytes[dtype];
}

[[noreturn]] void stop(const std::string& what, unsigned seed, int number) {
  std::fprintf(stderr, "call %d of seed %u: %s (last error: %s)\n", number, seed, what.c_str(),
               torch_ops_last_error());
  std::exit(1);
}

// Memory of exactly these bytes, so that AddressSanitizer sees one beyond them.
struct Memory {
  explicit Memory(int64_t bytes) : data(static_cast<char*>(std::malloc(bytes))), bytes(bytes) {}
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  char* data;
  int64_t bytes;
};

class Fuzzer {
 public:
  Fuzzer(unsigned seed) : seed_(seed), random_(seed) {}

  void run(int calls) {
    for (number_ = 0; number_ < calls; ++number_) {
      switch (below(8)) {
        case 0:
          activation();
          break;
        case 1:
          wrong_call();
          break;
        case 2:
          wrong_call_with_a_mode();
          break;
        case 3:
          reduction();
          break;
        case 4:
          elements();
          break;
        case 5:
          points();
          break;
        default:
          rows();
      }
    }
  }

 private:
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  void expect(bool holds, const char* what) {
    if (!holds) stop(what, seed_, number_);
  }

  void fill(Memory& memory) {
    for (int64_t i = 0; i < memory.bytes; ++i) memory.data[i] = static_cast<char>(below(256));
  }

  // gather, and scatter_add of integers, whose sums do not depend on their order.
  void rows() {
    const int dtype = static_cast<int>(below(12));
    const int64_t batch = below(4), inner = below(8) == 0 ? below(100) : below(6);
    const int64_t axis = below(8) == 0 ? below(70000) : below(30);
    const int64_t entries = below(8) == 0 ? below(9000) : below(30);
    const int64_t bytes = element_bytes(dtype);
    const Index index(*this, batch * entries, axis, TORCH_OPS_MODE_RAISE);
    Memory table(batch * axis * inner * bytes), picked(batch * entries * inner * bytes);
    fill(table);
    float time = -1;
    const int memory = below(2) == 0 ? TORCH_OPS_HOST : TORCH_OPS_HOST_CPU;
    if (told(torch_ops_batch_gather(table.data, index.memory.data, picked.data, batch, axis,
                                    entries, inner, dtype, index.type(), memory, nullptr,
                                    below(2) ? &time : nullptr),
             index, axis)) {
      for (int64_t n = 0; n < batch * entries && inner > 0; ++n) {
        const int64_t row = n / entries * axis + index.entries[n];
        expect(std::memcmp(table.data + row * inner * bytes, picked.data + n * inner * bytes,
                           inner * bytes) == 0,
               "gather is wrong");
      }
    }
    if (dtype < TORCH_OPS_INT8) return;
    fill(picked);
    if (!told(
            torch_ops_scatter_add(picked.data, index.memory.data, table.data, batch, axis, entries,
                                  inner, dtype, index.type(), memory, nullptr, nullptr, 0, nullptr),
            index, axis)) {
      return;
    }
    std::vector<uint64_t> sums(batch * axis * inner);
    for (int64_t n = 0; n < batch * entries; ++n) {
      const int64_t row = n / entries * axis + index.entries[n];
      for (int64_t d = 0; d < inner; ++d) {
        sums[row * inner + d] += load(picked, n * inner + d, bytes);
      }
    }
    expect_wrapped(table, sums, bytes, "scatter_add is wrong");
  }

  // An index of int32 or int64, some of whose entries name no row. Of modes with errors, one entry
  // in a few calls.
  struct Index {
    Index(Fuzzer& random, int64_t count, int64_t size, int mode)
        : wide(random.below(2) == 0), memory(count * (wide ? 8 : 4)), entries(count) {
      const bool raises = mode == TORCH_OPS_MODE_RAISE || mode == TORCH_OPS_MODE_FROM_END;
      const int64_t least = mode == TORCH_OPS_MODE_FROM_END ? -size : 0;
      const int64_t most = std::max<int64_t>(size, 1);
      for (int64_t& entry : entries) {
        entry = raises ? least + random.below(size - least > 0 ? size - least : 1)
                       : random.below(4 * most) - 2 * most;
      }
      if (raises && count > 0 && (size == 0 || random.below(4) == 0)) {
        bad = size == 0 ? 0 : random.below(count);
        const int64_t values[] = {size, least - 1, INT32_MAX, INT32_MIN, wide ? INT64_MIN : -9999};
        if (size > 0) entries[bad] = values[random.below(5)];
      }
      if (!raises && size == 0 && mode != TORCH_OPS_MODE_FILL && count > 0) bad = 0;
      for (int64_t n = 0; n < count; ++n) {
        const auto narrow = static_cast<int32_t>(entries[n]);
        std::memcpy(memory.data + n * (wide ? 8 : 4),
                    wide ? static_cast<const void*>(&entries[n]) : &narrow, wide ? 8 : 4);
      }
    }
    int type() const { return wide ? TORCH_OPS_INDEX_INT64 : TORCH_OPS_INDEX_INT32; }
    bool wide;
    Memory memory;
    std::vector<int64_t> entries;
    int64_t bad = -1;  // the first that is an error
  };

  // The row that an entry names, or -1.
  static int64_t resolve(int64_t entry, int64_t size, int mode) {
    if (size == 0) return -1;
    if (mode == TORCH_OPS_MODE_WRAP) return (entry % size + size) % size;
    if (mode == TORCH_OPS_MODE_CLIP) return std::min(std::max<int64_t>(entry, 0), size - 1);
    const bool from_end = mode == TORCH_OPS_MODE_FILL || mode == TORCH_OPS_MODE_FROM_END;
    const int64_t row = from_end && entry < 0 ? entry + size : entry;
    return row >= 0 && row < size ? row : -1;
  }

  int any_mode() {
    const int modes[] = {TORCH_OPS_MODE_RAISE, TORCH_OPS_MODE_WRAP, TORCH_OPS_MODE_CLIP,
                         TORCH_OPS_MODE_FILL, TORCH_OPS_MODE_FROM_END};
    return modes[below(5)];
  }

  // Does the status tell of the index's bad entry? True where there is none and all is well.
  bool told(int status, const Index& index, int64_t size) {
    if (index.bad < 0) {
      expect(status == TORCH_OPS_SUCCESS, "a right call fails");
      return true;
    }
    int64_t position = -1, value = 0, bound = -1;
    expect(status == TORCH_OPS_INDEX_OUT_OF_RANGE, "a bad entry passed");
    torch_ops_last_index_error(&position, &value, &bound);
    expect(position == index.bad && bound == size, "another entry is named");
    expect(value == (size == 0 ? 0 : index.entries[index.bad]), "another value is named");
    return false;
  }

  static uint64_t load(const Memory& memory, int64_t at, int64_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, memory.data + at * bytes, bytes);
    return value;
  }

  // Integers of `bytes`, of which `wanted` may have overflowed.
  void expect_wrapped(const Memory& memory, const std::vector<uint64_t>& wanted, int64_t bytes,
                      const char* what) {
    const uint64_t mask = bytes == 8 ? UINT64_MAX : (uint64_t{1} << (8 * bytes)) - 1;
    for (size_t i = 0; i < wanted.size(); ++i) {
      expect((wanted[i] & mask) == load(memory, i, bytes), what);
    }
  }

  // Sums and products of integers, onto a result too, by an index and by a plan of it; means and
  // the best of floats are called alone.
  void reduction() {
    const bool integers = below(4) != 0;
    const int dtype = static_cast<int>(integers ? TORCH_OPS_INT8 + below(8) : below(4));
    const int reduce = static_cast<int>(
        integers ? (below(2) != 0 ? TORCH_OPS_REDUCE_SUM : TORCH_OPS_REDUCE_PROD) : below(5));
    const int mode = any_mode();
    const int64_t bytes = element_bytes(dtype);
    const int64_t batch = below(4), inner = below(6);
    const int64_t size = below(30), entries = below(6) == 0 ? below(5000) : below(30);
    const Index index(*this, batch * entries, size, mode);
    Memory values(batch * entries * inner * bytes), result(batch * size * inner * bytes);
    fill(values);
    fill(result);
    const bool onto = reduce == TORCH_OPS_REDUCE_SUM && below(2) != 0;
    const auto flags = static_cast<int32_t>((onto ? TORCH_OPS_ONTO_RESULT : 0) +
                                            (below(2) != 0 ? TORCH_OPS_DETERMINISTIC : 0));
    std::vector<uint64_t> wanted(batch * size * inner, reduce == TORCH_OPS_REDUCE_PROD ? 1 : 0);
    for (size_t i = 0; onto && i < wanted.size(); ++i) wanted[i] = load(result, i, bytes);
    int status;
    if (mode == TORCH_OPS_MODE_RAISE && below(2) != 0) {
      torch_ops_plan* plan = nullptr;
      status = torch_ops_plan_create(index.memory.data, batch, size, entries, index.type(),
                                     TORCH_OPS_HOST_CPU, nullptr, &plan);
      if (!told(status, index, size)) return expect(plan == nullptr, "there is a plan");
      status = torch_ops_plan_scatter(plan, values.data, result.data, inner, dtype, reduce, flags,
                                      nullptr, nullptr);
      torch_ops_plan_destroy(plan);
      expect(status == TORCH_OPS_SUCCESS, "plan_scatter fails");
    } else {
      status = torch_ops_scatter(values.data, index.memory.data, result.data, batch, size, entries,
                                 inner, dtype, index.type(), reduce, mode, flags, TORCH_OPS_HOST,
                                 nullptr, nullptr);
      if (!told(status, index, size)) return;
    }
    if (dtype < TORCH_OPS_INT8) return;
    for (int64_t n = 0; n < batch * entries; ++n) {
      const int64_t row = resolve(index.entries[n], size, mode);
      for (int64_t d = 0; d < inner && row >= 0; ++d) {
        uint64_t& to = wanted[(n / entries * size + row) * inner + d];
        const uint64_t value = load(values, n * inner + d, bytes);
        reduce == TORCH_OPS_REDUCE_PROD ? to *= value : to += value;
      }
    }
    expect_wrapped(result, wanted, bytes, "a reduction is wrong");
  }

  // gather_elements, and scatter_elements_add of integers.
  void elements() {
    const int dtype = static_cast<int>(below(12)), mode = any_mode();
    const int64_t bytes = element_bytes(dtype);
    const int64_t outer = below(4), size = below(20), inner = below(5);
    const int64_t entries = below(6) == 0 ? below(5000) : below(20);
    const int64_t count = outer * entries * inner;
    const Index index(*this, count, size, mode);
    Memory table(outer * size * inner * bytes), picked(count * bytes);
    fill(table);
    const uint64_t filled = below(256);
    if (told(torch_ops_gather_elements(table.data, index.memory.data, picked.data, outer, size,
                                       entries, inner, dtype, index.type(), mode, &filled,
                                       TORCH_OPS_HOST, nullptr, nullptr),
             index, size)) {
      for (int64_t n = 0; n < count; ++n) {
        const int64_t row = resolve(index.entries[n], size, mode);
        const int64_t at = (n / (entries * inner) * size + row) * inner + n % inner;
        expect(load(picked, n, bytes) == (row < 0 ? filled : load(table, at, bytes)),
               "gather_elements is wrong");
      }
    }
    if (dtype < TORCH_OPS_INT8) return;
    fill(picked);
    std::vector<uint64_t> wanted(outer * size * inner);
    if (!told(torch_ops_scatter_elements_add(picked.data, index.memory.data, table.data, outer,
                                             size, entries, inner, dtype, index.type(), mode,
                                             static_cast<int32_t>(below(2)), TORCH_OPS_HOST,
                                             nullptr, nullptr),
              index, size)) {
      return;
    }
    for (int64_t n = 0; n < count; ++n) {
      const int64_t row = resolve(index.entries[n], size, mode);
      if (row < 0) continue;
      wanted[(n / (entries * inner) * size + row) * inner + n % inner] += load(picked, n, bytes);
    }
    expect_wrapped(table, wanted, bytes, "scatter_elements_add is wrong");
  }

  // gather_points, and ravel_points and put_points where all is well. Bad entries are in the last
  // coordinate alone.
  void points() {
    const int dtype = static_cast<int>(below(12)), mode = any_mode();
    const int64_t bytes = element_bytes(dtype);
    const int64_t batch = below(3), points = below(6) == 0 ? below(5000) : below(40);
    const int64_t inner = below(4), count = 1 + below(3);
    std::vector<int64_t> sizes(count);
    std::vector<std::unique_ptr<Index>> indices;
    std::vector<const void*> coordinates;
    int64_t places = 1;
    for (int64_t j = 0; j < count; ++j) {
      sizes[j] = j + 1 < count ? 1 + below(6) : below(7);
      places *= sizes[j];
      do {
        indices.push_back(std::make_unique<Index>(*this, batch * points, sizes[j], mode));
        if (j + 1 < count && indices.back()->bad >= 0) indices.pop_back();
      } while (static_cast<int64_t>(indices.size()) <= j);
    }
    // All coordinates have one type of entries.
    const bool wide = indices[0]->wide;
    for (const auto& each : indices) {
      if (each->wide != wide) return;
      coordinates.push_back(each->memory.data);
    }
    const Index& last = *indices.back();
    Memory table(batch * places * inner * bytes), picked(batch * points * inner * bytes);
    fill(table);
    const uint64_t filled = below(256);
    if (!told(torch_ops_gather_points(table.data, coordinates.data(), sizes.data(),
                                      static_cast<int32_t>(count), picked.data, batch, points,
                                      inner, dtype, last.type(), mode, &filled, TORCH_OPS_HOST,
                                      nullptr, nullptr),
              last, sizes.back())) {
      return;
    }
    Memory numbers(batch * points * 8);
    expect(torch_ops_ravel_points(coordinates.data(), sizes.data(), static_cast<int32_t>(count),
                                  reinterpret_cast<int64_t*>(numbers.data), batch * points,
                                  last.type(), mode, TORCH_OPS_HOST, nullptr,
                                  nullptr) == TORCH_OPS_SUCCESS,
           "ravel_points fails");
    for (int64_t p = 0; p < batch * points; ++p) {
      int64_t place = 0;
      for (int64_t j = 0; j < count && place >= 0; ++j) {
        const int64_t row = resolve(indices[j]->entries[p], sizes[j], mode);
        place = row < 0 ? -1 : place * sizes[j] + row;
      }
      const auto number = static_cast<int64_t>(load(numbers, p, 8));
      expect(number == (place < 0 ? places : place), "ravel_points is wrong");
      for (int64_t d = 0; d < inner; ++d) {
        const int64_t at = (p / points * places + place) * inner + d;
        expect(load(picked, p * inner + d, bytes) == (place < 0 ? filled : load(table, at, bytes)),
               "gather_points is wrong");
      }
    }
    // What was gathered is put where it was.
    Memory before(table.bytes);
    if (table.bytes > 0) std::memcpy(before.data, table.data, table.bytes);
    expect(torch_ops_put_points(table.data, coordinates.data(), sizes.data(),
                                static_cast<int32_t>(count), picked.data, batch, points, inner,
                                dtype, last.type(), mode, TORCH_OPS_HOST, nullptr,
                                nullptr) == TORCH_OPS_SUCCESS,
           "put_points fails");
    for (int64_t i = 0; i < table.bytes; ++i) {
      expect(table.data[i] == before.data[i], "put_points is wrong");
    }
  }

  // A call with a wrong argument has failed, and has not touched its output of bytes 77.
  void refused(int status, int wanted, const char (&output)[64]) {
    expect(status == wanted, torch_ops_status_string(status));
    expect(std::strlen(torch_ops_last_error()) > 20, "no text");
    for (char byte : output) expect(byte == 77, "the output was touched");
  }

  // One wrong argument that the functions with modes have more.
  void wrong_call_with_a_mode() {
    alignas(8) char source[64] = {}, output[64];
    alignas(8) int64_t index[4] = {};
    std::memset(output, 77, sizeof(output));
    const void* coordinates[] = {index, index};
    int64_t sizes[] = {2, 2};
    const int32_t wrong = below(2) != 0 ? 6 + static_cast<int32_t>(below(1000000)) : -1;
    int wanted = TORCH_OPS_INVALID_ARGUMENT, status;
    const auto scatter = [&](int32_t reduce, int32_t mode, int32_t flags) {
      return torch_ops_scatter(source, index, output, 1, 2, 2, 2, TORCH_OPS_FLOAT64,
                               TORCH_OPS_INDEX_INT64, reduce, mode, flags, TORCH_OPS_HOST, nullptr,
                               nullptr);
    };
    const auto gather_points = [&](int32_t count, int64_t points) {
      return torch_ops_gather_points(source, coordinates, sizes, count, output, 1, points, 1,
                                     TORCH_OPS_FLOAT64, TORCH_OPS_INDEX_INT64, TORCH_OPS_MODE_RAISE,
                                     nullptr, TORCH_OPS_HOST, nullptr, nullptr);
    };
    switch (below(7)) {
      case 0:
        status = scatter(wrong, TORCH_OPS_MODE_RAISE, 0);
        break;
      case 1:
        status = scatter(TORCH_OPS_REDUCE_SUM, wrong, 0);
        break;
      case 2:
        status = scatter(TORCH_OPS_REDUCE_SUM, TORCH_OPS_MODE_RAISE, 4 << below(20));
        break;
      case 3:
        status = scatter(TORCH_OPS_REDUCE_PROD, TORCH_OPS_MODE_RAISE, TORCH_OPS_ONTO_RESULT);
        break;
      case 4:
        status = gather_points(below(2) != 0 ? 17 + static_cast<int32_t>(below(1000)) : 0, 2);
        break;
      case 5:
        wanted = TORCH_OPS_NEGATIVE_SIZE;
        sizes[below(2)] = -1 - below(INT64_MAX);
        status = gather_points(2, 2);
        break;
      default:
        wanted = TORCH_OPS_NULL_POINTER;
        coordinates[below(2)] = nullptr;
        status = gather_points(2, 2);
    }
    refused(status, wanted, output);
  }

  void activation() {
    const int dtype = static_cast<int>(below(4));
    const int64_t size = below(6) == 0 ? below(100000) : below(70);
    Memory x(size * element_bytes(dtype)), y(x.bytes), z(x.bytes);
    fill(x);  // any bits: infinities, NaNs, denormal numbers
    expect(torch_ops_relu(x.data, y.data, size, dtype, TORCH_OPS_HOST, nullptr, nullptr) == 0 &&
               torch_ops_relu_backward(x.data, y.data, z.data, size, dtype, TORCH_OPS_HOST, nullptr,
                                       nullptr) == 0,
           "relu fails");
    for (int64_t i = 0; i < size && dtype == TORCH_OPS_FLOAT32; ++i) {
      float in, out;
      std::memcpy(&in, x.data + 4 * i, 4);
      std::memcpy(&out, y.data + 4 * i, 4);
      expect(in < 0 ? out == 0 : std::memcmp(&in, &out, 4) == 0, "relu is wrong");
    }
    expect(
        torch_ops_sigmoid(x.data, y.data, size, dtype, TORCH_OPS_HOST_CPU, nullptr, nullptr) == 0 &&
            torch_ops_sigmoid_backward(x.data, y.data, x.data, size, dtype, TORCH_OPS_HOST, nullptr,
                                       nullptr) == 0,
        "sigmoid fails");
    for (int64_t i = 0; i < size && dtype == TORCH_OPS_FLOAT32; ++i) {
      float out;
      std::memcpy(&out, y.data + 4 * i, 4);
      expect(!(out < 0 || out > 1), "sigmoid is wrong");
    }
  }

  // One wrong argument of an otherwise right call.
  void wrong_call() {
    alignas(8) char source[64] = {}, output[64];
    alignas(8) int64_t index[4] = {};
    std::memset(output, 77, sizeof(output));
    const void* arrays[] = {source, index, output};
    int64_t sizes[] = {1, 2, 2, 2};  // batch, axis_size, entries, inner
    int dtype = TORCH_OPS_FLOAT64, type = TORCH_OPS_INDEX_INT64, memory = TORCH_OPS_HOST;
    int wanted = 0;
    switch (below(8)) {
      case 0:
        arrays[below(3)] = nullptr;
        wanted = TORCH_OPS_NULL_POINTER;
        break;
      case 1:
        sizes[below(4)] = -1 - below(INT64_MAX);
        wanted = TORCH_OPS_NEGATIVE_SIZE;
        break;
      case 2:
        sizes[1] = INT64_MAX / (1 + below(16));
        wanted = TORCH_OPS_SIZE_OVERFLOW;
        break;
      case 3:
        dtype = below(2) ? 12 + static_cast<int>(below(1000000)) : -1;
        wanted = TORCH_OPS_UNKNOWN_DTYPE;
        break;
      case 4:
        type = below(2) ? 2 + static_cast<int>(below(1000000)) : INT32_MIN;
        wanted = TORCH_OPS_UNKNOWN_INDEX_TYPE;
        break;
      case 5:
        memory = below(2) ? 4 + static_cast<int>(below(1000000)) : -1;
        wanted = TORCH_OPS_UNKNOWN_MEMORY;
        break;
      case 6:
        arrays[0] = source + 1 + below(7);
        wanted = TORCH_OPS_MISALIGNED_POINTER;
        break;
      default:
        if (torch_ops_device_count() > 0) return;
        memory = below(2) ? TORCH_OPS_DEVICE : TORCH_OPS_HOST_GPU;
        wanted = TORCH_OPS_NO_DEVICE;
    }
    auto* const to = const_cast<void*>(arrays[2]);
    const int status =
        below(2)
            ? torch_ops_batch_gather(arrays[0], arrays[1], to, sizes[0], sizes[1], sizes[2],
                                     sizes[3], dtype, type, memory, nullptr, nullptr)
            : torch_ops_scatter_add(arrays[0], arrays[1], to, sizes[0], sizes[1], sizes[2],
                                    sizes[3], dtype, type, memory, nullptr, nullptr, 0, nullptr);
    refused(status, wanted, output);
  }

  unsigned seed_;
  std::mt19937_64 random_;
  int number_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  const int calls = count > 1 ? std::atoi(arguments[1]) : 1000;
  const unsigned seed = count > 2 ? std::atoi(arguments[2]) : 1;
  torch_ops_set_num_threads(4);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([=] { Fuzzer(seed + i).run(calls); });
  }
  for (std::thread& each : threads) each.join();
  std::puts("fuzz passed");
  return 0;
}
