"""libtorch_ops_c as C sees it: its header, its file, every status, device pointers, programs."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from c_library import (
    DEVICE,
    DTYPES,
    FUNCTIONS,
    HEADER,
    HOST,
    HOST_CPU,
    HOST_GPU,
    INDEX_TYPES,
    LIBRARY,
    VALUES,
    has_signature,
    status_name,
)
from toy_project import ROOT

import torch_ops_host as host

FILES = Path(__file__).parent / "c_api"
SONAME = f"libtorch_ops_c.so.{LIBRARY.api_version()}"
FLAGS = [f"-I{host.get_include()}", f"-L{host.get_library_dir()}", "-ltorch_ops_c", "-lm"]
FLAGS += [f"-Wl,-rpath,{host.get_library_dir()}"]
cuda_only = pytest.mark.skipif(host.device_count() == 0, reason="needs a GPU")


def output_of(*command: Any, **options: Any) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        **options,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


# ---- The header and the file


@pytest.mark.parametrize(
    "compiler",
    [
        ["cc", "-x", "c", "-std=c99", "-pedantic"],
        ["cc", "-x", "c", "-std=c17"],
        ["c++", "-x", "c++", "-std=c++11", "-pedantic"],
        ["c++", "-x", "c++", "-std=c++20"],
    ],
    ids=lambda command: command[3],
)
def test_header(compiler: list[str]) -> None:
    output_of(*compiler, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", HEADER)


@needs("nm")
def test_only_the_api_is_exported() -> None:
    lines = output_of("nm", "-D", "--defined-only", host.library_path()).splitlines()
    names = {line.split()[2].split("@")[0] for line in lines}
    assert names - {f"TORCH_OPS_{LIBRARY.api_version()}"} == set(FUNCTIONS)


def test_every_function_is_declared_here_and_for_cython() -> None:
    pxd = (ROOT / "torch_ops_host" / "capi.pxd").read_text()
    declared = set(re.findall(r"\b(torch_ops_\w+)\(", pxd))
    assert declared == set(FUNCTIONS)
    assert all(has_signature(name) for name in FUNCTIONS)
    assert {f"TORCH_OPS_{name}" for name in VALUES} <= set(re.findall(r"\bTORCH_OPS_\w+", pxd))


@needs("readelf")
def test_names_and_dependencies() -> None:
    folder = Path(host.get_library_dir())
    assert (folder / SONAME).read_bytes() == (folder / "libtorch_ops_c.so").read_bytes()
    dynamic = output_of("readelf", "-d", host.library_path())
    assert f"soname: [{SONAME}]" in dynamic
    needed = set(re.findall(r"NEEDED.*\[([\w+-]+)\.so", dynamic))
    assert needed <= {"libstdc++", "libgcc_s", "libc", "libm", "librt", "libdl", "libpthread",
                      "ld-linux-x86-64"}  # fmt: skip


def test_statuses() -> None:
    texts = [LIBRARY.status_string(status) for status in range(17)]
    assert len(set(texts)) == 17
    assert all(b"unknown status" not in text for text in texts)
    for status in (-1, 17, 2**31 - 1):
        assert LIBRARY.status_string(status) == b"an unknown status"


# ---- Calls


class Arrays:
    """A right call of batch_gather and scatter_add, of which tests spoil one argument."""

    def __init__(self) -> None:
        self.source = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
        self.index = np.array([[2, 0], [1, 1]], np.int64)
        self.output = np.full((2, 2, 4), np.nan)

    def call(self, op: str = "batch_gather", **changes: Any) -> str:
        arguments: dict[str, Any] = {
            "from": self.source.ctypes.data,
            "index": self.index.ctypes.data,
            "to": self.output.ctypes.data,
            "batch": 2,
            "axis_size": 3,
            "entries": 2,
            "inner": 4,
            "dtype": DTYPES[np.dtype(np.float64)],
            "index_type": INDEX_TYPES[self.index.dtype],
            "memory": HOST,
            "stream": None,
            **changes,
        }
        more = [None, 0] if op == "scatter_add" else []
        return status_name(getattr(LIBRARY, op)(*arguments.values(), *more, None))


WRONG = [
    ({"from": None}, "NULL_POINTER", "is NULL, but it has"),
    ({"index": None}, "NULL_POINTER", "index is NULL, but it has 32 bytes"),
    ({"to": None}, "NULL_POINTER", "is NULL, but it has"),
    ({"batch": -1}, "NEGATIVE_SIZE", "batch must not be negative, but it is -1"),
    ({"axis_size": -5}, "NEGATIVE_SIZE", "axis_size must not be negative"),
    ({"entries": -(2**63)}, "NEGATIVE_SIZE", "entries must not be negative"),
    ({"inner": -1}, "NEGATIVE_SIZE", "inner must not be negative"),
    ({"axis_size": 2**62}, "SIZE_OVERFLOW", "has 2^63 bytes or more"),
    ({"entries": 2**59}, "SIZE_OVERFLOW", "has 2^63 bytes or more"),
    ({"batch": 2**32, "inner": 2**31}, "SIZE_OVERFLOW", "has 2^63 bytes or more"),
    ({"dtype": 12}, "UNKNOWN_DTYPE", "dtype must be one of"),
    ({"dtype": -1}, "UNKNOWN_DTYPE", "but it is -1"),
    ({"index_type": 2}, "UNKNOWN_INDEX_TYPE", "index_type must be"),
    ({"memory": 4}, "UNKNOWN_MEMORY", "memory must be TORCH_OPS_HOST"),
    ({"memory": -1}, "UNKNOWN_MEMORY", "but it is -1"),
]


@pytest.mark.parametrize("function", ["batch_gather", "scatter_add"])
@pytest.mark.parametrize(("changes", "status", "text"), WRONG, ids=str)
def test_wrong_arguments(function: str, changes: dict[str, Any], status: str, text: str) -> None:
    arrays = Arrays()
    assert arrays.call(function, **changes) == status
    assert LIBRARY.error().startswith(f"torch_ops_{function}: ")
    assert text in LIBRARY.error()
    assert np.isnan(arrays.output).all()  # nothing was written
    if function == "batch_gather":
        assert arrays.call(function) == "SUCCESS"


@pytest.mark.parametrize("function", ["batch_gather", "scatter_add"])
def test_misaligned_pointers(function: str) -> None:
    arrays = Arrays()
    for name, array in (("from", arrays.source), ("index", arrays.index), ("to", arrays.output)):
        assert arrays.call(function, **{name: array.ctypes.data + 4}) == "MISALIGNED_POINTER"
        assert "must be at a multiple of 8 bytes" in LIBRARY.error()
    assert np.isnan(arrays.output).all()


def test_empty_arrays_may_be_null() -> None:
    arrays = Arrays()
    nothing = {"from": None, "index": None, "to": None}
    assert arrays.call(batch=0, **nothing) == "SUCCESS"
    assert arrays.call("scatter_add", batch=0, **nothing) == "SUCCESS"
    assert arrays.call(entries=0, index=None, to=None) == "SUCCESS"
    assert LIBRARY.relu(None, None, 0, VALUES["FLOAT32"], HOST, None, None) == 0


def test_wrong_activations() -> None:
    x = np.ones(4, np.float32)
    at = x.ctypes.data

    def relu(*arguments: Any) -> str:
        return status_name(LIBRARY.relu(*arguments, None, None))

    assert relu(None, at, 4, VALUES["FLOAT32"], HOST) == "NULL_POINTER"
    assert relu(at, None, 4, VALUES["FLOAT32"], HOST) == "NULL_POINTER"
    assert relu(at, at, -4, VALUES["FLOAT32"], HOST) == "NEGATIVE_SIZE"
    assert relu(at, at, 2**62, VALUES["FLOAT32"], HOST) == "SIZE_OVERFLOW"
    assert relu(at, at, 4, VALUES["INT32"], HOST) == "UNSUPPORTED_DTYPE"
    assert relu(at, at, 4, 99, HOST) == "UNKNOWN_DTYPE"
    assert relu(at, at, 4, VALUES["FLOAT32"], 99) == "UNKNOWN_MEMORY"
    assert relu(at + 2, at, 1, VALUES["FLOAT32"], HOST) == "MISALIGNED_POINTER"
    for call in (LIBRARY.relu_backward, LIBRARY.sigmoid_backward):
        status = call(at, None, at, 4, VALUES["FLOAT32"], HOST, None, None)
        assert status_name(status) == "NULL_POINTER"
        assert "output is NULL" in LIBRARY.error()


def test_memory_that_there_is_not() -> None:
    memory = ctypes.c_void_p()
    assert status_name(LIBRARY.host_alloc(2**62, ctypes.byref(memory))) == "OUT_OF_MEMORY"
    assert memory.value is None
    assert status_name(LIBRARY.host_alloc(-1, ctypes.byref(memory))) == "NEGATIVE_SIZE"


@pytest.mark.skipif(host.device_count() > 0, reason="there is a GPU")
@pytest.mark.parametrize("memory", [DEVICE, HOST_GPU])
def test_no_device(memory: int) -> None:
    arrays = Arrays()
    for op in ("batch_gather", "scatter_add"):
        assert arrays.call(op, memory=memory) == "NO_DEVICE"
        assert "a CUDA device is asked for, but" in LIBRARY.error()
    assert np.isnan(arrays.output).all()
    at = arrays.source.ctypes.data
    for call in (LIBRARY.relu, LIBRARY.sigmoid):
        assert status_name(call(at, at, 4, VALUES["FLOAT64"], memory, None, None)) == "NO_DEVICE"
    assert status_name(LIBRARY.hello(1, memory)) == "NO_DEVICE"
    assert LIBRARY.check_errors(None) == 0


def test_errors_are_of_their_thread() -> None:
    def fail(n: int) -> None:
        arrays = Arrays()
        for _ in range(50):
            arrays.index[1, 0] = 1000 + n
            assert arrays.call() == "INDEX_OUT_OF_RANGE"
            assert f"index[2] is {1000 + n}, out of range" in LIBRARY.error()
            position, value, bound = (ctypes.c_int64() for _ in range(3))
            numbers = [ctypes.byref(number) for number in (position, value, bound)]
            assert LIBRARY.last_index_error(*numbers) == 0
            assert (position.value, value.value, bound.value) == (2, 1000 + n, 3)
            arrays.index[1, 0] = n % 3
            assert arrays.call() == "SUCCESS"
            assert (arrays.output[1, 0] == arrays.source[1, n % 3]).all()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(fail, range(16)))
    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(LIBRARY.error).result() == ""


@pytest.mark.parametrize("memory", [HOST, HOST_CPU, *([HOST_GPU] if host.device_count() else [])])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_activations(memory: int, dtype: str) -> None:
    """Beside torch's own, in whose types of storage they come and go."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(1003, generator=generator).to(getattr(torch, dtype)) for _ in range(2))
    code = VALUES[dtype.upper()]
    # The formula's result in float64, rounded; 16 bits are computed in float32.
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    for name in ("relu", "sigmoid"):
        y, grad_input = torch.empty_like(x), torch.empty_like(x)
        forward, backward = getattr(LIBRARY, name), getattr(LIBRARY, f"{name}_backward")
        time = ctypes.c_float(-1)
        assert forward(x.data_ptr(), y.data_ptr(), 1003, code, memory, None, time) == 0
        assert time.value >= 0
        pointers = (grad.data_ptr(), y.data_ptr(), grad_input.data_ptr())
        assert backward(*pointers, 1003, code, memory, None, None) == 0
        wanted = getattr(torch, name)(x.double())
        torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=0)
        slope = (wanted > 0).double() if name == "relu" else y.double() * (1 - y.double())
        wanted = grad.double() * slope
        torch.testing.assert_close(grad_input.double(), wanted, rtol=4 * tolerance, atol=1e-30)


