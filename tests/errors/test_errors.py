"""An index entry out of range: what is raised, where, and that all works afterwards.

On the CPU the call itself raises. On CUDA the next call does, or check_errors, or the call itself
in sync mode; the text is the same but for a last sentence.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gathering import Case, index_for, values_for
from programs import ROOT, run_with_torch
from torch import Tensor

import torch_ops

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

LATER = (
    r' \(Found on cuda:\d+ by an earlier call; torch_ops.set_error_mode\("sync"\) raises at the '
    r"call itself.\)$"
)


@pytest.fixture(autouse=True)
def async_mode() -> Iterator[None]:
    """The default, also where TORCH_OPS_SYNC is set."""
    before = torch_ops.get_error_mode()
    torch_ops.set_error_mode("async")
    yield
    torch_ops.set_error_mode(before)


def text(op: str, coordinates: tuple[int, ...], value: int, size: int) -> str:
    """A pattern for the text, without the last sentence."""
    where = "[" + ", ".join(map(str, coordinates)) + "]"
    return "^" + re.escape(
        f"{op}: index{where} is {value}, out of range for an axis of size {size}: it must be "
        f"between 0 and {size - 1}."
    )


@contextmanager
def raises(device: torch.device, pattern: str) -> Iterator[None]:
    """The block's call raises: at once on the CPU; on CUDA when it is asked for."""
    end = "$" if device.type == "cpu" else LATER
    with pytest.raises(IndexError, match=pattern + end):  # noqa: PT012, either may raise
        yield
        torch_ops.check_errors()


def bad_gather(device: torch.device) -> Tensor:
    source = torch.ones(5, 3, device=device)
    return torch_ops.gather(source, torch.tensor([0, 7, 1], device=device))


BAD_GATHER = text("gather", (1,), 7, 5)


# ---- what is named ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """A call that one of the kernels takes."""

    name: str
    case: Case
    dtype: torch.dtype = torch.float32
    op: str = "gather"
    deterministic: bool = False

    def __str__(self) -> str:
        return self.name

    def call(self, device: torch.device, index: Tensor) -> Tensor:
        case = self.case
        if self.op == "gather":
            source = values_for(case.source, device, self.dtype)
            return torch_ops.gather(source, index, **case.kwargs)
        values = values_for(case.output, device, self.dtype)
        return torch_ops.scatter_add(values, index, case.source[case.axis], **case.kwargs)


PATHS = [
    Path("rows", Case((4, 32, 4), (4, 20), batch_dims=1)),
    Path("rows, one slab", Case((2, 100, 64), (2, 5000), batch_dims=1)),
    Path("rows, outer axis", Case((3, 50, 8), (7, 9), dim=1)),
    Path("rows, batch and outer axes", Case((2, 3, 50, 8), (2, 7, 9), dim=2, batch_dims=1)),
    Path("rows, few words", Case((4, 32, 3), (4, 20), batch_dims=1)),
    Path("short rows", Case((4, 32, 7), (4, 21_001), batch_dims=1), torch.uint8),
    Path("short rows, many", Case((3, 100, 33), (3, 4001), batch_dims=1), torch.float16),
    Path("granules", Case((3, 100, 301), (3, 3001), batch_dims=1), torch.float16),
    Path("short rows of 4 bytes", Case((3, 100, 257), (3, 3001), batch_dims=1)),
    Path("short rows, batch and outer axes", Case((2, 3, 50, 7), (2, 9_001), 2, 1), torch.bfloat16),
    Path("single values", Case((3, 10), (3, 1001), batch_dims=1)),
    Path("staged", Case((64, 1024), (64, 160_001), batch_dims=1)),
    Path("staged, outer axis", Case((64, 8192), (160_001,), dim=1), torch.uint8),
    Path("merged", Case((2, 40, 4), (2, 300), batch_dims=1), op="scatter_add"),
    Path("atomics", Case((2, 3, 40, 5), (2, 300), 2, 1), op="scatter_add"),
    Path("sorted", Case((2, 40, 5), (2, 30), batch_dims=1), torch.float32, "scatter_add", True),
    Path("sorted, outer axis", Case((2, 3, 40, 5), (2, 30), 2, 1), torch.half, "scatter_add", True),
]


