"""Calls of libtorch_ops_c with device pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from c_calls import DETERMINISTIC, ONTO_RESULT, Caller, CError, code, index_code
from c_interface import DEVICE, HOST, LIBRARY, VALUES, status_name

import torch_ops_host as host

pytestmark = pytest.mark.skipif(host.device_count() == 0, reason="needs a GPU")


class TestDevicePointers:
    @pytest.fixture(params=range(min(host.device_count(), 2)), ids="cuda{}".format)
    def gpu(self, request: pytest.FixtureRequest) -> torch.device:
        return torch.device("cuda", request.param)

    def rows(self, op: str, *tensors: torch.Tensor, more: Any = (), **options: Any) -> str:
        """A call on [B, M, D], [B, N], [B, N, D] of gather, or with the first and last changed."""
        first, index, last = tensors
        table = first if op == "batch_gather" else last
        batch, axis_size, inner = table.shape
        status = getattr(LIBRARY, op)(
            *(tensor.data_ptr() for tensor in tensors),
            *(batch, axis_size, index.shape[1], inner, code(first), index_code(index), DEVICE),
            options.get("stream"),
            *more,
            options.get("time"),
        )
        return status_name(status)

    @pytest.mark.parametrize("timed", [False, True])
    @pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize(
        "dtype",
        [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64],
    )
    @pytest.mark.parametrize("inner", [1, 2, 3, 4, 8, 17, 64, 100])
    def test_rows(
        self,
        gpu: torch.device,
        inner: int,
        dtype: torch.dtype,
        index_dtype: torch.dtype,
        timed: bool,
    ) -> None:
        source = torch.randint(0, 5, (3, 500, inner), device=gpu).to(dtype)
        index = torch.randint(0, 500, (3, 2001), device=gpu).to(index_dtype)
        output = torch.empty(3, 2001, inner, device=gpu, dtype=dtype)
        stream = torch.cuda.current_stream(gpu).cuda_stream
        time = ctypes.c_float(-1) if timed else None
        assert (
            self.rows("batch_gather", source, index, output, time=time, stream=stream) == "SUCCESS"
        )
        assert time is None or time.value > 0
        expanded = index.long()[..., None].expand(-1, -1, inner)
        assert torch.equal(output, source.gather(1, expanded))
        sums = torch.empty_like(source)
        more = (None, 0)
        result = self.rows("scatter_add", output, index, sums, more=more, time=time, stream=stream)
        assert result == "SUCCESS"
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        wanted = torch.zeros(source.shape, dtype=wide, device=gpu)
        wanted = wanted.scatter_add_(1, expanded, output.to(wide)).to(dtype)
        assert torch.equal(sums, wanted)
        assert LIBRARY.check_errors(stream) == 0

    @pytest.mark.sanitizer
    def test_unaligned_rows_and_activations(self, gpu: torch.device) -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            for start in (0, 1, 3):
                whole = torch.randn(3 * 40 * 4 + 8, device=gpu).to(dtype)
                source = whole[start : start + 3 * 40 * 4].view(3, 40, 4)
                index = torch.randint(0, 40, (3, 70), device=gpu)
                output = torch.empty(3 * 70 * 4 + 8, device=gpu, dtype=dtype)
                output = output[start : start + 3 * 70 * 4].view(3, 70, 4)
                torch.cuda.synchronize(gpu)
                assert self.rows("batch_gather", source, index, output) == "SUCCESS"
                assert LIBRARY.check_errors(None) == 0
                expanded = index[..., None].expand(-1, -1, 4)
                assert torch.equal(output, source.gather(1, expanded))
                y = torch.empty_like(whole)[start:]
                for name in ("relu", "sigmoid"):
                    pointers = (whole[start:].data_ptr(), y.data_ptr())
                    call = getattr(LIBRARY, name)
                    time = ctypes.c_float()
                    assert call(*pointers, y.numel(), code(y), DEVICE, None, time) == 0
                    wanted = getattr(torch, name)(whole[start:].double())
                    torch.testing.assert_close(y.double(), wanted, rtol=8e-3, atol=1e-7)

    @pytest.mark.sanitizer
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
    @pytest.mark.parametrize("inner", [1, 2, 4, 8, 64])
    def test_sums_at_a_multiple_of_an_element(
        self, gpu: torch.device, inner: int, dtype: torch.dtype
    ) -> None:
        """What is summed is aligned, so that the ways with wide atomics would be taken."""
        values = torch.randint(0, 5, (3, 72, inner), device=gpu).to(dtype)
        index = torch.randint(0, 40, (3, 72), device=gpu)
        expanded = index[..., None].expand(-1, -1, inner)
        for start in (0, 1, 2, 3):
            whole = torch.full((3 * 40 * inner + 8,), 7, device=gpu, dtype=dtype)
            sums = whole[start : start + 3 * 40 * inner].view(3, 40, inner)
            stream = torch.cuda.current_stream(gpu).cuda_stream
            done = self.rows("scatter_add", values, index, sums, more=(None, 0), stream=stream)
            assert done == "SUCCESS"
            assert LIBRARY.check_errors(stream) == 0
            assert torch.equal(sums, torch.zeros_like(sums).scatter_add_(1, expanded, values))
            assert (whole[:start] == 7).all()
            assert (whole[start + sums.numel() :] == 7).all()

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.int32, torch.float64])
    def test_elements_at_a_multiple_of_an_element(
        self, gpu: torch.device, dtype: torch.dtype
    ) -> None:
        """Of small tables, which are held in shared memory."""
        source = torch.randint(0, 200, (64, 1024, 1), device=gpu).to(dtype)
        for entries, start in [(16384, 0), (16384, 1), (16403, 1), (16403, 3)]:
            index = torch.randint(0, 1024, (64, entries), device=gpu)
            whole = torch.full((64 * entries + 8,), 7, device=gpu, dtype=dtype)
            output = whole[start : start + 64 * entries].view(64, entries, 1)
            stream = torch.cuda.current_stream(gpu).cuda_stream
            done = self.rows("batch_gather", source, index, output, stream=stream)
            assert done == "SUCCESS"
            assert LIBRARY.check_errors(stream) == 0
            assert torch.equal(output, source.gather(1, index[..., None]))
            assert (whole[:start] == 7).all()
            assert (whole[start + output.numel() :] == 7).all()

    def test_an_index_out_of_range(self, gpu: torch.device) -> None:
        source = torch.randn(2, 50, 3, device=gpu)
        index = torch.randint(0, 50, (2, 300), device=gpu)
        index[1, 17] = 50
        output, sums = torch.empty(2, 300, 3, device=gpu), torch.empty_like(source)
        torch.cuda.synchronize(gpu)
        # With a time the call waits, and tells itself.
        time = ctypes.c_float()
        assert self.rows("batch_gather", source, index, output, time=time) == "INDEX_OUT_OF_RANGE"
        assert "index[317] is 50, out of range for an axis of size 50" in LIBRARY.error()
        assert not output[1, 17].any()
        assert torch.equal(output[0], source[0, index[0]])
        # Without one, check_errors does, once; and calls in between are not troubled.
        assert self.rows("batch_gather", source, index, output) == "SUCCESS"
        good = index.clamp(max=49)
        assert self.rows("batch_gather", source, good, output, time=time) == "SUCCESS"
        with torch.cuda.device(gpu):
            assert status_name(LIBRARY.check_errors(None)) == "INDEX_OUT_OF_RANGE"
            assert "index[317] is 50" in LIBRARY.error()
            assert LIBRARY.check_errors(None) == 0
            more = (None, 0)
            result = self.rows("scatter_add", output, index, sums, more=more)
            assert result == "SUCCESS"
            assert status_name(LIBRARY.check_errors(None)) == "INDEX_OUT_OF_RANGE"

    def test_workspace(self, gpu: torch.device) -> None:
        values = torch.ones(1, 5000, 1, device=gpu, dtype=torch.float16)
        index = torch.zeros(1, 5000, device=gpu, dtype=torch.int64)
        sums = torch.empty(1, 3, 1, device=gpu, dtype=torch.float16)
        need = ctypes.c_int64(-1)
        sizes = (1, 3, 1, VALUES["FLOAT16"])
        assert LIBRARY.scatter_add_workspace(*sizes, DEVICE, ctypes.byref(need)) == 0
        assert need.value == 12
        assert LIBRARY.scatter_add_workspace(*sizes, HOST, ctypes.byref(need)) == 0
        assert need.value == 0
        space = torch.empty(16, device=gpu, dtype=torch.uint8)
        torch.cuda.synchronize(gpu)
        tensors = (values, index, sums)
        for given, bytes_, status in (
            (space.data_ptr(), 12, "SUCCESS"),
            (space.data_ptr(), 11, "SMALL_WORKSPACE"),
            (space.data_ptr() + 4, 12, "MISALIGNED_POINTER"),
            (None, 0, "SUCCESS"),
        ):
            sums.fill_(-1)
            torch.cuda.synchronize(gpu)
            assert self.rows("scatter_add", *tensors, more=(given, bytes_)) == status
            torch.cuda.synchronize(gpu)
            assert sums.flatten().tolist() == ([5000, 0, 0] if status == "SUCCESS" else [-1] * 3)

    def test_pageable_memory_is_refused(self, gpu: torch.device) -> None:
        source = torch.randn(1, 50, 3, device=gpu)
        index = torch.zeros(1, 3, device=gpu, dtype=torch.int64)
        output = torch.empty(1, 3, 3)
        assert self.rows("batch_gather", source, index, output) == "WRONG_MEMORY"
        assert "output must be in memory that the device can reach" in LIBRARY.error()
        pinned = output.pin_memory()
        time = ctypes.c_float()
        assert self.rows("batch_gather", source, index, pinned, time=time) == "SUCCESS"
        assert torch.equal(pinned[0, 0], source[0, 0].cpu())

    @pytest.mark.skipif(host.device_count() < 2, reason="needs two GPUs")
    def test_arrays_of_two_devices(self, gpu: torch.device) -> None:
        source = torch.randn(1, 50, 3, device="cuda:0")
        index = torch.zeros(1, 3, device="cuda:1", dtype=torch.int64)
        output = torch.empty(1, 3, 3, device="cuda:0")
        assert self.rows("batch_gather", source, index, output) == "WRONG_MEMORY"
        assert "index is on device 1" in LIBRARY.error()

    def test_a_graph_is_captured(self, gpu: torch.device) -> None:
        source = torch.randn(1, 50, 3, device=gpu)
        index = torch.zeros(1, 3, device=gpu, dtype=torch.int64)
        output = torch.empty(1, 3, 3, device=gpu)
        with torch.cuda.device(gpu):
            assert self.rows("batch_gather", source, index, output) == "SUCCESS"
            graph = torch.cuda.CUDAGraph()
            # torch's own capture stream stays on the device that first captured a graph.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(gpu)):
                stream = torch.cuda.current_stream().cuda_stream
                assert self.rows("batch_gather", source, index, output, stream=stream) == "SUCCESS"
            index.fill_(7)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(output[0, 1], source[0, 7])

    def tables(self, gpu: torch.device, size: int) -> tuple[torch.Tensor, ...]:
        """Elements, and picks of them, for calls whose blocks hold `size` elements."""
        source = torch.randint(0, 100, (64, size, 1), device=gpu, dtype=torch.int32)
        index = torch.randint(0, size, (64, 2**19), device=gpu)
        output = torch.empty(64, 2**19, 1, device=gpu, dtype=torch.int32)
        return source, index, output, torch.empty_like(source)

    def gather_and_add(self, tensors: tuple[torch.Tensor, ...], stream: int | None) -> None:
        source, index, output, sums = tensors
        done = self.rows("batch_gather", source, index, output, stream=stream)
        assert done == "SUCCESS", LIBRARY.error()
        more = (None, 0)
        done = self.rows("scatter_add", output, index, sums, more=more, stream=stream)
        assert done == "SUCCESS", LIBRARY.error()

    def check(self, tensors: tuple[torch.Tensor, ...]) -> None:
        source, index, output, sums = tensors
        picked = source.gather(1, index[..., None])
        assert torch.equal(output, picked)
        wanted = torch.zeros_like(source).scatter_add_(1, index[..., None], picked)
        assert torch.equal(sums, wanted)

    def test_a_graph_of_large_and_small_tables(self, gpu: torch.device) -> None:
        """Both have more shared memory than a kernel has unasked: the second must not lower it."""
        calls = [self.tables(gpu, size) for size in (50_000, 15_000)]
        with torch.cuda.device(gpu):
            self.gather_and_add(self.tables(gpu, 10_000), None)  # loads the kernels
            assert LIBRARY.check_errors(None) == 0
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(gpu)):
                stream = torch.cuda.current_stream().cuda_stream
                for call in calls:
                    self.gather_and_add(call, stream)
            graph.replay()
            torch.cuda.synchronize()
        for call in calls:
            self.check(call)

    def test_threads_with_large_and_small_tables(self, gpu: torch.device) -> None:
        def work(size: int) -> None:
            call = self.tables(gpu, size)
            stream = torch.cuda.Stream(gpu)
            torch.cuda.synchronize(gpu)
            for _ in range(50):
                self.gather_and_add(call, stream.cuda_stream)
            torch.cuda.synchronize(gpu)
            self.check(call)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, [50_000, 15_000, 40_000, 20_000, 30_000, 13_000]))

    def test_threads_have_their_own_errors(self, gpu: torch.device) -> None:
        source = torch.randn(1, 50, 3, device=gpu)

        def work(n: int) -> None:
            index = torch.full((1, 100), n, device=gpu)
            index[0, n] = 60 + n
            output = torch.empty(1, 100, 3, device=gpu)
            stream = torch.cuda.Stream(gpu)
            torch.cuda.synchronize(gpu)
            for _ in range(20):
                pointer = stream.cuda_stream
                done = self.rows("batch_gather", source, index, output, stream=pointer)
                assert done == "SUCCESS"
                assert status_name(LIBRARY.check_errors(pointer)) == "INDEX_OUT_OF_RANGE"
                assert f"index[{n}] is {60 + n}," in LIBRARY.error()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))

    def test_a_thread_has_no_errors_of_one_that_ended(self, gpu: torch.device) -> None:
        """Not even where the kernels of that one run later."""
        source = torch.randn(1, 50, 3, device=gpu)
        good = torch.zeros(1, 2_000_000, dtype=torch.int64, device=gpu)
        bad = good.clone()
        bad[0, -1] = 50
        outputs = [torch.empty(1, 2_000_000, 3, device=gpu) for _ in range(2)]
        streams = [torch.cuda.Stream(gpu) for _ in range(2)]
        torch.cuda.synchronize(gpu)

        def work(index: torch.Tensor, number: int) -> str:
            pointer = streams[number].cuda_stream
            assert self.rows("batch_gather", source, index, outputs[number], stream=pointer) == (
                "SUCCESS"
            )
            return status_name(LIBRARY.check_errors(pointer)) if number == 0 else ""

        def in_a_thread(*arguments: Any) -> str:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(work, *arguments).result()

        for _ in range(200):
            in_a_thread(bad, 1)
            assert in_a_thread(good, 0) == "SUCCESS", LIBRARY.error()
            assert in_a_thread(bad, 0) == "INDEX_OUT_OF_RANGE"

    def test_the_default_stream_is_that_of_the_call(self, gpu: torch.device) -> None:
        """Whichever device is current when errors are asked for."""
        source = torch.randn(1, 50, 3, device=gpu)
        index = torch.zeros(1, 20_000_000, dtype=torch.int64, device=gpu)
        index[0, -1] = 50
        output = torch.empty(1, 20_000_000, 3, device=gpu)
        torch.cuda.synchronize(gpu)
        for _ in range(20):
            assert self.rows("batch_gather", source, index, output) == "SUCCESS"
            assert status_name(LIBRARY.check_errors(None)) == "INDEX_OUT_OF_RANGE"
            assert LIBRARY.check_errors(None) == 0


# ---- By an index, with modes; tests/c_library/test_c_api_index.py has the results

# Batches, entries, rows and columns, for which the library chooses different ways of summing.
WAYS = [
    (1, 300, 20, 1),
    (1, 200_000, 1000, 1),
    (64, 20_000, 3000, 1),
    (2, 50_000, 7, 3),
    (1, 40, 5_000_000, 1),
    (1, 20_000, 300, 64),
    (1, 3000, 100_000, 200),
    (1, 500_000, 400_000, 2),
    (500, 100, 30, 4),
]


def on_device(timed: bool = False) -> Caller:
    return Caller("DEVICE", torch.cuda.current_stream().cuda_stream, timed)


def sums_of(values: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """In float64 or int64."""
    wide = torch.float64 if values.dtype.is_floating_point else torch.int64
    expanded = index.long()[..., None].expand(values.shape)
    zeros = torch.zeros(values.shape[0], size, values.shape[2], dtype=wide, device=values.device)
    return zeros.scatter_add_(1, expanded, values.to(wide))


@pytest.mark.parametrize("flags", [0, DETERMINISTIC, ONTO_RESULT, DETERMINISTIC | ONTO_RESULT])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int16])
@pytest.mark.parametrize("shape", WAYS, ids=str)
def test_ways_of_sums(shape: tuple[int, int, int, int], dtype: torch.dtype, flags: int) -> None:
    """Of ones and zeros; 16-bit floats hold the sums of ones up to 2048."""
    batch, entries, size, inner = shape
    values = (torch.rand(batch, entries, inner, device="cuda") < 1e-3).to(dtype)
    values[:, ::7] = 1 if size > 100 else 0
    index = torch.randint(0, size, (batch, entries), device="cuda")
    out = torch.ones(batch, size, inner, device="cuda", dtype=dtype)
    wanted = sums_of(values, index, size) + (1 if flags & ONTO_RESULT else 0)
    on_device().scatter(values, index, size, flags=flags, out=out)
    assert torch.equal(out, wanted.to(dtype))


def same_bits(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    first = compute()
    for _ in range(5):
        assert torch.equal(compute(), first)
    return first


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", WAYS, ids=str)
def test_deterministic_sums(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    batch, entries, size, inner = shape
    caller = on_device()
    values = torch.randn(batch, entries, inner, device="cuda", dtype=dtype)
    index = torch.randint(0, size, (batch, entries), device="cuda", dtype=torch.int32)
    out = torch.randn(batch, size, inner, device="cuda", dtype=dtype)
    wanted = sums_of(values, index, size)
    rtol, atol = 2 * torch.finfo(dtype).eps, 1e-9 if dtype == torch.float64 else 1e-3

    def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=atol)

    close(same_bits(lambda: caller.scatter(values, index, size, flags=DETERMINISTIC)), wanted)
    onto = DETERMINISTIC | ONTO_RESULT
    sums = same_bits(lambda: caller.scatter(values, index, size, flags=onto, out=out.clone()))
    close(sums, wanted + out.double())
    means = same_bits(lambda: caller.scatter(values, index, size, "MEAN", flags=DETERMINISTIC))
    counts = sums_of(torch.ones_like(values), index, size).clamp_min(1)
    close(means, wanted / counts)
    with caller.plan(index, size) as plan:
        close(same_bits(lambda: caller.plan_scatter(plan, values, size)), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_deterministic_sums_of_elements(dtype: torch.dtype) -> None:
    values = torch.randn(3, 50_000, 5, device="cuda", dtype=dtype)
    index = torch.randint(0, 40, (3, 50_000, 5), device="cuda")
    sums = same_bits(
        lambda: on_device().scatter_elements_add(values, index, 40, flags=DETERMINISTIC)
    )
    wanted = torch.zeros(3, 40, 5, device="cuda", dtype=torch.float64)
    wanted.scatter_add_(1, index, values.double())
    torch.testing.assert_close(sums.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


@pytest.mark.sanitizer
@pytest.mark.parametrize("bytes_", [0, 16, 100, 4096, 1 << 22])
def test_a_workspace_of_any_size(bytes_: int) -> None:
    """What does not fit comes from the stream's pool; nothing is written beside it."""
    stream = torch.cuda.current_stream().cuda_stream
    for batch, entries, size, inner in WAYS:
        if batch * size * inner * 4 > 1 << 22:
            continue
        values = torch.ones(batch, entries, inner, device="cuda", dtype=torch.int16)
        index = torch.randint(0, size, (batch, entries), device="cuda")
        sums = torch.empty(batch, size, inner, device="cuda", dtype=torch.int16)
        need = max(bytes_, 4 * sums.numel())
        space = torch.full((need + 256,), 7, device="cuda", dtype=torch.uint8)
        status = LIBRARY.scatter_add(
            *(values.data_ptr(), index.data_ptr(), sums.data_ptr()),
            *(batch, size, entries, inner, VALUES["INT16"], index_code(index), DEVICE, stream),
            *(space.data_ptr(), need, None),
        )
        assert status_name(status) == "SUCCESS", LIBRARY.error()
        assert LIBRARY.check_errors(stream) == 0
        assert torch.equal(sums, sums_of(values, index, size).short())
        assert (space[need:] == 7).all()


