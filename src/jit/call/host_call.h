// Calls of the functions that a C++ compiler made of a kernel, on the CPU.
#pragma once

#include <c10/util/Exception.h>
#include <setjmp.h>

#include "jit/call/signature.h"

namespace torch_ops::jit {

// While one of these lives, a division of an integer that the processor refuses (SIGFPE) continues
// at sigsetjmp(trap.target, 0) in the function that has it, on this thread.
struct DivisionTrap {
  DivisionTrap();
  ~DivisionTrap();
  DivisionTrap(const DivisionTrap&) = delete;
  DivisionTrap& operator=(const DivisionTrap&) = delete;

  sigjmp_buf target;

 private:
  DivisionTrap* outer_;
};

// Nothing between here and the division has a destructor: it would not run.
template <class... Parameters, class... Arguments>
void call_on_host(const Signature& kernel, void (*function)(Parameters...),
                  const Arguments&... arguments) {
  if (!kernel.divides) return function(arguments...);
  DivisionTrap trap;
  if (sigsetjmp(trap.target, /*savemask=*/0) == 0) return function(arguments...);
  TORCH_CHECK(
      false, kernel.name,
      ": an integer was divided by zero, or the smallest one by -1. Outputs that were given "
      "may have been written in part.");
}

}  // namespace torch_ops::jit
