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
from c_calls import REDUCTIONS
from c_interface import (
    DEVICE,
    FUNCTIONS,
    HEADER,
    HOST,
    HOST_CPU,
    HOST_GPU,
    LIBRARY,
    VALUES,
    status_name,
)
from programs import ROOT, needs, output_of

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


def test_every_function_is_declared_for_cython() -> None:
    pxd = (ROOT / "torch_ops_host" / "capi.pxd").read_text()
    declared = set(re.findall(r"\b(torch_ops_\w+)\(", pxd))
    assert declared == set(FUNCTIONS)
    assert {f"TORCH_OPS_{name}" for name in VALUES} <= set(re.findall(r"\bTORCH_OPS_\w+", pxd))


@needs("readelf")
def test_names_and_dependencies() -> None:
    folder = Path(host.get_library_dir())
    assert Path(host.library_path()) == folder / SONAME
    assert (folder / "libtorch_ops_c.so").read_text() == f"INPUT({SONAME})\n"
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


class Calls:
    """Right calls of the functions with an index; tests spoil one argument of them by its name."""

    def __init__(self) -> None:
        self.table = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
        self.index = np.zeros((2, 2, 4), np.int64)
        self.to = np.full((2, 3, 4), 77.0)
        at, by, to = (array.ctypes.data for array in (self.table, self.index, self.to))
        sizes = {"batch": 2, "axis_size": 3, "entries": 2, "inner": 4}
        types = {"dtype": VALUES["FLOAT64"], "index_type": VALUES["INDEX_INT64"]}
        last: dict[str, Any] = {"memory": HOST, "stream": None, "milliseconds": None}
        rows = {"from": at, "index": by, "to": to, **sizes, **types}
        points = {"coordinates": [by, by], "sizes": [3, 4], "count": 2}
        area = {"batch": 2, "points": 2, "inner": 1}
        gathers = {**rows, "mode": 0, "fill": None, **last}
        workspace = {"workspace": None, "workspace_bytes": 0, "milliseconds": None}
        self.calls: dict[str, dict[str, Any]] = {
            "batch_gather": {**rows, **last},
            "scatter_add": {**rows, "memory": HOST, "stream": None, **workspace},
            "gather_rows": gathers,
            "gather_elements": gathers,
            "scatter": {**rows, "reduce": 0, "mode": 0, "flags": 0, **last},
            "scatter_arg": {**rows, "reduce": VALUES["REDUCE_AMAX"], "mode": 0, **last},
            "scatter_elements_add": {**rows, "mode": 0, "flags": 0, **last},
            "gather_points": {
                "from": at,
                **points,
                "to": to,
                **area,
                **types,
                "mode": 0,
                "fill": None,
                **last,
            },
            "put_points": {"to": to, **points, "from": at, **area, **types, "mode": 0, **last},
            "ravel_points": {
                **points,
                "to": to,
                "points": 2,
                "index_type": types["index_type"],
                "mode": 0,
                **last,
            },
        }

    def call(self, op: str, **changes: Any) -> str:
        arguments = {**self.calls[op], **changes}
        for name, kind in (("coordinates", ctypes.c_void_p), ("sizes", ctypes.c_int64)):
            given = arguments.get(name)
            if given is not None:
                arguments[name] = (kind * len(given))(*given)
        return status_name(getattr(LIBRARY, op)(*arguments.values()))