def test_a_graph_of_reductions() -> None:
    values = torch.randint(0, 2, (1, 5000, 3), device="cuda") * 2.0 - 1
    index = torch.randint(0, 50, (1, 5000), device="cuda")
    elements = torch.randint(0, 50, (1, 5000, 3), device="cuda")
    outs = [torch.empty(1, 50, 3, device="cuda") for _ in range(7)]
    reductions = ("SUM", "MEAN", "PROD", "AMAX")

    class Quiet(Caller):
        """Calls without a wait, as a capture needs them."""

        def call(self, name: str, *arguments: Any) -> None:
            status = getattr(LIBRARY, name)(*arguments, self.stream, None)
            assert status == 0, LIBRARY.error()

    with on_device().plan(index, 50) as plan:

        def launch(caller: Caller) -> None:
            for out, reduce in zip(outs, reductions, strict=False):
                caller.scatter(values, index, 50, reduce, flags=DETERMINISTIC, out=out)
            caller.scatter(values, index, 50, out=outs[4])
            caller.plan_scatter(plan, values, 50, out=outs[5])
            arguments = (values.data_ptr(), elements.data_ptr(), outs[6].data_ptr())
            sizes = (1, 50, 5000, 3, VALUES["FLOAT32"], VALUES["INDEX_INT64"])
            caller.call("scatter_elements_add", *arguments, *sizes, 0, 0, DEVICE)

        launch(on_device())  # loads the kernels, and makes the thread's records
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(Quiet("DEVICE", torch.cuda.current_stream().cuda_stream))
            # A plan waits: it is refused, and the capture goes on.
            other = ctypes.c_void_p()
            status = LIBRARY.plan_create(
                *(index.data_ptr(), 1, 50, 5000, index_code(index), DEVICE),
                *(torch.cuda.current_stream().cuda_stream, ctypes.byref(other)),
            )
            assert status_name(status) == "INVALID_ARGUMENT"
            assert "stream is capturing a CUDA graph" in LIBRARY.error()
        values.neg_()[:, ::3] = 1
        graph.replay()
        torch.cuda.synchronize()
        assert LIBRARY.check_errors(None) == 0
        replayed = [out.clone() for out in outs]
        launch(on_device())
        for out, again in zip(outs, replayed, strict=True):
            assert torch.equal(out, again)


