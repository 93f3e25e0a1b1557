"""libtorch_ops_c as C sees it: its header, its file, every status."""

from __future__ import annotations

import ctypes
import re
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
from programs import needs, output_of
from toy_project import ROOT

import torch_ops_host as host

SONAME = f"libtorch_ops_c.so.{LIBRARY.api_version()}"
cuda_only = pytest.mark.skipif(host.device_count() == 0, reason="needs a GPU")


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
    for_bindings = {name for name in names if name.startswith("_ZN9torch_ops7kernels")}
    assert for_bindings
    assert names - for_bindings - {f"TORCH_OPS_{LIBRARY.api_version()}"} == set(FUNCTIONS)


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
    assert "libstdc++" in needed  # torch's: exceptions go from here to the bindings
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
    ({"axis_size": 2**62}, "SIZE_OVERFLOW", "must have less than 2^63 bytes, counted at 8 an"),
    ({"entries": 2**59}, "SIZE_OVERFLOW", "must have less than 2^63 bytes"),
    ({"batch": 2**32, "inner": 2**31}, "SIZE_OVERFLOW", "must have less than 2^63 bytes"),
    (
        {"batch": 1, "axis_size": 2**60, "inner": 1, "dtype": DTYPES[np.dtype(np.uint8)]},
        "SIZE_OVERFLOW",  # 2^60 bytes, but 2^64 of the widest elements
        f"all rows of the shape [1, {2**60}, 1] must have less than 2^63 bytes, counted at 16 an",
    ),
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