@pytest.mark.sanitizer
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_the_entry_is_named(device: torch.device, path: Path) -> None:
    size = path.case.source[path.case.axis]
    good = index_for(path.case, device, torch.int32)
    torch.use_deterministic_algorithms(path.deterministic)
    try:
        expected = path.call(device, good)
        count = good.numel()
        for position, value in (
            (0, -1),
            (count // 2, size),
            (count - 2, -(2**31)),
            (count - 1, 2**31 - 1),
        ):
            bad = good.clone()
            bad.view(-1)[position] = value
            coordinates = tuple(map(int, np.unravel_index(position, good.shape)))
            with raises(device, text(path.op, coordinates, value, size)):
                path.call(device, bad)
        again = path.call(device, good)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(again, expected)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, 255),
        (torch.int16, -(2**15)),
        (torch.int16, 2**15 - 1),
        (torch.int32, -(2**31)),
        (torch.int64, 2**32),  # 0 in 32 bits
        (torch.int64, 2**40 + 3),
        (torch.int64, -(2**63)),
        (torch.int64, 2**63 - 1),
    ],
)
@pytest.mark.parametrize("name", ["gather", "scatter_add"])
def test_values_are_named_exactly(
    device: torch.device, dtype: torch.dtype, value: int, name: str
) -> None:
    index = torch.tensor([[1, 2], [value, 4]], dtype=dtype, device=device)
    with raises(device, text(name, (1, 0), value, 9)):
        if name == "gather":
            torch_ops.gather(torch.ones(9, 2, device=device), index)
        else:
            torch_ops.scatter_add(torch.ones(2, 2, 2, device=device), index, 9)


def test_strided_and_expanded_indices(device: torch.device) -> None:
    source = torch.ones(4, 9, 3, device=device)
    index = torch.zeros(2, 5, 4, dtype=torch.int64, device=device)
    index[0, 3, 2] = 77
    with raises(device, text("batch_gather", (2, 3), 77, 9)):
        torch_ops.batch_gather(source, index[0].t())
    with raises(device, text("gather", (3, 2, 0), 77, 9)):  # no joint stride: copied first
        torch_ops.gather(source, index.permute(1, 2, 0), dim=1)
    with raises(device, r"^batch_gather: index\[[0123], 3\] is 77, out of range for an axis of .*"):
        torch_ops.batch_gather(source, index[0, :, 2].expand(4, 5))


def test_an_index_of_rank_0_and_of_many_axes(device: torch.device) -> None:
    source = torch.ones(5, device=device)
    with raises(device, r"^gather: index is 5, out of range for an axis of size 5: it must .*"):
        torch_ops.gather(source, torch.tensor(5, device=device))
    with raises(device, r"^index: the index for axis 1 is 5, out of range for an axis of size 5.*"):
        torch_ops.index(
            source[None], (torch.tensor(0, device=device), torch.tensor(5, device=device))
        )
    index = torch.zeros((1,) * 6 + (2, 3, 2), dtype=torch.int64, device=device)
    index[..., 1, 0, 1] = 5
    entry = r"index\[0, 0, 0, 0, 0, 0, 1, 0, 1\]"
    if device.type == "cuda":  # a kernel gets the sizes of eight axes at most
        entry = r"entry 7 of index \(counted in row-major order\)"
    with raises(device, f"^gather: {entry} is 5, out of range for an axis of size 5: it must .*"):
        torch_ops.gather(source, index)


def test_axis_of_size_0(device: torch.device) -> None:
    """Sizes alone tell: raised at once on CUDA too."""
    index = torch.zeros(2, 3, dtype=torch.int64, device=device)
    # On the CPU the first entry is named.
    named = r": (index\[0, 0\]|the number of entries of index) is \d"
    pattern = named + r", but the axis has size 0: no entry is allowed\.$"
    for shape in [(0,), (0, 4), (0, 0)]:
        with pytest.raises(IndexError, match="^gather" + pattern):
            torch_ops.gather(torch.ones(shape, device=device), index)
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            for row in (4, 0):
                with pytest.raises(IndexError, match="^scatter_add" + pattern):
                    torch_ops.scatter_add(torch.ones(2, 3, row, device=device), index, 0)
        finally:
            torch.use_deterministic_algorithms(False)
    assert torch_ops.gather(torch.ones(0, 4, device=device), index[:0]).shape == (0, 3, 4)
    assert torch_ops.scatter_add(torch.ones(0, 3, device=device), index[:0], 0).shape == (0,)


# ---- where it is raised -------------------------------------------------------------------------