def test_threads_with_one_plan() -> None:
    index = torch.randint(0, 3000, (4, 20_000), device="cuda")
    with on_device().plan(index, 3000) as plan:

        def work(seed: int) -> None:
            stream = torch.cuda.Stream()
            caller = Caller("DEVICE", stream.cuda_stream)
            with torch.cuda.stream(stream):
                values = torch.full((4, 20_000, 2), float(seed), device="cuda")
                wanted = sums_of(values, index, 3000).float()
                for _ in range(20):
                    assert torch.equal(caller.plan_scatter(plan, values, 3000), wanted)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(1, 9)))


def test_memory_that_a_plan_cannot_use() -> None:
    index = torch.randint(0, 30, (1, 200), device="cuda")
    with on_device().plan(index, 30) as plan:
        pageable = torch.ones(1, 200, 1)
        with pytest.raises(CError, match="WRONG_MEMORY: torch_ops_plan_scatter: values must be in"):
            on_device().plan_scatter(plan, pageable, 30)
        if host.device_count() > 1:
            elsewhere = torch.ones(1, 200, 1, device="cuda:1")
            with pytest.raises(CError, match=r"WRONG_MEMORY: .* on one device, but values is on"):
                on_device().plan_scatter(plan, elsewhere, 30)
        assert on_device().plan_scatter(plan, pageable.cuda(), 30).sum() == 200
    with pytest.raises(CError, match="WRONG_MEMORY"), on_device().plan(index.cpu(), 30):
        pass


