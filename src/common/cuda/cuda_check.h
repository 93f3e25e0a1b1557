// Checks for C++ and CUDA code: a failure throws an exception whose text has file, line,
// expression and, for a CUDA call, the error's name and text. No torch. Installed as
// torch_ops/cuda_check.h, for any program.
//
//   TORCH_OPS_CHECK(n > 0, "n is ", n);            // condition, then any parts of a message
//   TORCH_OPS_CHECK_CUDA(cudaMalloc(&data, bytes));
//   kernel<<<grid, block>>>(data);
//   TORCH_OPS_CHECK_LAUNCH();                      // a launch that was refused
#pragma once

#include <cuda_runtime_api.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace torch_ops {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& text) : std::runtime_error(text), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

[[noreturn]] inline void throw_cuda_error(cudaError_t code, const char* expression,
                                          const char* file, int line) {
  // Clears an error that a call left: the next check of a launch would find it again.
  cudaGetLastError();
  std::ostringstream text;
  text << file << ":" << line << ": " << expression << ": " << cudaGetErrorName(code) << " ("
       << cudaGetErrorString(code) << ")";
  throw CudaError(code, text.str());
}

template <class... Parts>
[[noreturn]] void throw_check_error(const char* condition, const char* file, int line,
                                    const Parts&... parts) {
  std::ostringstream text;
  text << file << ":" << line << ": " << condition << " does not hold";
  if (sizeof...(parts) > 1) text << ": ";  // the last is an empty string
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

}  // namespace torch_ops

#define TORCH_OPS_CHECK(...) TORCH_OPS_CHECK_(__FILE__, __LINE__, __VA_ARGS__, "")
#define TORCH_OPS_CHECK_(file, line, condition, ...)                           \
  do {                                                                         \
    if (!(condition)) {                                                        \
      ::torch_ops::throw_check_error(#condition, (file), (line), __VA_ARGS__); \
    }                                                                          \
  } while (0)

// Variadic, since a call may have commas outside of parentheses, in template arguments.
#define TORCH_OPS_CHECK_CUDA(...)                                                      \
  do {                                                                                 \
    const cudaError_t torch_ops_code = (__VA_ARGS__);                                  \
    if (torch_ops_code != cudaSuccess) {                                               \
      ::torch_ops::throw_cuda_error(torch_ops_code, #__VA_ARGS__, __FILE__, __LINE__); \
    }                                                                                  \
  } while (0)

#define TORCH_OPS_CHECK_LAUNCH() TORCH_OPS_CHECK_CUDA(cudaGetLastError())
