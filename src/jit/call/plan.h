// A call's memory, as generated code gets it: 8-byte words whose order the sources that
// torch_ops/jit/generation/ writes declare as a struct.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/FunctionRef.h>

#include <string>

#include "jit/call/signature.h"
#include "jit/gpu_code.h"

namespace torch_ops::jit {

class Words {
 public:
  void put(int64_t value) { words_.push_back(value); }
  void put(const void* pointer) { words_.push_back(reinterpret_cast<intptr_t>(pointer)); }
  void put_pair(uint32_t low, uint32_t high) {
    words_.push_back(static_cast<int64_t>(uint64_t{high} << 32 | low));
  }
  // In the type that the snippet computes in; a number beyond a float's range becomes infinite.
  void put(const c10::Scalar& number, c10::ScalarType type);
  // A raw parameter: see Raw in headers/scalar.h.
  void put_raw(const at::Tensor& tensor);
  void append(const Words& more) { words_.append(more.words_.begin(), more.words_.end()); }

  int64_t* data() { return words_.data(); }
  const int64_t* data() const { return words_.data(); }

 private:
  c10::SmallVector<int64_t, 64> words_;
};

// Launches kernels that get one plan.
class Launcher {
 public:
  Launcher(c10::Device device, Words& plan)
      : device_(device.index()), stream_(current_stream(device_)), plan_(plan) {}
  // `early`: see LaunchShape.
  void operator()(Kernel kernel, int64_t blocks, int64_t blocks_y, int64_t threads,
                  int64_t threads_y = 1, bool early = false) const;

 private:
  c10::DeviceIndex device_;
  void* stream_;
  Words& plan_;
};

// How a call's parameters lie in memory.
struct Layout {
  c10::SmallVector<ScalarType, 8> stored, computed;  // outputs, then inputs; Undefined: a number
  c10::SmallVector<int8_t, 4> raw_ranks;             // of raw parameters; -1 - rank: not contiguous
  Words tail;                                        // numbers, then raw parameters

  void add_output(ScalarType in_memory, ScalarType in_code) {
    stored.push_back(in_memory);
    computed.push_back(in_code);
  }
  // Adds the inputs. Those that are neither numbers nor raw are passed to walk(k, tensor). `raw`:
  // the raw outputs.
  void add_inputs(const Signature& kernel, const Arguments& arguments, const Types& types,
                  c10::SmallVector<const Tensor*, 4> raw,
                  c10::function_ref<void(size_t k, const Tensor& tensor)> walk);
  // What the key of a form of call begins with.
  std::string key(c10::Device device) const;
};

}  // namespace torch_ops::jit