def test_arrays_that_do_not_fit_the_device() -> None:
    """Of calls that copy all of them there; the next call is not troubled."""
    caller = Caller("HOST_GPU")
    values, index = torch.ones(1, 5000, 2), torch.zeros(1, 5000, dtype=torch.int64)
    host.set_device_memory_limit(50_000)
    try:
        with pytest.raises(CError, match=r"OUT_OF_MEMORY: .* of device memory for its arrays, but"):
            caller.scatter(values, index, 3)
    finally:
        host.set_device_memory_limit(0)
    assert caller.scatter(values, index, 3).flatten().tolist() == [5000, 5000, 0, 0, 0, 0]


def test_plans_give_their_memory_back() -> None:
    index = torch.zeros(1, 1_000_000, dtype=torch.int64)
    for memory in ("DEVICE", "HOST_GPU"):
        caller = Caller(memory)
        placed = caller.place(index)
        bad = caller.place(index - 1)
        with caller.plan(placed, 5):
            pass
        taken = []
        for _ in range(10):  # other processes may take memory of the device in the meantime
            torch.cuda.synchronize()
            free = torch.cuda.mem_get_info()[0]
            for _ in range(50):  # of 16 MB each
                with caller.plan(placed, 5):
                    pass
                with pytest.raises(CError, match="INDEX_OUT_OF_RANGE"), caller.plan(bad, 5):
                    pass
            torch.cuda.synchronize()
            taken.append(free - torch.cuda.mem_get_info()[0])
            if taken[-1] < 64 << 20:
                break
        assert min(taken) < 64 << 20