@needs_cuda
def test_the_next_call_raises() -> None:
    device = torch.device("cuda")
    source = values_for((5, 3), device, torch.float32)
    index = torch.tensor([4, 0, 4], device=device)
    for call in (
        lambda: torch_ops.gather(source, index),
        lambda: torch_ops.batch_gather(source, index),
        lambda: torch_ops.scatter_add(source[:3], index, 5),
        lambda: torch_ops.gather(source, index[:0]),  # one with nothing to do, too
    ):
        output = bad_gather(device)
        assert output.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
        with pytest.raises(IndexError, match=BAD_GATHER + LATER):
            call()
        call()  # once is enough
        torch_ops.check_errors()
    assert torch.equal(torch_ops.gather(source, index), source[index])


@needs_cuda
def test_other_ops_do_not_raise() -> None:
    output = bad_gather(torch.device("cuda"))
    torch_ops.sigmoid(torch_ops.relu(output)).sum().item()
    with pytest.raises(IndexError, match=BAD_GATHER + LATER):
        torch_ops.check_errors()


def test_check_errors(device: torch.device) -> None:
    torch_ops.check_errors()
    with raises(device, BAD_GATHER):
        bad_gather(device)
    for which in (None, device, str(device), 0):
        torch_ops.check_errors(which)


@needs_cuda
@pytest.mark.parametrize("which", ["cuda", "cuda:0", 0, torch.device("cuda:0")])
def test_check_errors_of_a_device(which: torch.device | str | int) -> None:
    bad_gather(torch.device("cuda:0"))
    torch_ops.check_errors("cpu")
    with pytest.raises(IndexError, match=BAD_GATHER + LATER):
        torch_ops.check_errors(which)


def test_check_errors_of_no_device() -> None:
    torch_ops.check_errors("cuda:100")  # nothing has run there
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        torch_ops.check_errors("gpu")


@needs_cuda
def test_a_million_bad_entries_raise_once() -> None:
    device = torch.device("cuda")
    source = torch.ones(1000, 64, device=device)
    index = torch.full((1_000_000,), 1000, device=device)
    bad_gather(device)
    with pytest.raises(IndexError):
        torch_ops.check_errors()
    start = time.perf_counter()
    for _ in range(10):
        output = torch_ops.gather(source, index)
        with pytest.raises(IndexError, match=r"^gather: index\[\d+\] is 1000, out of range"):
            torch_ops.check_errors()
        torch_ops.check_errors()
    assert time.perf_counter() - start < 5  # some ms; a queue of atomics would take longer
    assert not output.any()


@pytest.mark.usefixtures("sync_mode")
def test_sync_mode_raises_at_the_call(device: torch.device) -> None:
    for path in PATHS:
        index = index_for(path.case, device)
        size = path.case.source[path.case.axis]
        index.view(-1)[3] = size + 9
        coordinates = tuple(map(int, np.unravel_index(3, index.shape)))
        with pytest.raises(IndexError, match=text(path.op, coordinates, size + 9, size) + "$"):
            path.call(device, index)
        torch_ops.check_errors()
        index.view(-1)[3] = 0
        path.call(device, index)


@needs_cuda
def test_sync_mode_does_not_hide_an_earlier_error() -> None:
    device = torch.device("cuda")
    bad_gather(device)
    torch_ops.set_error_mode("sync")
    with pytest.raises(IndexError, match=BAD_GATHER + LATER):
        torch_ops.gather(torch.ones(3, device=device), torch.tensor([0], device=device))


def test_error_mode() -> None:
    assert torch_ops.get_error_mode() == "async"
    torch_ops.set_error_mode("sync")
    assert torch_ops.get_error_mode() == "sync"
    with pytest.raises(ValueError, match=r'mode must be "async" or "sync", but it is \'later\''):
        torch_ops.set_error_mode("later")
    assert torch_ops.get_error_mode() == "sync"


@pytest.mark.parametrize(
    ("value", "mode"), [("1", "sync"), ("", "async"), ("0", "async"), (None, "async")]
)
def test_error_mode_from_the_environment(value: str | None, mode: str) -> None:
    code = "import torch_ops; print(torch_ops.get_error_mode())"
    variables = {} if value is None else {"TORCH_OPS_SYNC": value}
    result = run_with_torch("-c", code, cwd=ROOT, **variables)
    assert result.stdout.split() == [mode]


# ---- gradients, transforms, compilation ---------------------------------------------------------


