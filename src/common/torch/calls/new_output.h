// Tensors for results that a kernel will write completely.
#pragma once

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstdlib>
#include <string_view>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "common/torch/calls/torch_cuda.h"

namespace torch_ops {

// Takes a tensor that was just allocated, and asks for huge pages for its memory if it is on the
// CPU. From 32 MiB on glibc's malloc maps new memory for each call, and most of a call's time is
// then spent on page faults, of which a huge page needs one instead of 512. Linux's usual setting
// of transparent huge pages, "madvise", gives them only on request. TORCH_OPS_HUGE_PAGES=0
// turns it off: in a virtual machine that gives free memory back to its host, a huge page may have
// to be fetched from there.
inline at::Tensor in_huge_pages(at::Tensor fresh) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  constexpr size_t kLeast = size_t{32} << 20;
  static const bool wanted = [] {
    const char* setting = std::getenv("TORCH_OPS_HUGE_PAGES");
    return setting == nullptr || std::string_view(setting) != "0";
  }();
  if (wanted && fresh.device().is_cpu() && fresh.nbytes() >= kLeast) {
    const auto begin = reinterpret_cast<uintptr_t>(fresh.mutable_data_ptr());
    const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
    const uintptr_t last = (begin + fresh.nbytes()) / kPage * kPage;
    // Only advice: a system that ignores it changes nothing.
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
  return fresh;
}

// The result of `make` for the options that it is given, with memory that is not filled. In torch's
// deterministic mode at::empty and similar functions fill what they allocate, lest a program read
// old contents. If all of it is to be written, that is an unnecessary pass over memory,
// which torch's own kernels avoid too: there, `make` is only asked for sizes and
// strides.
template <class Make>
at::Tensor new_output(const at::TensorOptions& options, const Make& make) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    const auto like = [&] { return make(options.device(at::kMeta)); };
    if (options.device().is_cpu()) {
      const at::Tensor meta = like();
      return in_huge_pages(at::detail::empty_strided_cpu(meta.sizes(), meta.strides(), options));
    }
    if (options.device().is_cuda()) {
      const at::Tensor meta = like();
      return torch_cuda().empty_strided(meta.sizes(), meta.strides(), options);
    }
  }
  return in_huge_pages(make(options));
}

inline at::Tensor new_output(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return new_output(options, [&](const auto& chosen) { return at::empty(sizes, chosen); });
}

inline at::Tensor new_output_like(const at::Tensor& tensor) {
  return new_output(tensor.options(),
                    [&](const auto& chosen) { return at::empty_like(tensor, chosen); });
}

}  // namespace torch_ops