@pytest.mark.parametrize("memory", [HOST_CPU, *([HOST_GPU] if host.device_count() else [])])
def test_rows_of_bfloat16(memory: int) -> None:
    source = torch.randint(-8, 8, (2, 300, 7)).bfloat16()
    index = torch.randint(0, 300, (2, 400))
    output, sums = torch.empty(2, 400, 7).bfloat16(), torch.empty_like(source)
    sizes = (2, 300, 400, 7, VALUES["BFLOAT16"], VALUES["INDEX_INT64"], memory, None)
    pointers = (source.data_ptr(), index.data_ptr(), output.data_ptr())
    assert LIBRARY.batch_gather(*pointers, *sizes, None) == 0
    expanded = index[..., None].expand(-1, -1, 7)
    assert torch.equal(output, source.gather(1, expanded))
    pointers = (output.data_ptr(), index.data_ptr(), sums.data_ptr())
    assert LIBRARY.scatter_add(*pointers, *sizes, None, 0, None) == 0
    wanted = torch.zeros(2, 300, 7).scatter_add_(1, expanded, output.float()).bfloat16()
    assert torch.equal(sums, wanted)


def test_plain_forms() -> None:
    """B=2 and M=1 Mi; larger below."""
    generator = np.random.default_rng(0)
    size, picked = 1 << 20, 1 << 17
    source = generator.standard_normal((2, size)).astype(np.float32)
    index = generator.integers(0, size, (2, picked), np.int32)
    res = np.empty((2, picked), np.float32)
    at = [array.ctypes.data for array in (source, index, res)]
    assert LIBRARY.batch_gather_host(*at, picked, size, 2) >= 0
    assert np.array_equal(res, np.take_along_axis(source, index, 1))
    res[...] = np.nan
    assert LIBRARY.gather_host(*at, picked, size) >= 0
    assert np.array_equal(res[0], source[0, index[0]])
    index[1, 5] = -1
    assert LIBRARY.batch_gather_host(*at, picked, size, 2) == -VALUES["INDEX_OUT_OF_RANGE"]
    assert f"index[{picked + 5}] is -1" in LIBRARY.error()
    assert LIBRARY.gather_host(at[0], None, at[2], 1, 1) == -VALUES["NULL_POINTER"]
    assert LIBRARY.gather_host(*at, -1, 1) == -VALUES["NEGATIVE_SIZE"]
    assert "N must not be negative" in LIBRARY.error()


