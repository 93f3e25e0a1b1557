// Random calls of the C library on the CPU path: sizes, nulls, misaligned pointers, unknown enums
// and indices, each result compared with a plain loop, each status with what the arguments deserve.
// Compiled with the library's sources under AddressSanitizer and UndefinedBehaviorSanitizer by
// tests/test_c_programs.py. Usage: fuzz CALLS SEED
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
      switch (below(4)) {
        case 0:
          activation();
          break;
        case 1:
          wrong_call();
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
    const bool wide = below(2) == 0;
    Memory table(batch * axis * inner * bytes), picked(batch * entries * inner * bytes);
    Memory index(batch * entries * (wide ? 8 : 4));
    fill(table);
    const auto set = [&](int64_t at, int64_t value) {
      const auto narrow = static_cast<int32_t>(value);
      std::memcpy(index.data + at * (wide ? 8 : 4),
                  wide ? static_cast<void*>(&value) : const_cast<int32_t*>(&narrow), wide ? 8 : 4);
    };
    std::vector<int64_t> entry(batch * entries);
    for (size_t n = 0; n < entry.size(); ++n) set(n, entry[n] = axis > 0 ? below(axis) : 0);
    int64_t bad = axis == 0 && !entry.empty() ? 0 : -1;
    if (!entry.empty() && axis > 0 && below(5) == 0) {
      bad = below(entry.size());
      const int64_t values[] = {axis, -1, INT32_MAX, INT32_MIN, wide ? INT64_MIN : -7};
      set(bad, entry[bad] = values[below(5)]);
    }
    float time = -1;
    const int memory = below(2) == 0 ? TORCH_OPS_HOST : TORCH_OPS_HOST_CPU;
    const int index_type = wide ? TORCH_OPS_INDEX_INT64 : TORCH_OPS_INDEX_INT32;
    const int status =
        torch_ops_batch_gather(table.data, index.data, picked.data, batch, axis, entries, inner,
                               dtype, index_type, memory, nullptr, below(2) ? &time : nullptr);
    if (bad >= 0) {
      int64_t position = -1, value = 0, bound = -1;
      expect(status == TORCH_OPS_INDEX_OUT_OF_RANGE, "a bad entry passed");
      torch_ops_last_index_error(&position, &value, &bound);
      expect(position == bad && value == entry[bad] && bound == axis, "another entry is named");
    } else {
      expect(status == TORCH_OPS_SUCCESS, "gather fails");
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t n = 0; n < entries && inner > 0; ++n) {
          const char* from = table.data + (b * axis + entry[b * entries + n]) * inner * bytes;
          const char* to = picked.data + (b * entries + n) * inner * bytes;
          expect(std::memcmp(from, to, inner * bytes) == 0, "gather is wrong");
        }
      }
    }
    if (dtype < TORCH_OPS_INT8) return;
    fill(picked);
    const int added =
        torch_ops_scatter_add(picked.data, index.data, table.data, batch, axis, entries, inner,
                              dtype, index_type, memory, nullptr, nullptr, 0, nullptr);
    if (bad >= 0) return expect(added == TORCH_OPS_INDEX_OUT_OF_RANGE, "a bad entry was added");
    expect(added == TORCH_OPS_SUCCESS, "scatter_add fails");
    std::vector<uint64_t> sums(batch * axis * inner);
    const auto load = [&](const Memory& memory, int64_t at) {
      uint64_t value = 0;
      std::memcpy(&value, memory.data + at * bytes, bytes);
      return value;
    };
    for (size_t n = 0; n < entry.size(); ++n) {
      const int64_t row = static_cast<int64_t>(n) / entries * axis + entry[n];
      for (int64_t d = 0; d < inner; ++d) sums[row * inner + d] += load(picked, n * inner + d);
    }
    const uint64_t mask = bytes == 8 ? UINT64_MAX : (uint64_t{1} << (8 * bytes)) - 1;
    for (size_t i = 0; i < sums.size(); ++i) {
      expect((sums[i] & mask) == load(table, i), "scatter_add is wrong");
    }
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

  // One wrong argument of an otherwise right call; the output must not be touched.
  void wrong_call() {
    alignas(8) char source[64] = {}, output[64];
    alignas(8) int64_t index[4] = {};
    std::memset(output, 77, sizeof(output));
    const void* from = source;
    const void* by = index;
    void* to = output;
    int64_t sizes[] = {1, 2, 2, 2};  // batch, axis_size, entries, inner
    int dtype = TORCH_OPS_FLOAT64, type = TORCH_OPS_INDEX_INT64, memory = TORCH_OPS_HOST;
    int wanted = 0;
    switch (below(8)) {
      case 0:
        switch (below(3)) {
          case 0:
            from = nullptr;
            break;
          case 1:
            by = nullptr;
            break;
          default:
            to = nullptr;
        }
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
        from = source + 1 + below(7);
        wanted = TORCH_OPS_MISALIGNED_POINTER;
        break;
      default:
        if (torch_ops_device_count() > 0) return;
        memory = below(2) ? TORCH_OPS_DEVICE : TORCH_OPS_HOST_GPU;
        wanted = TORCH_OPS_NO_DEVICE;
    }
    const int status =
        below(2) ? torch_ops_batch_gather(from, by, to, sizes[0], sizes[1], sizes[2], sizes[3],
                                          dtype, type, memory, nullptr, nullptr)
                 : torch_ops_scatter_add(from, by, to, sizes[0], sizes[1], sizes[2], sizes[3],
                                         dtype, type, memory, nullptr, nullptr, 0, nullptr);
    expect(status == wanted, torch_ops_status_string(status));
    expect(std::strlen(torch_ops_last_error()) > 20, "no text");
    for (char byte : output) expect(byte == 77, "the output was touched");
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
