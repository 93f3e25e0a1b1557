// How a generated elementwise kernel runs over a plan's elements on the CPU.
//
// Its loop is over neighbours in memory, so that it vectorises, and it is the only one that is
// compiled. An operand that has its elements elsewhere, or one for many, is copied to a buffer,
// some elements at a time.
#pragma once

#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "jit/call/host_call.h"
#include "jit/call/plan.h"

namespace torch_ops::jit {

class HostLoop {
 public:
  // plan: the number of elements, that of the call, a pointer for each operand, and the rest.
  using Function = void (*)(const int64_t* plan, int64_t begin, int64_t end);
  static constexpr int kPointers = 2;  // words of a plan before those of the operands

  // Of `operands`, the first `outputs` are written, and read before that if `loads`. With `counts`
  // the address of the last one is the index, of which the kernel gets the values. With `once` the
  // kernel is called once for each range, however large the buffers are then.
  HostLoop(const at::TensorIteratorBase& iter, const Words& plan, int operands, int outputs,
           bool loads, bool counts, bool once)
      : plan_(plan), sizes_(iter.shape().begin(), iter.shape().end()) {
    if (sizes_.empty()) sizes_.push_back(iter.numel());
    const bool are_long = !once && sizes_[0] >= kLongRow;
    bool all_in_place = true;
    for (int k = 0; k < operands; ++k) {
      Operand& operand = operands_.emplace_back();
      operand.data = reinterpret_cast<char*>(plan_.data()[kPointers + k]);
      operand.size = iter.element_size(k);
      operand.strides.assign(iter.strides(k).begin(), iter.strides(k).end());
      if (operand.strides.empty()) operand.strides.push_back(operand.size);
      operand.is_index = counts && k + 1 == operands;
      operand.is_stored = k < outputs;
      operand.is_loaded = !operand.is_stored || loads;
      const bool is_dense = !operand.is_index && are_neighbours(operand);
      operand.in_place =
          is_dense || (!operand.is_index && are_long && operand.strides[0] == operand.size);
      is_dense_ &= is_dense;
      all_in_place &= operand.in_place;
    }
    by_rows_ = are_long && !is_dense_;
    most_ = all_in_place || once ? iter.numel() : kBuffered;
  }

  // The elements [begin, end).
  void run(const Signature& kernel, Function function, int64_t begin, int64_t end) const {
    if (is_dense_) return call_on_host(kernel, function, plan_.data(), begin, end);
    Words plan = plan_;
    const int64_t most = std::min(end - begin, most_);
    std::vector<std::unique_ptr<char[]>> buffers(operands_.size());
    for (size_t k = 0; k < operands_.size(); ++k) {
      const int64_t size = operands_[k].is_index ? sizeof(int64_t) : operands_[k].size;
      if (!operands_[k].in_place) buffers[k].reset(new char[most * size]);
    }
    Place place(sizes_.size(), 0);
    advance(place, begin);
    for (int64_t count; begin < end; begin += count, advance(place, count)) {
      count = std::min(end - begin, most_);
      if (by_rows_) count = std::min(count, sizes_[0] - place[0]);
      for (size_t k = 0; k < operands_.size(); ++k) {
        const Operand& operand = operands_[k];
        char* const memory = operand.in_place ? at(operand, place) : buffers[k].get();
        plan.data()[kPointers + k] = reinterpret_cast<intptr_t>(memory);
        if (!operand.in_place && operand.is_loaded) load(operand, place, count, memory);
      }
      call_on_host(kernel, function, plan.data(), 0, count);
      for (size_t k = 0; k < operands_.size(); ++k) {
        const Operand& operand = operands_[k];
        if (!operand.in_place && operand.is_stored) store(operand, place, count, buffers[k].get());
      }
    }
  }

 private:
  static constexpr int64_t kBuffered = 256;  // elements
  // Rows that are walked one by one, with operands that are neighbours along them as they are.
  static constexpr int64_t kLongRow = 64;
  static constexpr int64_t kNarrow = 32;  // rows of fewer elements are copied column by column

  using Place = c10::SmallVector<int64_t, 8>;  // in each axis; the first is the innermost
  struct Operand {
    char* data;
    int64_t size;
    c10::SmallVector<int64_t, 8> strides;
    bool is_index, is_stored, is_loaded, in_place;
  };

  bool are_neighbours(const Operand& operand) const {
    int64_t expected = operand.size;
    for (size_t d = 0; d < sizes_.size(); ++d) {
      if (sizes_[d] > 1 && operand.strides[d] != expected) return false;
      expected *= sizes_[d];
    }
    return true;
  }

