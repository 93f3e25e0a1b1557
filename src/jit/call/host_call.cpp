#include "jit/call/host_call.h"

#include <signal.h>

namespace torch_ops::jit {
namespace {

thread_local DivisionTrap* innermost = nullptr;
struct sigaction previous;

// A signal that is not ours goes to who was asked before. The default ends the process, as the
// instruction is run again.
void on_division(int number, siginfo_t* info, void* context) {
  if (innermost != nullptr) siglongjmp(innermost->target, 1);
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(number, info, context);
  if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    sigaction(number, &previous, nullptr);
  } else {
    previous.sa_handler(number);
  }
}

bool install() {
  struct sigaction ours = {};
  ours.sa_sigaction = on_division;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;  // it is not blocked after a jump
  sigemptyset(&ours.sa_mask);
  return sigaction(SIGFPE, &ours, &previous) == 0;
}

}  // namespace

DivisionTrap::DivisionTrap() : outer_(innermost) {
  static const bool installed = install();
  (void)installed;
  innermost = this;
}

DivisionTrap::~DivisionTrap() { innermost = outer_; }

}  // namespace torch_ops::jit