@cuda_only
@pytest.mark.slow
@pytest.mark.parametrize("pinned", [False, True])
def test_two_batches_of_128_mi(pinned: bool) -> None:
    """B=2, M=128 Mi, N=1 Mi beside torch.gather; benchmarks/c_api.py times the same."""
    size, picked = 1 << 27, 1 << 20
    on_device = torch.rand(2, size, device="cuda")
    index = torch.randint(0, size, (2, picked), device="cuda")
    wanted = on_device.gather(1, index).cpu()
    source = torch.empty(2, size, pin_memory=pinned).copy_(on_device)
    index = index.int().cpu()
    res = torch.empty(2, picked)
    pointers = (source.data_ptr(), index.data_ptr(), res.data_ptr())
    assert LIBRARY.batch_gather_host(*pointers, picked, size, 2) > 0
    assert (res == wanted).sum() == 2_097_152


# ---- Device pointers


@cuda_only
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


# ---- Programs


@needs("c++")
def test_who_computes(tmp_path: Path) -> None:
    program = tmp_path / "choice"
    flags = ["-std=c++17", f"-I{ROOT / 'src'}", f"-I{host.get_include()}"]
    output_of("c++", *flags, FILES / "choice.cpp", "-o", program)
    assert output_of(program) == ""


@needs("cc", "valgrind")
def test_a_c_program_under_valgrind(tmp_path: Path) -> None:
    program = tmp_path / "check"
    output_of("cc", "-std=c99", "-Wall", "-Werror", "-g", FILES / "check.c", "-o", program, *FLAGS)
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full"]
    valgrind += ["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]
    assert "all checks passed" in output_of(*valgrind, program, env=environ)


@needs("cc")
def test_a_c_program(tmp_path: Path) -> None:
    program = tmp_path / "check"
    output_of("cc", "-std=c99", FILES / "check.c", "-o", program, *FLAGS)
    assert "all checks passed" in output_of(program)


@needs("cmake", "cc", "c++")
def test_cmake_finds_it(tmp_path: Path) -> None:
    prefix = Path(host.get_library_dir()).parent
    configure = ["cmake", "-S", FILES / "cmake", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}"]
    output_of(*configure)
    output_of("cmake", "--build", tmp_path)
    assert "all checks passed" in output_of(tmp_path / "from_c")
    assert output_of(tmp_path / "from_cpp") == "success: 3 1\n"
    text = (FILES / "cmake" / "CMakeLists.txt").read_text().replace("0.1", "99.0")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "CMakeLists.txt").write_text(text)
    configure[2] = tmp_path / "newer"
    configure[4] = tmp_path / "newer" / "build"
    result = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "version" in result.stderr