WRONG = [
    ({"from": None}, "NULL_POINTER", "is NULL, but it has"),
    ({"index": None}, "NULL_POINTER", "index is NULL, but it has"),
    ({"to": None}, "NULL_POINTER", "is NULL, but it has"),
    ({"batch": -1}, "NEGATIVE_SIZE", "batch must not be negative, but it is -1"),
    ({"axis_size": -5}, "NEGATIVE_SIZE", "axis_size must not be negative"),
    ({"entries": -(2**63)}, "NEGATIVE_SIZE", "entries must not be negative"),
    ({"inner": -1}, "NEGATIVE_SIZE", "inner must not be negative"),
    ({"axis_size": 2**62}, "SIZE_OVERFLOW", "must have less than 2^63 bytes, counted at 8 an"),
    ({"entries": 2**59}, "SIZE_OVERFLOW", "must have less than 2^63 bytes"),
    ({"batch": 2**32, "inner": 2**31}, "SIZE_OVERFLOW", "must have less than 2^63 bytes"),
    (
        {"batch": 1, "axis_size": 2**60, "inner": 1, "dtype": VALUES["UINT8"]},
        "SIZE_OVERFLOW",  # 2^60 bytes, but 2^64 of the widest elements
        f"all rows of the shape [1, {2**60}, 1] must have less than 2^63 bytes, counted at 16 an",
    ),
    ({"dtype": 12}, "UNKNOWN_DTYPE", "dtype must be one of"),
    ({"dtype": -1}, "UNKNOWN_DTYPE", "but it is -1"),
    ({"index_type": 2}, "UNKNOWN_INDEX_TYPE", "index_type must be"),
    ({"memory": 4}, "UNKNOWN_MEMORY", "memory must be TORCH_OPS_HOST"),
    ({"memory": -1}, "UNKNOWN_MEMORY", "but it is -1"),
]
WITH_MODES = ["gather_rows", "gather_elements", "scatter", "scatter_arg", "scatter_elements_add"]
BY_INDEX = ["batch_gather", "scatter_add", *WITH_MODES]
AT_POINTS = ["gather_points", "put_points", "ravel_points"]
SPOILED = [
    *[
        (op, *each)
        for op in BY_INDEX
        for each in WRONG
        if not ("elements" in op and each[2].startswith("batch"))
    ],
    ("gather_elements", {"batch": -1}, "NEGATIVE_SIZE", "outer must not be negative, but it is -1"),
    *[(op, {"to": None}, "NULL_POINTER", "is NULL, but it has") for op in AT_POINTS],
    *[
        (op, {"mode": mode}, "INVALID_ARGUMENT", f"mode must be one of {text}, but it is {mode}")
        for op in [*WITH_MODES, *AT_POINTS]
        for mode in (-1, 6)
        for text in ["TORCH_OPS_MODE_RAISE (0) to TORCH_OPS_MODE_FROM_END (5)"]
    ],
    *[
        (op, {"reduce": reduce}, "INVALID_ARGUMENT", "reduce must be one of TORCH_OPS_REDUCE_SUM")
        for op in ("scatter", "scatter_arg")
        for reduce in (-1, 5)
    ],
    ("scatter_arg", {"reduce": 2}, "INVALID_ARGUMENT", "reduce must be TORCH_OPS_REDUCE_AMAX (3)"),
    ("scatter", {"reduce": 3, "dtype": 9}, "UNSUPPORTED_DTYPE", "uint64 (11) for TORCH_OPS_REDUCE"),
    ("scatter", {"flags": 4}, "INVALID_ARGUMENT", "flags may have the bits 3, but they are 4"),
    ("scatter", {"reduce": 1, "flags": 2}, "INVALID_ARGUMENT", "is for TORCH_OPS_REDUCE_SUM (0)"),
    ("scatter_elements_add", {"flags": 2}, "INVALID_ARGUMENT", "flags may have the bits 1"),
    *[
        (op, changes, status, text)
        for op in AT_POINTS
        for changes, status, text in (
            ({"coordinates": None}, "NULL_POINTER", "coordinates is NULL"),
            ({"sizes": None}, "NULL_POINTER", "sizes is NULL"),
            ({"coordinates": [None, None]}, "NULL_POINTER", "coordinates[0] is NULL, but it has"),
            ({"coordinates": [8, 4]}, "MISALIGNED_POINTER", "coordinates[1] must be at a multiple"),
            ({"count": 0}, "INVALID_ARGUMENT", "count must be between 1 and 16, but it is 0"),
            ({"count": 17}, "INVALID_ARGUMENT", "count must be between 1 and 16, but it is 17"),
            ({"sizes": [3, -4]}, "NEGATIVE_SIZE", "sizes[1] must not be negative, but it is -4"),
            (
                {"sizes": [2**40, 2**40]},
                "SIZE_OVERFLOW",
                f"sizes must be below 2^50, but sizes are [{2**40}, {2**40}]",
            ),
            ({"points": -1}, "NEGATIVE_SIZE", "points must not be negative"),
            ({"index_type": 7}, "UNKNOWN_INDEX_TYPE", "index_type must be"),
            ({"memory": 9}, "UNKNOWN_MEMORY", "memory must be TORCH_OPS_HOST"),
        )
    ],
    *[
        (op, {"sizes": [2**40, 2**40], "inner": 0}, "SIZE_OVERFLOW", "must be below 2^50")
        for op in ("gather_points", "put_points")
    ],
    *[
        (op, {"sizes": [2**20, 2], "inner": 2**30}, "SIZE_OVERFLOW", f"and inner is {2**30}")
        for op in ("gather_points", "put_points")
    ],
    *[
        (op, {"sizes": [1, 1], "points": 2**40, "inner": 2**40}, "SIZE_OVERFLOW", "all points of")
        for op in ("gather_points", "put_points")
    ],
    ("gather_points", {"from": None}, "NULL_POINTER", "source is NULL"),
    ("put_points", {"from": None}, "NULL_POINTER", "values is NULL"),
]


