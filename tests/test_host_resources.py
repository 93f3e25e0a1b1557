"""torch_ops_host and its machine: device memory, threads, forked processes, pinned memory."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from host_arrays import DEVICES, environ, make, picks, reference_gather, reference_scatter

import torch_ops_host as host


@pytest.fixture(params=DEVICES, ids=str)
def device(request: pytest.FixtureRequest) -> Any:
    """Who computes. Stands in for the fixture of the tensors' devices."""
    return request.param


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
    assert host.pinned_empty(2, "3i4").shape == (2, 3)
    structure = host.pinned_empty(2, [("a", "i4"), ("b", "f8")])
    structure["b"] = 1.5
    assert structure["b"].tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    ("function", "argument", "error", "message"),
    [
        (host.set_num_threads, -1, ValueError, "threads must be between 0 and 1024, but it is -1"),
        (host.set_num_threads, 2**40, ValueError, f"0 and 1024, but it is {2**40}"),
        (host.set_num_threads, 1.5, TypeError, "threads must be an int, but it is 1.5"),
        (host.hello, 1.5, TypeError, "threads must be an int, but it is 1.5"),
        (host.hello, 1025, ValueError, "threads must be between 0 and 1024, but it is 1025"),
        (host.set_device_memory_limit, -1, ValueError, "bytes must be between 0 and .* it is -1"),
        (host.set_device_memory_limit, 2**70, ValueError, f"but it is {2**70}"),
        (host.set_device_memory_limit, 1.5, TypeError, "bytes must be an int, but it is 1.5"),
        (host.pinned_empty, -1, ValueError, r"no negative sizes, but it is \(-1,\)"),
        (host.pinned_empty, (-1, -8), ValueError, r"no negative sizes, but it is \(-1, -8\)"),
        (host.pinned_empty, 1.5, TypeError, "each size of shape must be an int, but it is 1.5"),
        (host.pinned_empty, (2**31, 2**31), MemoryError, f"{2**65} bytes of host memory"),
        (host.pinned_empty, 2**50, MemoryError, ""),
    ],
)
def test_wrong_arguments(
    function: Any, argument: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{function.__name__}: .*{message}"):
        function(argument)


def test_no_objects_in_pinned_memory() -> None:
    with pytest.raises(TypeError, match="dtype must have no Python objects, but it is object"):
        host.pinned_empty(3, object)