@needs_cuda
def test_backward() -> None:
    device = torch.device("cuda")
    source = torch.ones(5, 3, device=device, requires_grad=True)
    index = torch.tensor([0, 7, 1], device=device)
    output = torch_ops.gather(source, index)
    with pytest.raises(IndexError, match=BAD_GATHER + LATER):
        torch_ops.check_errors()
    output.sum().backward(retain_graph=True)
    assert source.grad is not None
    assert source.grad.sum(1).tolist() == [3, 3, 0, 0, 0]
    pattern = text("scatter_add", (1,), 7, 5)
    with pytest.raises(IndexError, match=pattern + LATER):
        torch_ops.check_errors()
    # The error of the forward pass reaches the backward pass, and its exception's type survives.
    output = torch_ops.gather(source, index)
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match=BAD_GATHER + LATER):
        output.sum().backward(retain_graph=True)
    torch_ops.set_error_mode("sync")
    with pytest.raises(IndexError, match=pattern + "$"):
        output.sum().backward()


def test_transforms(device: torch.device) -> None:
    """A kernel names an entry among all samples'; a call that raises by itself, its sample's."""
    source = torch.ones(4, 9, 3, device=device)
    index = torch.zeros(4, 5, dtype=torch.int64, device=device)
    index[2, 3] = 9
    position = (3,) if device.type == "cpu" else (2, 3)
    with raises(device, text("gather", position, 9, 9)):
        torch.vmap(torch_ops.gather)(source, index)
    with raises(device, text("gather", (2,), -4, 9)):
        torch.func.vjp(
            lambda s: torch_ops.gather(s, torch.tensor([0, 1, -4], device=device)), source[0]
        )


def test_compiled(device: torch.device) -> None:
    torch.compiler.reset()
    compiled = torch.compile(torch_ops.gather, fullgraph=True, backend="aot_eager")
    source = values_for((5, 3), device, torch.float32)
    index = torch.tensor([4, 0, 4], device=device)
    assert torch.equal(compiled(source, index), source[index])
    index[1] = 5
    with raises(device, text("gather", (1,), 5, 5)):
        compiled(source, index)
    index[1] = 3
    assert torch.equal(compiled(source, index), source[index])
    if device.type == "cuda":
        bad_gather(device)
        torch.cuda.synchronize()
        with pytest.raises(IndexError, match=BAD_GATHER + LATER):
            compiled(source, index)


def test_direct_pair(device: torch.device) -> None:
    from torch_ops._ext import gather, scatter

    if device.type == "cpu":
        return  # takes CUDA tensors alone
    index = torch.tensor([0, 7, 1], device=device)
    gather.forward(torch.ones(5, 3, device=device), index)
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match=BAD_GATHER + LATER):
        scatter.forward(torch.ones(3, device=device), index, 9)
    scatter.forward(torch.ones(3, device=device), index, 5)
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match=text("scatter_add", (1,), 7, 5) + LATER):
        gather.backward(torch.ones(3, device=device), index, 9)


# ---- CUDA graphs --------------------------------------------------------------------------------


class Captured:
    """gather and scatter_add of static tensors, captured after a run on a side stream."""

    def __init__(self) -> None:
        device = torch.device("cuda")
        self.source = values_for((5, 3), device, torch.float32)
        self.index = torch.tensor([4, 0, 4], device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.call()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = self.call()

    def call(self) -> Tensor:
        rows = torch_ops.gather(self.source, self.index)
        return torch_ops.scatter_add(rows, self.index, 5)

    def replay(self, *entries: int) -> None:
        self.index.copy_(torch.tensor(entries))
        self.graph.replay()

    def expected(self) -> Tensor:
        result = torch.zeros_like(self.source)
        return result.index_add_(0, self.index, self.source[self.index])


@needs_cuda
def test_cuda_graph() -> None:
    captured = Captured()
    captured.replay(1, 2, 3)
    torch_ops.check_errors()
    assert torch.equal(captured.output, captured.expected())
    for bad in (-1, 5):
        captured.replay(1, bad, 3)
        # Both ops met the entry; the first to do so is named, which here is gather's kernel.
        with pytest.raises(IndexError, match=text("gather", (1,), bad, 5) + LATER):
            torch_ops.check_errors()
        captured.replay(4, 0, 0)
        torch_ops.check_errors()
        torch.testing.assert_close(captured.output, captured.expected())
    captured.replay(1, 9, 3)
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match=text("gather", (1,), 9, 5) + LATER):
        torch_ops.gather(captured.source, torch.tensor([0], device="cuda"))


