"""torch_ops_host: NumPy arrays in and out, without torch; on the CPU, and a GPU if there is one."""

from __future__ import annotations

import array
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_library import DTYPES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from toy_project import ROOT

import torch_ops
import torch_ops_host as host

DEVICES = ["cpu", None, *(["gpu"] if host.device_count() else [])]
ALL = [dtype.name for dtype in DTYPES]
FLOATING = ["float16", "float32", "float64"]


@pytest.fixture(params=DEVICES, ids=str)
def device(request: pytest.FixtureRequest) -> Any:
    """Who computes. Stands in for the fixture of the tensors' devices."""
    return request.param


def make(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Values that any sum of a few of is exact in the dtype, and that use its sign."""
    generator = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return generator.integers(low, 5, shape).astype(dtype)


def picks(shape: tuple[int, ...], size: int, dtype: str = "int64", seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, size, shape).astype(dtype)


def reference_gather(source: np.ndarray, index: np.ndarray, batch_dims: int) -> np.ndarray:
    if batch_dims == 0:
        return source[index]
    return np.stack(
        [reference_gather(*pair, batch_dims - 1) for pair in zip(source, index, strict=True)]
    )


def reference_scatter(
    values: np.ndarray, index: np.ndarray, dim_size: int, batch_dims: int
) -> np.ndarray:
    if batch_dims > 0:
        parts = zip(values, index, strict=True)
        return np.stack([reference_scatter(v, i, dim_size, batch_dims - 1) for v, i in parts])
    wide = np.float64 if values.dtype.kind == "f" else values.dtype
    sums = np.zeros((dim_size, *values.shape[index.ndim :]), wide)
    np.add.at(sums, index, values.astype(wide))
    return sums.astype(values.dtype)


# (source, index, batch_dims); M is the axis
SHAPES = [
    ((7,), (5,), 0),
    ((1000,), (33, 2), 0),
    ((7, 3), (5,), 0),
    ((4, 9), (4, 6), 1),
    ((3, 50, 17), (3, 1000), 1),
    ((2, 3, 8, 2, 2), (2, 3, 5), 2),
    ((5, 4), (), 0),
]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gather_and_scatter_add(device: Any, dtype: str, index_dtype: str, shape: Any) -> None:
    source_shape, index_shape, batch_dims = shape
    size = source_shape[batch_dims]
    source, index = make(source_shape, dtype), picks(index_shape, size, index_dtype)
    result = host.gather(source, index, batch_dims=batch_dims, device=device)
    expected = reference_gather(source, index, batch_dims)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected, strict=True)

    sums = host.scatter_add(expected, index, size, batch_dims=batch_dims, device=device)
    wanted = reference_scatter(expected, index, size, batch_dims)
    np.testing.assert_array_equal(sums, wanted, strict=True)


def test_batch_gather_is_torch_ops_own(device: Any) -> None:
    source, index = make((3, 8, 4), "float32"), picks((3, 5), 8)
    result = host.batch_gather(source, index, device=device)
    import torch

    wanted = torch_ops.batch_gather(torch.from_numpy(source), torch.from_numpy(index))
    np.testing.assert_array_equal(result, wanted.numpy(), strict=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_other_types_of_index(dtype: str) -> None:
    source = make((9, 2), "float32")
    np.testing.assert_array_equal(
        host.gather(source, picks((6,), 9, dtype)), source[picks((6,), 9)]
    )


def test_scatter_add_rounds_once(device: Any) -> None:
    """2048 + 1 is no float16: added up one by one, the ones after the first 2048 would be lost."""
    values = np.ones(5000, np.float16)
    result = host.scatter_add(values, np.zeros(5000, np.int32), 2, device=device)
    assert result.tolist() == [5000.0, 0.0]


def test_integers_wrap(device: Any) -> None:
    values = np.full(10, 100, np.int8)
    result = host.scatter_add(values, np.zeros(10, np.int64), 1, device=device)
    assert result.tolist() == [(1000 + 128) % 256 - 128]


@pytest.mark.parametrize("dtype", FLOATING)
def test_relu_and_sigmoid(device: Any, dtype: str) -> None:
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, -1e-7, 88.0, -88.0, -104.0, 700.0, -700.0]
    values = np.concatenate([special, np.random.default_rng(0).normal(size=1001) * 4]).astype(dtype)
    relu = host.relu(values, device=device)
    wanted = np.where(np.isnan(values), values, np.maximum(values, 0))
    np.testing.assert_array_equal(relu, wanted, strict=True)

    result = host.sigmoid(values, device=device)
    assert np.isnan(result[0])
    wanted = 1 / (1 + np.exp(-values[1:].astype(np.longdouble)))
    # Steps of the format: a few roundings in float32 and float64; of 16 bits half a step, and what
    # its computation in float32 adds.
    steps = {"float16": 0.51, "float32": 3, "float64": 3}[dtype]
    step = np.spacing(wanted.astype(dtype)).astype(np.longdouble)
    assert (np.abs(result[1:].astype(np.longdouble) - wanted) <= steps * step).all()


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = make((6, 3), "float32").astype(ml_dtypes.bfloat16)
    index = picks((4,), 6)
    result = host.gather(source, index)
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.view(np.uint16), source[index].view(np.uint16))
    assert host.relu(source).dtype == ml_dtypes.bfloat16


# ---- Arrays of every kind


def test_strided_arrays_are_taken(device: Any) -> None:
    base = make((10, 12), "float32")
    index = picks((20,), 5)[::2]
    for source in (base[::2], base.T[:5], base[::-2], base[:5, ::-3]):
        np.testing.assert_array_equal(host.gather(source, index, device=device), source[index])
    swapped = base.astype(">f4")
    np.testing.assert_array_equal(host.gather(swapped, index), base[index])
    unaligned = np.frombuffer(b"x" + base.tobytes(), np.uint8)[1:].view(np.float32).reshape(10, 12)
    np.testing.assert_array_equal(host.gather(unaligned, index), base[index])
    np.testing.assert_array_equal(host.relu(base.T), np.maximum(base.T, 0))


def test_anything_with_a_buffer_is_taken() -> None:
    result = host.gather(array.array("d", [1.5, 2.5, 3.5]), memoryview(array.array("i", [2, 0])))
    assert result.tolist() == [3.5, 1.5]
    assert host.gather(bytearray(b"abc"), [1]).tolist() == [ord("b")]
    readonly = np.arange(4.0)
    readonly.flags.writeable = False
    assert host.gather(readonly, [3]).tolist() == [3.0]


def test_out(device: Any) -> None:
    source, index = make((8, 3), "float32"), picks((5,), 8)
    out = np.full((5, 3), np.nan, np.float32)
    assert host.gather(source, index, out=out, device=device) is out
    np.testing.assert_array_equal(out, source[index])

    strided = np.full((5, 6), np.nan, np.float32)
    result = host.gather(source, index, out=strided[:, ::2], device=device)
    assert np.shares_memory(result, strided)
    np.testing.assert_array_equal(strided[:, ::2], source[index])
    assert np.isnan(strided[:, 1::2]).all()

    overlapping = source.copy()
    host.gather(overlapping, [7, 6, 5, 4, 3, 2, 1, 0], out=overlapping, device=device)
    np.testing.assert_array_equal(overlapping, source[::-1])

    sums = np.full((9, 3), 7, np.float32)  # overwritten, not added to
    host.scatter_add(source[index], index, 9, out=sums, device=device)
    np.testing.assert_array_equal(sums, reference_scatter(source[index], index, 9, 0))

    values = make((40,), "float32")
    wanted = np.maximum(values, 0)
    assert host.relu(values, out=values, device=device) is values
    np.testing.assert_array_equal(values, wanted)


def test_return_time(device: Any) -> None:
    source, index = make((1000, 3), "float32"), picks((500,), 1000)
    for call in (
        lambda: host.gather(source, index, return_time=True, device=device),
        lambda: host.batch_gather(source, index, return_time=True, device=device),
        lambda: host.scatter_add(source[index], index, 9000, return_time=True, device=device),
        lambda: host.relu(source, return_time=True, device=device),
        lambda: host.sigmoid(source, return_time=True, device=device),
    ):
        result, milliseconds = call()
        assert isinstance(result, np.ndarray)
        assert isinstance(milliseconds, float)
        assert 0 < milliseconds < 10_000


@pytest.mark.parametrize(
    ("source", "index"),
    [((0,), (0,)), ((5,), (0,)), ((5, 0), (3,)), ((0, 4), (0,)), ((5, 2), (0, 3))],
    ids=str,
)
def test_empty(device: Any, source: tuple[int, ...], index: tuple[int, ...]) -> None:
    data, entries = np.ones(source, np.float32), np.zeros(index, np.int64)
    result = host.gather(data, entries, device=device)
    assert result.shape == index + source[1:]
    sums = host.scatter_add(result, entries, 6, device=device)
    assert sums.shape == (6, *source[1:])
    assert not sums.any()
    assert host.relu(np.ones((0, 3)), device=device).shape == (0, 3)


def test_no_batches(device: Any) -> None:
    assert host.batch_gather(np.ones((0, 5)), np.zeros((0, 2), int), device=device).shape == (0, 2)


# ---- Errors


@pytest.mark.parametrize("value", [50, -1, 2**31 - 1, -(2**31), 2**40, -(2**63)])
def test_index_out_of_range(device: Any, value: int) -> None:
    index = picks((3, 1000), 50)
    index[1, 777] = value
    message = (
        rf"index\[1, 777\] is {value}, out of range for an axis of size 50: it must be between 0 "
        "and 49"
    )
    with pytest.raises(IndexError, match=f"batch_gather: {message}"):
        host.batch_gather(make((3, 50, 2), "float32"), index, device=device)
    with pytest.raises(IndexError, match=f"gather: {message}"):
        host.gather(make((50,), "float32"), index, device=device)
    with pytest.raises(IndexError, match=f"scatter_add: {message}"):
        host.scatter_add(make((3, 1000), "float16"), index, 50, batch_dims=1, device=device)
    # The next call is not troubled.
    assert host.gather(make((50,), "float32"), [0], device=device).shape == (1,)


def test_empty_axis(device: Any) -> None:
    with pytest.raises(IndexError, match="the axis has size 0: no entry is allowed"):
        host.gather(np.ones((0, 2)), [0], device=device)
    with pytest.raises(IndexError, match="the axis has size 0: no entry is allowed"):
        host.scatter_add(np.ones((1, 2)), [0], 0, device=device)


def test_index_is_checked_where_rows_are_empty(device: Any) -> None:
    with pytest.raises(IndexError, match=r"index\[1\] is 9"):
        host.gather(np.ones((5, 0)), [0, 9], device=device)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: host.gather(np.ones(3, complex), [0]), TypeError, "source must be of one of"),
        (lambda: host.gather(np.ones(3), [0.0]), TypeError, "index must be of an integer dtype"),
        (lambda: host.gather(np.ones(3), np.uint64([0])), TypeError, "but it is uint64"),
        (lambda: host.gather(np.ones(3), [True]), TypeError, "but it is bool"),
        (lambda: host.gather(1.0, [0]), ValueError, "must have an axis"),
        (lambda: host.gather(np.ones(3), [0], batch_dims=1), ValueError, "must have an axis"),
        (lambda: host.gather(np.ones((3, 3)), [0], batch_dims=-1), ValueError, "must have an axis"),
        (
            lambda: host.gather(np.ones((3, 3, 3)), [0], batch_dims=2),
            ValueError,
            "batch_dims must be between 0 and index.ndim = 1",
        ),
        (
            lambda: host.batch_gather(np.ones((3, 3)), np.zeros((2, 1), int)),
            ValueError,
            "must have the same batch axes",
        ),
        (lambda: host.batch_gather(np.ones(3), 0), ValueError, "0-dimensional"),
        (lambda: host.scatter_add(np.ones(3), [0, 1, 2], -1), ValueError, "must not be negative"),
        (lambda: host.scatter_add(np.ones(3), [0, 1], 5), ValueError, "must begin with index's"),
        (lambda: host.relu([1, 2]), TypeError, "but it is int64"),
        (lambda: host.sigmoid(["a"]), TypeError, "sigmoid: x must be"),
        (lambda: host.relu(np.ones(3), device="tpu"), ValueError, '"cpu" or "gpu", but it is'),
        (lambda: host.relu(np.ones(3), out=[0, 0, 0]), TypeError, "out must be a NumPy array"),
        (lambda: host.relu(np.ones(3), out=np.ones(4)), ValueError, r"shape \(3,\), but it has"),
        (
            lambda: host.relu(np.ones(3), out=np.ones(3, "f4")),
            TypeError,
            "out must be of the dtype",
        ),
        (
            lambda: host.relu(np.ones(3), out=np.frombuffer(bytes(24))),
            ValueError,
            "out must be writeable",
        ),
    ],
)
def test_wrong_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.skipif(host.device_count() > 0, reason="there is a GPU")
def test_no_gpu() -> None:
    with pytest.raises(RuntimeError, match="a CUDA device is asked for, but"):
        host.relu(np.ones(3), device="gpu")


# ---- Random calls


@st.composite
def calls(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    inner = draw(st.lists(st.integers(0, 4), max_size=2))
    size = draw(st.integers(1, 40))
    picked = draw(st.lists(st.integers(0, 50), max_size=2))
    dtype = draw(st.sampled_from(ALL))
    index_dtype = draw(st.sampled_from(["int32", "int64"]))
    source = make((*batch, size, *inner), dtype, draw(st.integers(0, 9)))
    index = draw(st_np.arrays(index_dtype, (*batch, *picked), elements=st.integers(0, size - 1)))
    return source, index, len(batch)


@given(calls())
def test_any_call(call: tuple[np.ndarray, np.ndarray, int]) -> None:
    source, index, batch_dims = call
    if 0 in index.shape[:batch_dims]:
        wanted = np.empty(index.shape + source.shape[batch_dims + 1 :], source.dtype)
        sums = np.empty(source.shape, source.dtype)
    else:
        wanted = reference_gather(source, index, batch_dims)
        sums = reference_scatter(wanted, index, source.shape[batch_dims], batch_dims)
    for device in DEVICES:
        result = host.gather(source, index, batch_dims=batch_dims, device=device)
        np.testing.assert_array_equal(result, wanted, strict=True)
        size = source.shape[batch_dims]
        got = host.scatter_add(wanted, index, size, batch_dims=batch_dims, device=device)
        np.testing.assert_array_equal(got, sums, strict=True)


# ---- Data larger than a device may take, and larger calls


@pytest.fixture
def small_device() -> Any:
    host.set_device_memory_limit(300_000)
    yield
    host.set_device_memory_limit(0)


@pytest.mark.skipif(host.device_count() == 0, reason="needs a GPU")
@pytest.mark.usefixtures("small_device")
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
@pytest.mark.parametrize(
    "shape",
    [
        ((200_000,), (100_000,), 0),  # parts of a table
        ((3, 50_000, 2), (3, 40_000), 1),
        ((64, 1000, 3), (64, 900), 1),  # groups of batches
        ((2000, 3, 2), (2000, 4), 1),
        ((4, 200_000), (4, 10), 1),  # few entries: read in place where pinned
        ((2, 1_200_000), (2, 17_000), 1),  # more of them
    ],
    ids=str,
)
def test_more_data_than_device_memory(
    pinned: bool, index_dtype: str, dtype: str, shape: Any
) -> None:
    source_shape, index_shape, batch_dims = shape
    size = source_shape[batch_dims]
    source, index = make(source_shape, dtype), picks(index_shape, size, index_dtype)

    def place(values: np.ndarray) -> np.ndarray:
        if not pinned:
            return values
        moved = host.pinned_empty(values.shape, values.dtype)
        moved[...] = values
        return moved

    wanted = reference_gather(source, index, batch_dims)
    out = place(np.zeros_like(wanted))
    host.gather(place(source), place(index), batch_dims=batch_dims, out=out, device="gpu")
    np.testing.assert_array_equal(out, wanted)

    sums = place(np.zeros_like(source))
    host.scatter_add(
        place(wanted), place(index), size, batch_dims=batch_dims, out=sums, device="gpu"
    )
    np.testing.assert_array_equal(sums, reference_scatter(wanted, index, size, batch_dims))

    index.flat[-7] = size
    position = r"\[" + ", ".join(map(str, np.unravel_index(index.size - 7, index.shape))) + r"\]"
    with pytest.raises(IndexError, match=f"index{position} is {size}, out of range"):
        host.gather(place(source), place(index), batch_dims=batch_dims, device="gpu")
    with pytest.raises(IndexError, match=f"index{position} is {size}, out of range"):
        host.scatter_add(place(wanted), place(index), size, batch_dims=batch_dims, device="gpu")

    if dtype.startswith("float"):
        np.testing.assert_array_equal(host.relu(place(source), device="gpu"), np.maximum(source, 0))


@pytest.mark.skipif(host.device_count() == 0, reason="needs a GPU")
def test_a_row_that_no_device_memory_holds() -> None:
    host.set_device_memory_limit(5000)
    try:
        with pytest.raises(MemoryError, match="do not hold one row"):
            host.gather(np.ones((4, 5000)), np.zeros(4, int), device="gpu")
    finally:
        host.set_device_memory_limit(0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_larger_calls(device: Any, dtype: str) -> None:
    """Several pieces of 16 MiB each way, and enough work for all threads."""
    source = make((2, 5 << 20), dtype)
    index = picks((2, 5 << 20), 5 << 20, "int32")
    result = host.batch_gather(source, index, device=device)
    assert np.array_equal(result, np.take_along_axis(source, index, 1))
    if dtype == "float32":
        sums = host.scatter_add(result, index, (5 << 20) + 3, batch_dims=1, device=device)
        for b in range(2):
            wanted = np.bincount(index[b], result[b], sums.shape[1])
            assert np.array_equal(sums[b], wanted.astype(np.float32))
        assert np.array_equal(host.relu(source, device=device), np.maximum(source, 0))


def test_many_threads_at_once(device: Any) -> None:
    def work(seed: int) -> None:
        source = make((2, 3000, 5), "float32", seed)
        index = picks((2, 4000), 3000, "int64", seed)
        for _ in range(8):
            result = host.batch_gather(source, index, device=device)
            np.testing.assert_array_equal(result, reference_gather(source, index, 1))
            sums = host.scatter_add(result, index, 3000, batch_dims=1, device=device)
            np.testing.assert_array_equal(sums, reference_scatter(result, index, 3000, 1))
            bad = index.copy()
            bad[1, seed] = 5000 + seed
            with pytest.raises(IndexError, match=rf"index\[1, {seed}\] is {5000 + seed}"):
                host.batch_gather(source, bad, device=device)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


def test_number_of_threads() -> None:
    source, index = make((300_000,), "float64"), picks((500_000,), 300_000)
    default = host.get_num_threads()
    try:
        for threads in (1, 3, 16):
            host.set_num_threads(threads)
            assert host.get_num_threads() == threads
            assert np.array_equal(host.gather(source, index, device="cpu"), source[index])
    finally:
        host.set_num_threads(0)
    assert host.get_num_threads() == default
    with pytest.raises(ValueError, match="threads must be between 0 and 1024"):
        host.set_num_threads(-1)


def test_a_child_of_fork_has_threads_of_its_own() -> None:
    source, index = make((100_000,), "float64"), picks((200_000,), 100_000)
    assert np.array_equal(host.gather(source, index, device="cpu"), source[index])
    code = """
import os, numpy as np, torch_ops_host as host
host.set_num_threads(4)
source, index = np.arange(1e5), np.arange(200_000) % 100_000
host.gather(source, index, device="cpu")
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(host.gather(source, index, device="cpu"), source[index]) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = subprocess.run([sys.executable, "-c", code], env=environ(), timeout=60, check=False)
    assert result.returncode == 0


def test_pinned_empty() -> None:
    values = host.pinned_empty((3, 4), np.float32)
    assert values.shape == (3, 4)
    assert values.dtype == np.float32
    values[...] = 2
    assert host.relu(values).sum() == 24
    assert host.pinned_empty(0).shape == (0,)
    assert host.pinned_empty(5, "i2").itemsize == 2


# ---- The package


def environ(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}


def test_torch_is_not_imported() -> None:
    code = "import torch_ops_host, sys; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], env=environ(), check=True)


def test_torch_ops_has_it_too() -> None:
    assert torch_ops.host is host
    import torch_ops.host as module

    assert module is host
    from torch_ops.host import gather

    assert gather is host.gather


def test_facts() -> None:
    assert host.version() == torch_ops.__version__
    config = host.build_config()
    assert set(config) == {"cuda", "archs", "compiler"}
    assert (config["cuda"] == "none") == (config["archs"] == "")
    assert Path(host.get_include(), "torch_ops.h").is_file()
    assert Path(host.get_library_dir(), "libtorch_ops_c.so").is_file()


class TestLibraryVariable:
    """What TORCH_OPS_LIBRARY may be."""

    def load(self, value: str | Path) -> subprocess.CompletedProcess[str]:
        code = "import torch_ops_host; print(torch_ops_host.library_path())"
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environ(TORCH_OPS_LIBRARY=str(value)),
            capture_output=True,
            text=True,
            check=False,
        )

    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        path = tmp_path / "libtorch_ops_c.so"
        path.write_bytes(Path(host.library_path()).read_bytes())
        return path

    def test_a_file_a_folder_a_link(self, copy: Path, tmp_path: Path) -> None:
        link, folder = tmp_path / "link", tmp_path / "folder"
        link.symlink_to(copy)
        folder.symlink_to(tmp_path)
        for value in (copy, tmp_path, link, folder):
            result = self.load(value)
            assert result.stdout.strip() == str(copy), result.stderr

    def test_what_is_refused(self, copy: Path, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        dangling = tmp_path / "dangling"
        dangling.symlink_to(tmp_path / "gone")
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        text = tmp_path / "text"
        text.write_text("no library")
        other = tmp_path / "other.so"
        compile_c("int answer(void) { return 42; }", other, "-shared", "-fPIC")
        for value, reason in (
            (copy.name, "it must be an absolute path"),
            ("./" + copy.name, "it must be an absolute path"),
            (tmp_path / "gone", "it does not lead to a file or folder"),
            (dangling, "it does not lead to a file or folder"),
            (loop, "it does not lead to a file or folder"),
            (empty, "this folder holds no libtorch_ops_c.so"),
            ("/dev/null", "is no regular file"),
            (text, "cannot be loaded"),
            (other, "is it libtorch_ops_c?"),
        ):
            result = self.load(value)
            assert result.returncode == 1
            assert "ImportError" in result.stderr
            assert reason in result.stderr

    def test_another_version_of_the_interface(self, tmp_path: Path) -> None:
        other = tmp_path / "old.so"
        compile_c("int torch_ops_api_version(void) { return 999; }", other, "-shared", "-fPIC")
        assert "has version 999 of the library's interface" in self.load(other).stderr

    def test_a_library_that_was_built_again_is_taken(self, copy: Path) -> None:
        """The module is not linked with it: what lies there when it is imported is loaded."""
        assert self.load(copy).returncode == 0
        copy.unlink()
        assert "does not lead to" in self.load(copy).stderr
        copy.write_bytes(Path(host.library_path()).read_bytes())
        assert self.load(copy).returncode == 0


def compile_c(code: str, output: Path, *flags: str) -> None:
    subprocess.run(["cc", "-x", "c", "-", "-o", output, *flags], input=code, text=True, check=True)
