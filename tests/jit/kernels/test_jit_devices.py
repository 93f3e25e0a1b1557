"""Kernels on tensors of a GPU that is not the current one, and tensors of several devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from jit_tools import needs_cuda_core

from torch_ops.jit import ElementwiseKernel, RawKernel, RawModule, ReductionKernel

pytestmark = [
    needs_cuda_core,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs"),
]

CURRENT, OTHER = torch.device("cuda:0"), torch.device("cuda:1")

ADD = ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")
PRODUCT = ElementwiseKernel("T x, T y", "T z", "z = x * sin(y)", "product")
SUM = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, "total")
RAMP = "__global__ void ramp(float* x, const float* y) { x[threadIdx.x] = y[0] + threadIdx.x; }"


@pytest.fixture(autouse=True)
def current_device_stays() -> Iterator[None]:
    torch.cuda.set_device(CURRENT)
    yield
    assert torch.cuda.current_device() == CURRENT.index


def test_two_devices_elementwise() -> None:
    """The result is made, and the kernel runs, where the tensors are."""
    for device in (OTHER, CURRENT, OTHER):
        x = torch.rand(40, 33, device=device)
        for a, b in ((x, x), (x, x[0]), (x.T, x[:, 0]), (x[:, ::2], 2.5)):
            z = ADD(a, b)
            assert z.device == device
            assert torch.equal(z, a + b)
        out = torch.empty_like(x)
        assert torch.equal(ADD(x, torch.tensor(2.0), out=out), x + 2)


def test_two_devices_current_stream() -> None:
    """It is the current stream of the tensors' device that a kernel runs on."""
    x = torch.zeros(1000, device=OTHER)
    ADD(x, 1)  # compiled before the stream is kept busy
    side = torch.cuda.Stream(OTHER)
    torch.cuda.synchronize(OTHER)
    with torch.cuda.stream(side):
        torch.cuda.set_device(CURRENT)
        with torch.cuda.device(OTHER):
            torch.cuda._sleep(200_000_000)
        x.fill_(3)
        y = ADD(x, 1)
        assert not side.query()
    side.synchronize()
    assert bool((y == 4).all())


def test_two_devices_gradients() -> None:
    """First and second ones, by a broadcast input too, also where they are summed in one kernel."""
    x = torch.rand(30, 20, device=OTHER, dtype=torch.float64, requires_grad=True)
    y = torch.rand(20, device=OTHER, dtype=torch.float64, requires_grad=True)
    gx, gy = torch.autograd.grad(PRODUCT(x, y).sum(), (x, y), create_graph=True)
    torch.testing.assert_close(gx, torch.sin(y).expand(30, 20))
    torch.testing.assert_close(gy, (x * torch.cos(y)).sum(0))
    (second,) = torch.autograd.grad(gy.sum(), y)
    torch.testing.assert_close(second, -(x * torch.sin(y)).sum(0))
    large = torch.ones(9000, 2048, device=OTHER)
    bias = torch.zeros(2048, device=OTHER, requires_grad=True)
    (grad,) = torch.autograd.grad(ADD(large, bias).sum(), bias)
    assert grad.device == OTHER
    assert bool((grad == 9000).all())


def test_two_devices_reductions() -> None:
    for device in (OTHER, CURRENT):
        x = torch.arange(3000.0, device=device).view(60, 50)
        for dim in (None, 0, 1):
            total = SUM(x, dim=dim)
            assert total.device == device
            assert torch.equal(total, x.sum(dim))
        many = torch.ones(300_000, 4, device=device)
        assert SUM(many, dim=0).tolist() == [300_000] * 4
        assert SUM(many).item() == 1_200_000


def test_two_devices_raw() -> None:
    """One kernel, one module, on both in turn; its variables are each device's own."""
    kernel = RawKernel(RAMP, "ramp")
    module = RawModule(
        "__device__ int calls; __global__ void count(int* x) { *x = atomicAdd(&calls, 1); }"
    )
    for number, device in enumerate((OTHER, CURRENT, OTHER, CURRENT)):
        x = torch.empty(5, device=device)
        event = kernel(1, 5, (x, torch.full((1,), 7.0, device=device)), return_event=True)
        event.synchronize()
        assert x.tolist() == [7, 8, 9, 10, 11]
        calls = torch.full((1,), -1, dtype=torch.int32, device=device)
        module.get_function("count")(1, 1, (calls,))
        assert calls.item() == number // 2
    side = torch.cuda.Stream(OTHER)
    with torch.cuda.stream(side):
        torch.cuda.set_device(CURRENT)
        y = torch.ones(1, device=OTHER)
    x = torch.empty(5, device=OTHER)
    kernel(1, 5, (x, y), stream=side)
    side.synchronize()
    assert x.tolist() == [1, 2, 3, 4, 5]


def test_two_devices_raw_shared_array() -> None:
    """An array of another library that lies on the other GPU."""

    class Foreign:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    x = torch.zeros(5, device=OTHER)
    RawKernel(RAMP, "ramp")(1, 5, (Foreign(x), torch.ones(1, device=OTHER)))
    assert x.tolist() == [1, 2, 3, 4, 5]


def test_two_devices_raw_attributes() -> None:
    """Of the current device, whichever was launched on last."""
    kernel = RawKernel(RAMP, "ramp")
    kernel(1, 5, (torch.empty(5, device=OTHER), torch.ones(1, device=OTHER)))
    assert 0 < kernel.num_regs < 256
    with torch.cuda.device(OTHER):
        assert kernel.suggest_block() % 32 == 0


def test_two_devices_threads() -> None:
    """Each thread's current device is its own."""
    failures: list[BaseException] = []

    def work(device: torch.device) -> None:
        try:
            kernel = RawKernel(RAMP, "ramp")
            for k in range(50):
                x = torch.empty(5, device=device)
                kernel(1, 5, (x, torch.full((1,), float(k), device=device)))
                assert ADD(x, 1).tolist() == [k + 1, k + 2, k + 3, k + 4, k + 5]
                assert SUM(x).item() == 5 * k + 10
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in (OTHER, CURRENT) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_devices_mixed_are_refused() -> None:
    here, there = torch.ones(5, device=CURRENT), torch.ones(5, device=OTHER)
    for x, y in ((here, there), (there, here), (there, here[0]), (there, there.cpu())):
        with pytest.raises(RuntimeError, match=r"add: all tensors must be on one device, but"):
            ADD(x, y)
    with pytest.raises(RuntimeError, match=r"z is on cuda:1|another is on cuda:1"):
        ADD(here, here, out=torch.empty(5, device=OTHER))
    with pytest.raises(RuntimeError, match="total: all tensors must be on one device"):
        SUM(here, out=torch.empty((), device=OTHER))
    kernel = RawKernel(RAMP, "ramp")
    with pytest.raises(RuntimeError, match=r"argument 0 is on cuda:1 and argument 1 is on cuda:0"):
        kernel(1, 5, (there, here))
    with pytest.raises(RuntimeError, match=r"argument 1 .* must be on a CUDA device"):
        kernel(1, 5, (there, there.cpu()))
    with pytest.raises(
        RuntimeError, match=r"the stream is on cuda:0, but the kernel runs on cuda:1"
    ):
        kernel(1, 5, (there, there), stream=torch.cuda.Stream(CURRENT))
    assert ADD(there, torch.tensor(1.0)).device == OTHER  # a 0-d tensor of the CPU is a number