@needs_cuda
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_nothing_is_raised_while_capturing(mode: str) -> None:
    device = torch.device("cuda")
    source = values_for((5, 3), device, torch.float32)
    index = torch.tensor([4, 0, 4], device=device)
    bad_gather(device)
    torch.cuda.synchronize()
    torch_ops.set_error_mode(mode)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = torch_ops.gather(source, index)
        with pytest.raises(RuntimeError, match="check_errors: the current stream of cuda:0 is cap"):
            torch_ops.check_errors()
    graph.replay()
    with pytest.raises(IndexError, match=BAD_GATHER + LATER):
        torch_ops.check_errors()
    assert torch.equal(output, source[index])


@needs_cuda
def test_first_use_inside_a_capture() -> None:
    """Nothing is recorded then; what was captured works all the same, and so does what follows."""
    code = """
import torch, torch_ops
source = torch.ones(5, 3, device="cuda")
index = torch.tensor([4, 7, 4], device="cuda")
graph = torch.cuda.CUDAGraph()
# Relaxed, since kernels are loaded at their first launch too, which may allocate.
with torch.cuda.graph(graph, capture_error_mode="relaxed"):
    output = torch_ops.gather(source, index)
graph.replay()
torch_ops.check_errors()
assert output.sum(1).tolist() == [3, 0, 3], output
torch_ops.gather(source, index)
try:
    torch_ops.check_errors()
except IndexError as error:
    print("raised", error)
"""
    result = run_with_torch("-c", code, cwd=ROOT)
    assert re.search(r"^raised gather: index\[1\] is 7", result.stdout, re.MULTILINE), result.stdout


# ---- streams, threads, devices ------------------------------------------------------------------


def call_repeatedly(call: Callable[[], object]) -> None:
    """Until what a kernel is about to record is there, and raised."""
    for _ in range(100_000):
        call()


@needs_cuda
def test_streams() -> None:
    """An error on one stream is raised by a call on another, and a retry is not blamed.

    When the first bad entry is recorded, most of the kernel is still to run, and meets others.
    """
    device = torch.device("cuda")
    source = torch.ones(100_000, 64, device=device)
    bad = torch.full((2_000_000,), -1, device=device)
    good = torch.arange(1000, device=device)
    torch.cuda.synchronize()
    for _ in range(10):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch_ops.gather(source, bad)
        with pytest.raises(IndexError, match=r"^gather: index\[\d+\] is -1"):
            call_repeatedly(lambda: torch_ops.gather(source, good))
        for _ in range(3):
            torch_ops.gather(source, good)
        torch_ops.check_errors()


@needs_cuda
def test_threads() -> None:
    """Of several threads that ask at the same time, one gets the error."""
    device = torch.device("cuda")
    source = torch.ones(5, 3, device=device)
    index = torch.tensor([0, 1], device=device)

    def check() -> None:
        torch_ops.check_errors()

    def call() -> None:
        torch_ops.gather(source, index)

    for asks in (check, call):
        for _ in range(20):
            bad_gather(device)
            torch.cuda.synchronize()
            assert run_in_threads(asks, 8) == ["IndexError"]
    # Several that fail: at least one error, and no more than calls.
    raised = run_in_threads(lambda: (bad_gather(device), torch_ops.check_errors()), 8)
    assert 1 <= len(raised) <= 8
    assert set(raised) == {"IndexError"}


def run_in_threads(task: Callable[[], object], count: int) -> list[str]:
    """The types of what was raised."""
    raised: list[str] = []
    barrier = threading.Barrier(count)

    def body() -> None:
        barrier.wait()
        try:
            task()
        except Exception as error:
            raised.append(type(error).__name__)

    threads = [threading.Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU at most")
def test_devices() -> None:
    """A record each: an error on one is none of the other's."""
    bad_gather(torch.device("cuda:1"))
    torch.cuda.synchronize(1)
    torch_ops.gather(torch.ones(3, device="cuda:0"), torch.tensor([0], device="cuda:0"))
    torch_ops.check_errors(0)
    with pytest.raises(IndexError, match=BAD_GATHER + r" \(Found on cuda:1"):
        torch_ops.check_errors()
    bad_gather(torch.device("cuda:1"))
    with pytest.raises(IndexError, match=r"\(Found on cuda:1"), torch.cuda.device(1):
        torch_ops.check_errors("cuda")