@pytest.mark.parametrize(("function", "changes", "status", "text"), SPOILED, ids=str)
def test_wrong_arguments(function: str, changes: dict[str, Any], status: str, text: str) -> None:
    calls = Calls()
    assert calls.call(function, **changes) == status
    assert LIBRARY.error().startswith(f"torch_ops_{function}: ")
    assert text in LIBRARY.error()
    assert (calls.to == 77).all()  # nothing was written
    assert calls.call(function) == "SUCCESS"


@pytest.mark.parametrize("function", BY_INDEX)
def test_misaligned_pointers(function: str) -> None:
    calls = Calls()
    for name in ("from", "index", "to"):
        at = calls.calls[function][name]
        assert calls.call(function, **{name: at + 4}) == "MISALIGNED_POINTER"
        assert "must be at a multiple of 8 bytes" in LIBRARY.error()
    assert (calls.to == 77).all()


def test_empty_arrays_may_be_null() -> None:
    calls = Calls()
    nothing = {"from": None, "index": None, "to": None}
    assert calls.call("batch_gather", batch=0, **nothing) == "SUCCESS"
    assert calls.call("scatter_add", batch=0, **nothing) == "SUCCESS"
    assert calls.call("batch_gather", entries=0, index=None, to=None) == "SUCCESS"
    assert LIBRARY.relu(None, None, 0, VALUES["FLOAT32"], HOST, None, None) == 0


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_rows_without_elements(reduce: str) -> None:
    """The result has no memory, however many rows it has, and takes none."""
    calls = Calls()
    options = {"batch": 1, "axis_size": 2**63 - 1, "inner": 0, "reduce": VALUES[f"REDUCE_{reduce}"]}
    nothing = {"from": None, "to": None}
    assert calls.call("scatter", **options, **nothing) == "SUCCESS"
    assert calls.call("scatter", **options, entries=0, index=None, **nothing) == "SUCCESS"
    calls.index[0, 0, 1] = -1
    assert calls.call("scatter", **options, **nothing) == "INDEX_OUT_OF_RANGE"


