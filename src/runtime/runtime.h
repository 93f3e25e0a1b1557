// The state that all ops of a process share.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace torch_ops {

// Does each call wait for its kernels, to raise their errors itself?
inline std::atomic<bool> sync_errors{false};

// Waits for a device, or for all that have a record, and raises the error that is recorded there.
#ifdef TORCH_OPS_WITH_CUDA
void check_cuda_errors(std::optional<int64_t> device);
#else
inline void check_cuda_errors(std::optional<int64_t> /*device*/) {}  // no kernel was ever launched
#endif

}  // namespace torch_ops