  static char* at(const Operand& operand, const Place& place) {
    char* data = operand.data;
    for (size_t d = 0; d < place.size(); ++d) data += place[d] * operand.strides[d];
    return data;
  }

  void advance(Place& place, int64_t count) const {
    place[0] += count;
    for (size_t d = 0; d + 1 < place.size() && place[d] >= sizes_[d]; ++d) {
      place[d + 1] += place[d] / sizes_[d];
      place[d] %= sizes_[d];
    }
  }

  // Calls use(j, apart, from, stride, length) for `count` elements from a place on, in lines: those
  // with the numbers j, j + apart, ... are `stride` bytes apart, from `from` on.
  template <class Use>
  void for_each_line(const Operand& operand, Place place, int64_t count, const Use& use) const {
    for (int64_t j = 0, length; j < count; j += length, advance(place, length)) {
      length = std::min(sizes_[0] - place[0], count - j);
      char* const from = at(operand, place);
      if (place.size() > 1 && place[0] == 0 && sizes_[0] < kNarrow && length < count - j) {
        const int64_t rows = std::min(sizes_[1] - place[1], (count - j) / sizes_[0]);
        for (int64_t c = 0; c < sizes_[0]; ++c) {
          use(j + c, sizes_[0], from + c * operand.strides[0], operand.strides[1], rows);
        }
        length = rows * sizes_[0];
      } else {
        use(j, 1, from, operand.strides[0], length);
      }
    }
  }

  // Calls use(element) with a type that moves for one of so many bytes.
  template <class Use>
  static void with_size(int64_t bytes, const Use& use) {
    struct Bits16 {
      uint64_t parts[2];
    };
    if (bytes == 1) return use(uint8_t());
    if (bytes == 2) return use(uint16_t());
    if (bytes == 4) return use(uint32_t());
    if (bytes == 8) return use(uint64_t());
    use(Bits16());
  }

  // Each copy doubles what there is: at -O2 no loop is vectorised.
  template <class Element>
  static void repeat(const Element& element, int64_t count, Element* to) {
    int64_t done = std::min<int64_t>(count, 16);
    std::fill_n(to, done, element);
    for (int64_t more; done < count; done += more) {
      more = std::min(done, count - done);
      std::memcpy(to + done, to, more * sizeof(Element));
    }
  }

  void load(const Operand& operand, const Place& place, int64_t count, char* buffer) const {
    if (operand.is_index) {
      auto* const indices = reinterpret_cast<int64_t*>(buffer);
      return for_each_line(operand, place, count,
                           [&](int64_t j, int64_t apart, char* from, int64_t stride, int64_t n) {
                             const auto first = reinterpret_cast<intptr_t>(from);
                             for (int64_t i = 0; i < n; ++i) {
                               indices[j + i * apart] = first + i * stride;
                             }
                           });
    }
    with_size(operand.size, [&](auto zero) {
      using Element = decltype(zero);
      constexpr int64_t kSize = sizeof(Element);
      auto* const elements = reinterpret_cast<Element*>(buffer);
      for_each_line(operand, place, count,
                    [&](int64_t j, int64_t apart, char* from, int64_t stride, int64_t n) {
                      Element* const to = elements + j;
                      const auto read = [&](int64_t offset) {
                        Element element;
                        std::memcpy(&element, from + offset, kSize);
                        return element;
                      };
                      if (apart == 1 && stride == 0) {
                        repeat(read(0), n, to);
                      } else if (apart == 1 && stride == kSize) {
                        std::memcpy(to, from, n * kSize);
                      } else {
                        for (int64_t i = 0; i < n; ++i) to[i * apart] = read(i * stride);
                      }
                    });
    });
  }

  void store(const Operand& operand, const Place& place, int64_t count, const char* buffer) const {
    with_size(operand.size, [&](auto zero) {
      constexpr int64_t kSize = sizeof(zero);
      for_each_line(operand, place, count,
                    [&](int64_t j, int64_t apart, char* to, int64_t stride, int64_t n) {
                      for (int64_t i = 0; i < n; ++i) {
                        std::memcpy(to + i * stride, buffer + (j + i * apart) * kSize, kSize);
                      }
                    });
    });
  }

  const Words plan_;
  Place sizes_;
  c10::SmallVector<Operand, 6> operands_;
  bool is_dense_ = true;  // all operands are neighbours in the order of the plan
  bool by_rows_;
  int64_t most_;  // elements of a call
};

}  // namespace torch_ops::jit