def test_wrong_plans() -> None:
    index, values = np.zeros(4, np.int64), np.ones(4)
    plan = ctypes.c_void_p(5)

    def create(*arguments: Any) -> str:
        return status_name(LIBRARY.plan_create(*arguments))

    right = (index.ctypes.data, 1, 3, 4, 1, HOST, None)
    assert create(*right, None) == "NULL_POINTER"
    assert "plan is NULL" in LIBRARY.error()
    for place, value, status in (
        (0, None, "NULL_POINTER"),
        (0, index.ctypes.data + 4, "MISALIGNED_POINTER"),
        (1, -1, "NEGATIVE_SIZE"),
        (2, -1, "NEGATIVE_SIZE"),
        (3, 2**62, "SIZE_OVERFLOW"),
        (2, 2**62, "SIZE_OVERFLOW"),
        (4, 5, "UNKNOWN_INDEX_TYPE"),
        (5, 9, "UNKNOWN_MEMORY"),
    ):
        wrong = [*right]
        wrong[place] = value
        assert create(*wrong, ctypes.byref(plan)) == status
        assert plan.value is None
    assert create(*right, ctypes.byref(plan)) == "SUCCESS"
    to = np.full(3, 77.0)
    at, result, float64 = values.ctypes.data, to.ctypes.data, VALUES["FLOAT64"]

    def scatter(*arguments: Any) -> str:
        return status_name(LIBRARY.plan_scatter(*arguments, None, None))

    assert scatter(None, at, result, 1, float64, 0, 0) == "NULL_POINTER"
    assert "plan is NULL" in LIBRARY.error()
    assert scatter(plan, None, result, 1, float64, 0, 0) == "NULL_POINTER"
    assert scatter(plan, at, result, -1, float64, 0, 0) == "NEGATIVE_SIZE"
    assert scatter(plan, at, result, 1, 99, 0, 0) == "UNKNOWN_DTYPE"
    assert scatter(plan, at, result, 1, float64, 9, 0) == "INVALID_ARGUMENT"
    assert scatter(plan, at, result, 1, float64, 0, 8) == "INVALID_ARGUMENT"
    gather = LIBRARY.plan_gather(plan, at, None, 1, float64, None, None)
    assert status_name(gather) == "NULL_POINTER"
    assert (to == 77).all()
    assert scatter(plan, at, result, 1, float64, 0, 0) == "SUCCESS"
    assert LIBRARY.plan_destroy(plan) == 0
    assert LIBRARY.plan_destroy(None) == 0


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
    calls = Calls()
    for op in calls.calls:
        assert calls.call(op, memory=memory) == "NO_DEVICE"
        assert "a CUDA device is asked for, but" in LIBRARY.error()
    at = calls.to.ctypes.data
    for call in (LIBRARY.relu, LIBRARY.sigmoid):
        assert status_name(call(at, at, 4, VALUES["FLOAT64"], memory, None, None)) == "NO_DEVICE"
    assert (calls.to == 77).all()
    plan = ctypes.c_void_p()
    by = calls.index.ctypes.data
    assert status_name(LIBRARY.plan_create(by, 1, 3, 4, 1, memory, None, plan)) == "NO_DEVICE"
    assert status_name(LIBRARY.hello(1, memory)) == "NO_DEVICE"
    assert LIBRARY.check_errors(None) == 0


def test_errors_are_of_their_thread() -> None:
    def fail(n: int) -> None:
        calls = Calls()
        index = calls.index.reshape(-1)
        for _ in range(50):
            index[2] = 1000 + n
            assert calls.call("batch_gather") == "INDEX_OUT_OF_RANGE"
            assert f"index[2] is {1000 + n}, out of range" in LIBRARY.error()
            position, value, bound = (ctypes.c_int64() for _ in range(3))
            numbers = [ctypes.byref(number) for number in (position, value, bound)]
            assert LIBRARY.last_index_error(*numbers) == 0
            assert (position.value, value.value, bound.value) == (2, 1000 + n, 3)
            index[2] = n % 3
            assert calls.call("batch_gather") == "SUCCESS"
            assert (calls.to.reshape(-1, 4)[2] == calls.table[1, n % 3]).all()

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
    for name in ("relu", "leaky_relu", "sigmoid"):
        y, grad_input = torch.empty_like(x), torch.empty_like(x)
        forward, backward = getattr(LIBRARY, name), getattr(LIBRARY, f"{name}_backward")
        time = ctypes.c_float(-1)
        leak = (0.25,) if name == "leaky_relu" else ()
        assert forward(x.data_ptr(), y.data_ptr(), 1003, *leak, code, memory, None, time) == 0
        assert time.value >= 0
        pointers = (grad.data_ptr(), (x if leak else y).data_ptr(), grad_input.data_ptr())
        assert backward(*pointers, 1003, *leak, code, memory, None, None) == 0
        wanted = getattr(torch.nn.functional, name)(x.double(), *leak)
        torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=0)
        slope = {
            "relu": (wanted > 0).double(),
            "leaky_relu": torch.where(x > 0, 1.0, 0.25).double(),
            "sigmoid": y.double() * (1 - y.double()),
        }[name]
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