@needs("pkg-config", "cc")
def test_pkg_config_finds_it(tmp_path: Path) -> None:
    environ = {**os.environ, "PKG_CONFIG_PATH": str(Path(host.get_library_dir()) / "pkgconfig")}
    flags = output_of("pkg-config", "--cflags", "--libs", "torch_ops_c", env=environ).split()
    version = output_of("pkg-config", "--modversion", "torch_ops_c", env=environ)
    assert version.strip() == host.version()
    output_of("cc", FILES / "check.c", "-o", tmp_path / "check", *flags, "-lm")
    assert "all checks passed" in output_of(tmp_path / "check")


class TestDocumentedPrograms:
    """The programs in docs/c_api.md."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """With each block that has a file's name behind its language."""
        text = (ROOT / "docs" / "c_api.md").read_text()
        for name, code in re.findall(
            r"^```\S+ ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        ):
            (tmp_path / name).write_text(code)
        return tmp_path

    @needs("cc")
    def test_c(self, folder: Path) -> None:
        output_of("cc", "-std=c99", "-Wall", folder / "gather.c", "-o", folder / "gather", *FLAGS)
        assert output_of(folder / "gather") == "2.5 0.5 2.5 1.5\n"

    @needs("cmake", "c++")
    def test_cpp_with_cmake(self, folder: Path) -> None:
        prefix = f"-DCMAKE_PREFIX_PATH={host.get_prefix()}"
        output_of("cmake", "-S", folder, "-B", folder / "build", prefix)
        output_of("cmake", "--build", folder / "build")
        assert output_of(folder / "build" / "sums") == "3 4 6 8\n"

    @needs("cc")
    def test_cython(self, folder: Path) -> None:
        pytest.importorskip("Cython")
        text = (ROOT / "examples" / "hello" / "setup.py").read_text()
        (folder / "setup.py").write_text(text.replace("hello_cython", "picks"))
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        output_of(*command, cwd=folder, env=environ)
        code = """
import numpy, picks
out = numpy.empty(2)
picks.pick(numpy.array([1.5, 2.5]), numpy.array([1, 0]), out)
print(out.tolist())
try:
    picks.pick(numpy.ones(2), numpy.array([1, 2]), out)
except ValueError as error:
    print(error)
"""
        text = output_of(sys.executable, "-c", code, cwd=folder, env=environ)
        assert text.startswith("[2.5, 1.5]\ntorch_ops_gather: index[1] is 2, out of range")


@needs("nvcc")
def test_headers_for_cuda_programs(tmp_path: Path) -> None:
    """Compiled here; run where there is a GPU."""
    source = tmp_path / "timed.cu"
    source.write_text("""
#include <torch_ops/timing.h>
__global__ void fill(float* data, int n) { if (threadIdx.x < n) data[threadIdx.x] = n; }
template <class A, class B> cudaError_t nothing() { return cudaSuccess; }
int main() {
  TORCH_OPS_CHECK(sizeof(float) == 4);
  TORCH_OPS_CHECK_CUDA(nothing<int, float>());
  try {
    TORCH_OPS_CHECK(1 > 2, "one is ", 1);
    return 1;
  } catch (const std::runtime_error& error) {
    std::printf("%s\\n", error.what());
  }
  try {
    TORCH_OPS_CHECK_CUDA(cudaSetDevice(999));
    return 1;
  } catch (const torch_ops::CudaError& error) {
    std::printf("%s\\n", error.what());
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return 0;
  float* data;
  TORCH_OPS_CHECK_CUDA(cudaMalloc(&data, 128));
  TORCH_OPS_TIME(fill<<<1, 32>>>(data, 32));
  const float ms = TORCH_OPS_TIMED(fill<<<1, 32>>>(data, 32));
  torch_ops::CudaTimer timer;
  for (int i = 0; i < 3; ++i) {
    timer.start();
    fill<<<1, 32>>>(data, 32);
    timer.stop();
    TORCH_OPS_CHECK(timer.milliseconds() > 0);
  }
  try {
    TORCH_OPS_TIME(fill<<<1, 5000>>>(data, 32));
    return 1;
  } catch (const torch_ops::CudaError& error) {
    std::printf("%s\\n", error.what());
  }
  return ms > 0 ? 0 : 1;
}
""")
    program = tmp_path / "timed"
    output_of("nvcc", "-std=c++17", f"-I{host.get_include()}", source, "-o", program)
    text = output_of(program)
    assert "timed.cu:9: 1 > 2 does not hold: one is 1" in text
    assert re.search(r"timed.cu:15: cudaSetDevice\(999\): cudaError\w+ \(.+\)", text)
    if host.device_count() > 0:
        assert re.search(r"timed.cu:24: fill<<<1, 32>>>\(data, 32\): \d+\.\d{3} ms", text)
        # Which of the two it is depends on CUDA's version.
        assert re.search(r"cudaGetLastError\(\): cudaErrorInvalid(Configuration|Value) \(", text)


@needs("c++")
def test_random_calls_under_sanitizers(tmp_path: Path) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer, over the library's own sources."""
    program = tmp_path / "fuzz"
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    try:
        output_of("c++", *sanitize, "-x", "c++", "-", "-o", program, input="int main() {}")
    except AssertionError:
        pytest.skip("this compiler has no sanitizers")
    output_of(
        *("c++", "-std=c++17", "-O1", "-g1", "-pthread", "-fno-trapping-math", *sanitize),
        *("-DTORCH_OPS_WITHOUT_TORCH", '-DTORCH_OPS_VERSION="0"', '-DTORCH_OPS_BUILD_CONFIG=""'),
        *(f"-I{ROOT / 'src'}", f"-I{host.get_include()}", FILES / "fuzz.cpp"),
        *sorted((ROOT / "src" / "c_api").glob("*.cpp")),
        *("-o", program),
    )
    # Tests may run with more memory mapped before them than AddressSanitizer likes.
    assert "fuzz passed" in output_of(program, "800", "1", env={**os.environ, "LD_PRELOAD": ""})


# ---- hello


HELLO = {f"Hello from thread {n} of 8" for n in range(8)}


class TestHello:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A copy of the example, so that nothing is left in it."""
        return Path(shutil.copytree(ROOT / "examples" / "hello", tmp_path / "hello"))

    @pytest.fixture
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}

    @pytest.mark.parametrize("way", ["hello_link.c", "hello_dlopen.c", "hello_ctypes.py",
                                     "hello_cython.pyx"])  # fmt: skip
    def test_as_the_readme_says(self, folder: Path, environ: dict[str, str], way: str) -> None:
        readme = (folder / "README.md").read_text()
        found = re.search(rf"\({re.escape(way)}\) \| `(.+)` \|", readme)
        assert found is not None
        python = shutil.which("python", path=environ["PATH"])
        command = found[1] if python else found[1].replace("python ", f"{sys.executable} ")
        text = output_of("bash", "-c", command, cwd=folder, env=environ)
        lines = [line for line in text.splitlines() if line.startswith("Hello")]
        assert len(lines) == 8
        assert set(lines) == HELLO

    def test_the_comment_in_a_file_says_the_same(self, folder: Path) -> None:
        readme = (folder / "README.md").read_text()
        for name in ("hello_link.c", "hello_dlopen.c"):
            build, run = re.findall(r"^ \*   (.+)$", (folder / name).read_text(), re.MULTILINE)
            assert f"`{build} && {run}`" in readme

    def test_from_the_package(self, capfd: pytest.CaptureFixture[str]) -> None:
        host.hello(8)
        assert set(capfd.readouterr().out.splitlines()) == HELLO
        host.hello(0)
        assert capfd.readouterr().out == ""
        with pytest.raises(ValueError, match="threads must be between 0 and 1024"):
            host.hello(2000)
