"""Generated kernels beside other Python threads: calls run without the GIL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jit_tools import run_python
from torch import Tensor

from torch_ops.jit import ElementwiseKernel, ReductionKernel, cache_info, op, registration

# Says that the kernel runs, and tells whether somebody answers in time.
MEET = """
#include <chrono>
static inline bool meet(const int* seen) {
  volatile int* state = const_cast<int*>(seen);
  state[0] = 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (state[1] == 0 && std::chrono::steady_clock::now() < end) {}
  return state[1] != 0;
}
"""
MAP = ElementwiseKernel("T x, raw int32 state", "T y", "y = meet(&state[0])", preamble=MEET)
SUM = ReductionKernel(
    "T x, raw int32 state", "T y", "T(meet(&state[0]))", "a + b", "y = a", 0, preamble=MEET
)


@pytest.mark.parametrize("kernel", [MAP, SUM], ids=["elementwise", "reduction"])
def test_other_threads_run_meanwhile(kernel: Callable[..., Tensor]) -> None:
    """A kernel on the CPU that ends when another Python thread has seen that it runs."""
    state = torch.zeros(2, dtype=torch.int32)
    seen = state.numpy()

    def answer() -> None:
        end = time.monotonic() + 120  # compiling is part of the call
        while not seen[0] and time.monotonic() < end:
            time.sleep(0.001)
        seen[1] = seen[0]

    thread = threading.Thread(target=answer)
    thread.start()
    met = kernel(torch.zeros(1), state)
    thread.join()
    assert met.item() == 1


def test_many_threads_call_a_new_kernel(device: torch.device) -> None:
    """It is compiled once, and so is its derivative; the reduction too."""
    kernel = ElementwiseKernel("T x", "T y", "y = x * x + 7", "new_to_many")
    total = ReductionKernel("T x", "T y", "x * 7", "a + b", "y = a", 0, "sum_new_to_many")
    count = 16
    ready = threading.Barrier(count)
    found: list[tuple[Any, ...]] = []

    def work() -> None:
        x = torch.full((5,), 3.0, device=device, requires_grad=True)
        ready.wait()
        y = kernel(x.detach())
        (grad,) = torch.autograd.grad(kernel(x).sum(), x)
        found.append((y.tolist(), grad.tolist(), total(x.detach()).item()))

    before = cache_info().compiles
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [([16.0] * 5, [6.0] * 5, 105.0)] * count
    assert cache_info().compiles - before == 3


def test_an_error_of_the_compiler_reaches_each_thread() -> None:
    kernel = ElementwiseKernel("T x", "T y", "y = not_declared", "wrong_to_many")
    errors: list[str] = []

    def work() -> None:
        try:
            kernel(torch.ones(1))
        except Exception as error:
            errors.append(type(error).__name__)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["CompileError"] * 4


def test_many_threads_register_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them does, while the others wait."""
    define = registration._define

    def slowly(*args: Any) -> None:
        time.sleep(0.01)
        define(*args)

    monkeypatch.setattr(registration, "_define", slowly)
    made: list[object] = []

    def work() -> None:
        kernel = ElementwiseKernel("T x", "T y", "y = x * x - 7", "registered_by_many")
        made.append(op("mine::registered_by_many")(kernel))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == made[:1] * 4


# More launches than a stream's queue holds, after a callback in Python that ends only when it has
# the GIL again.
FULL_QUEUE = """
import ctypes, time, torch
from torch_ops.jit import ElementwiseKernel, ReductionKernel

x, y = torch.ones(8, device="cuda"), torch.empty(8, device="cuda")
total = torch.empty((), device="cuda")
add = ElementwiseKernel("T x", "T y", "y = x + 1", "add_one")
sum = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, "sum")
{call}
torch.cuda.synchronize()
maps = open("/proc/self/maps").read().split()
runtime = ctypes.CDLL(next(path for path in maps if "libcudart.so" in path))
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(1))
stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
assert runtime.cudaLaunchHostFunc(stream, callback, None) == 0
for _ in range(20_000):
    {call}
torch.cuda.synchronize()
print("done")
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the queue of a CUDA stream")
@pytest.mark.parametrize("call", ["add(x, out=y)", "sum(x, out=total)"])
def test_full_queue_behind_a_callback_in_python(call: str) -> None:
    """A launch waits there for room, which only the callback can make."""
    assert run_python(FULL_QUEUE.format(call=call)) == "done\n"
