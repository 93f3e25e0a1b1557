// Memory of large results on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdlib>
#include <string_view>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace torch_ops {

// Takes a tensor that was just allocated, and asks for huge pages for its memory if it is on the
// CPU. From 32 MiB on glibc's malloc maps new memory for each call, and most of a call's time is
// then spent on page faults, of which a huge page takes one in place of 512. Linux's usual setting
// of transparent huge pages, "madvise", gives them only to those who ask. TORCH_OPS_HUGE_PAGES=0
// turns it off: in a virtual machine that gives free memory back to its host, a huge page may be
// one that must be fetched from there.
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
    // Advice: a system that does not take it changes nothing.
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
  return fresh;
}

}  // namespace torch_ops
