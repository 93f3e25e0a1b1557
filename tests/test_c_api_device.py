"""Calls of libtorch_ops_c with device pointers."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from c_library import DEVICE, HOST, LIBRARY, VALUES, status_name

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
        dtype = VALUES[str(first.dtype).removeprefix("torch.").upper()]
        index_type = VALUES["INDEX_" + str(index.dtype).removeprefix("torch.").upper()]
        status = getattr(LIBRARY, op)(
            *(tensor.data_ptr() for tensor in tensors),
            *(batch, axis_size, index.shape[1], inner, dtype, index_type, DEVICE),
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
                code = VALUES[str(dtype).removeprefix("torch.").upper()]
                for name in ("relu", "sigmoid"):
                    pointers = (whole[start:].data_ptr(), y.data_ptr())
                    call = getattr(LIBRARY, name)
                    time = ctypes.c_float()
                    assert call(*pointers, y.numel(), code, DEVICE, None, time) == 0
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
