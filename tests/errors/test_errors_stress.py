"""Errors of many threads, streams, plans and CUDA graphs at once.

Each bad call has a value of its own in its index, so that an error tells whose it is.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import torch_ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

THREADS = 6
ROWS = 50
GUARD = 64
# A minute in all, and a few seconds in every run.
durations = pytest.mark.parametrize(
    "seconds", [1, pytest.param(12, marks=pytest.mark.slow)], ids=str
)


@pytest.fixture(autouse=True)
def error_mode() -> Iterator[None]:
    before = torch_ops.get_error_mode()
    torch_ops.set_error_mode("async")
    torch_ops.check_errors()
    yield
    torch_ops.set_error_mode(before)


@dataclass
class Work:
    """What one thread calls with; it makes nothing on the device while others capture."""

    source: Tensor = field(
        default_factory=lambda: torch.randint(9, (3, ROWS, 8), device="cuda").float()
    )
    index: Tensor = field(default_factory=lambda: torch.randint(ROWS, (3000,), device="cuda"))
    bad: Tensor = field(init=False)
    rows: Tensor = field(init=False)
    added: Tensor = field(init=False)
    guarded: Tensor = field(init=False)
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.bad = self.index.clone()
        self.rows = self.source.index_select(1, self.index)
        self.added = torch.zeros_like(self.source).index_add_(1, self.index, self.rows)
        self.guarded = torch.zeros(self.source.numel() + 2 * GUARD, device="cuda")
        self.sums = self.guarded[GUARD:-GUARD].view_as(self.source)
        torch.cuda.synchronize()

    def calls(self) -> list[Callable[[Tensor], object]]:
        return [
            lambda index: torch_ops.gather(self.source, index, dim=1),
            lambda index: torch_ops.scatter_add(self.rows, index, ROWS, dim=1),
            lambda index: torch_ops.scatter_add(self.rows, index, ROWS, dim=1, deterministic=True),
            lambda index: torch_ops.scatter_add_(self.sums, self.rows, index, dim=1),
        ]

    def break_index(self, value: int) -> Tensor:
        """Most entries, so that a kernel still meets some after the first was raised."""
        self.bad[5:].fill_(value)
        return self.bad

    def check(self, call: int) -> None:
        """A good call: that it does not raise, and what it gives."""
        self.sums.zero_()
        result = self.calls()[call](self.index)
        assert isinstance(result, Tensor)
        torch.testing.assert_close(result, self.rows if call == 0 else self.added)

    def check_guards(self) -> None:
        assert not self.guarded[:GUARD].any()
        assert not self.guarded[-GUARD:].any()


values = itertools.count(10_000)  # of bad entries; next() of it is atomic


def value_of(error: IndexError) -> int:
    found = re.search(r"\] is (\d+), out of range", str(error))
    assert found, str(error)
    return int(found[1])


def is_earlier(error: IndexError) -> bool:
    return "by an earlier call" in str(error)


def warm_up() -> None:
    """Loads the kernels, which may not be done while a graph is captured."""
    work = Work()
    for call in range(len(work.calls())):
        work.check(call)
    work.check_guards()
    work.break_index(0)
    plan = torch_ops.gather_plan(work.index, ROWS, dim=1)
    torch.testing.assert_close(torch_ops.scatter_add(work.rows, plan), work.added)


def run_threads(seconds: float, *bodies: Callable[[], Callable[[], object]]) -> None:
    """Prepares all, then calls each one's function again and again, on a thread and a stream."""
    failed: list[BaseException] = []
    streams = [torch.cuda.Stream() for _ in bodies]
    steps = [body() for body in bodies]
    torch.cuda.synchronize()
    end = time.monotonic() + seconds

    def run(stream: torch.cuda.Stream, step: Callable[[], object]) -> None:
        try:
            with torch.cuda.stream(stream):
                while time.monotonic() < end and not failed:
                    step()
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=arguments)
        for arguments in zip(streams, steps, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def waiting_calls() -> Callable[[], object]:
    """In sync mode: each call raises its own error, and none another's."""
    work = Work()
    rounds = itertools.count()

    def step() -> None:
        call = next(rounds) % len(work.calls())
        work.check(call)
        value = next(values)
        with pytest.raises(IndexError) as raised:
            work.calls()[call](work.break_index(value))
        assert value_of(raised.value) == value
        assert not is_earlier(raised.value)
        work.check_guards()

    return step


def plans() -> Callable[[], object]:
    """A plan of a bad index does not exist, in either mode."""
    work = Work()

    def step() -> None:
        plan = torch_ops.gather_plan(work.index, ROWS, dim=1)
        torch.testing.assert_close(torch_ops.scatter_add(work.rows, plan), work.added)
        value = next(values)
        with pytest.raises(IndexError, match=rf"^gather_plan: index\[\d+\] is {value}, .*\.$"):
            torch_ops.gather_plan(work.break_index(value), ROWS, dim=1)

    return step


@durations
def test_each_call_that_waits_raises_its_own(seconds: int) -> None:
    torch_ops.set_error_mode("sync")
    run_threads(seconds, *[waiting_calls] * THREADS, plans)
    torch_ops.check_errors()


@durations
def test_no_bad_plan_exists(seconds: int) -> None:
    run_threads(seconds, *[plans] * THREADS)
    torch_ops.check_errors()


class Reports:
    """The bad calls that do not wait, and what was raised of them."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.raised: list[int] = []

    def take(self, call: Callable[[], object]) -> bool:
        """Does the call raise? Then it has done nothing, and the error is of a bad one begun."""
        try:
            call()
        except IndexError as raised:
            error = raised
        else:
            return False
        assert is_earlier(error)
        value = value_of(error)
        assert value in self.begun
        self.raised.append(value)
        return True

    def end(self) -> None:
        self.take(torch_ops.check_errors)
        torch_ops.check_errors()
        assert len(set(self.raised)) == len(self.raised)  # none is raised twice
        assert self.begun
        assert self.raised
        # With nobody beside it each bad call is reported.
        work = Work()
        for call in work.calls():
            value = next(values)
            call(work.break_index(value))
            with pytest.raises(IndexError, match=f"is {value}, out of range"):
                torch_ops.check_errors()
            torch_ops.check_errors()


def calls_that_go_on(reports: Reports) -> Callable[[], Callable[[], object]]:
    def begin() -> Callable[[], object]:
        work = Work()
        rounds = itertools.count()

        def step() -> None:
            number = next(rounds)
            call = number % len(work.calls())
            reports.take(lambda: work.check(call))
            if number % 3 == 0:
                value = next(values)
                bad = work.break_index(value)
                # Until it has begun: one that raises an earlier error has not.
                reports.begun.add(value)
                while reports.take(lambda: work.calls()[call](bad)):
                    pass
            if number % 7 == 0:
                reports.take(torch_ops.check_errors)
            work.check_guards()

        return step

    return begin


@durations
def test_calls_that_do_not_wait(seconds: int) -> None:
    reports = Reports()
    run_threads(seconds, *[calls_that_go_on(reports)] * THREADS)
    reports.end()


def captures() -> Callable[[], object]:
    """Graphs of good calls, captured while others fail, and their replays."""
    work = Work()
    side = torch.cuda.Stream()

    def step() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            rows = torch_ops.gather(work.source, work.index, dim=1)
            time.sleep(0.002)  # so that others raise meanwhile
            sums = torch_ops.scatter_add(rows, work.index, ROWS, dim=1)
        graph.replay()
        torch.testing.assert_close(rows, work.rows)
        torch.testing.assert_close(sums, work.added)
        graph.reset()

    return step


@durations
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_no_capture_is_ended_by_an_error(mode: str, seconds: int) -> None:
    warm_up()
    torch_ops.set_error_mode(mode)
    gc.disable()  # to free a graph while another is captured would end that
    try:
        if mode == "sync":
            run_threads(seconds / 2, captures, *[waiting_calls] * 3, plans)
            torch_ops.check_errors()
        else:
            reports = Reports()
            run_threads(seconds / 2, captures, *[calls_that_go_on(reports)] * 3)
            reports.end()
    finally:
        gc.enable()


def test_an_error_is_raised_while_another_thread_captures() -> None:
    """By the next call, by check_errors and by a call that waits: the capture goes on."""
    warm_up()
    work = Work()
    begun, end = threading.Event(), threading.Event()
    captured: list[object] = []

    def capture() -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                first = torch_ops.gather(work.source, work.index, dim=1)
                begun.set()
                end.wait(60)
                second = torch_ops.gather(work.source, work.index, dim=1)
            captured.extend((graph, first, second))
        except BaseException as error:
            captured.append(error)
            begun.set()

    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait()
    try:
        for raises in (lambda: work.calls()[0](work.index), torch_ops.check_errors):
            value = next(values)
            work.calls()[0](work.break_index(value))
            torch.cuda.current_stream().synchronize()
            with pytest.raises(IndexError, match=f"is {value}, out of range.*by an earlier call"):
                raises()
        torch_ops.check_errors()
        with pytest.raises(IndexError, match=r"is \d+, out of range.*\.$"):
            torch_ops.gather_plan(work.bad, ROWS)
    finally:
        end.set()
        thread.join()
    graph, *outputs = captured
    assert isinstance(graph, torch.cuda.CUDAGraph), graph
    graph.replay()
    for output in outputs:
        assert isinstance(output, Tensor)
        assert torch.equal(output, work.rows)


def test_a_call_on_an_external_stream_is_waited_for() -> None:
    """One that torch has not made, and that waits for no other."""
    assert torch.version.cuda is not None
    cuda = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")  # torch's own
    made, non_blocking = ctypes.c_void_p(), 1
    assert cuda.cudaStreamCreateWithFlags(ctypes.byref(made), non_blocking) == 0
    work = Work()
    bad = work.break_index(99)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(made.value)):
        torch.cuda._sleep(200_000_000)
        work.calls()[0](bad)
    with pytest.raises(IndexError, match="is 99, out of range"):
        torch_ops.check_errors()
    torch.cuda.synchronize()
    assert cuda.cudaStreamDestroy(made) == 0
    torch_ops.check_errors()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_keys_beyond_the_last_row_are_no_rows(batch: tuple[int, ...]) -> None:
    """Of a plan that has them all the same: neither the next slice's first row nor one beyond."""
    slices, size, columns = 3, 400, 8
    axis = len(batch) + 1
    # So many entries and rows that they are sorted, or the plan would be left alone.
    index = torch.randint(size, (*batch, 20_000), device="cuda")
    plan = torch_ops.gather_plan(index, size, dim=axis, batch_dims=len(batch))
    values = torch.ones(*batch, slices, 20_000, columns, device="cuda")
    none = size * (batch[0] if batch else 1)  # the first number that is no row of the plan
    for beyond in (0, 7, 2**29, 2**30):
        for count in (1, 5000):
            rows = plan.rows.clone()
            rows[-count:] = none + beyond
            sums = torch.ops.torch_ops.scatter_add.plan(
                values, index, rows, plan.order, size, axis, len(batch)
            )
            numbers = torch.bincount(rows[:-count], minlength=none).view(*batch, 1, size, 1)
            assert torch.equal(sums, numbers.float().expand_as(sums)), (beyond, count)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize("collected", [True, False], ids=["collected", "not collected"])
def test_graphed_callables_a_thousand_times(collected: bool) -> None:
    """Of a small sum, forward and backward: nothing of ours ends a capture.

    Python's collector may: it frees earlier graphs, which is not allowed during a capture, whatever
    the graphs are of. So it runs before each capture, or not at all.
    """

    class Sum(torch.nn.Module):
        def forward(self, rows: Tensor, index: Tensor) -> Tensor:
            return torch_ops.scatter_add(rows, index, 5)

    index = torch.tensor([4, 0, 0, 3, 2, 4, 1], device="cuda")
    gc.disable()
    try:
        for _ in range(1000):
            rows = torch.rand(7, 3, device="cuda", requires_grad=True)
            if collected:
                gc.collect()
            graphed = torch.cuda.make_graphed_callables(Sum(), (rows, index))
            sums = graphed(rows, index)
            torch.testing.assert_close(
                sums, torch.zeros(5, 3, device="cuda").index_add_(0, index, rows)
            )
            (grad,) = torch.autograd.grad(sums, rows, torch.ones_like(sums))
            assert torch.equal(grad, torch.ones_like(rows))
    finally:
        gc.enable()
    torch_ops.check_errors()
