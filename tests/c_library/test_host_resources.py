"""torch_ops_host and its machine: device memory, threads, forked processes, pinned memory."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from host_arrays import DEVICES, environ, make, picks, reference_gather, reference_scatter
from programs import ROOT, load_setup_py, output_of

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


def test_calls_of_any_mode_and_plans_give_their_memory_back() -> None:
    """On the CPU: 100 calls that need scratch memory of 16 MB, good ones and bad ones."""
    code = """
import ctypes, numpy, resource, torch_ops_host as host
library = ctypes.CDLL(host.library_path())
values = numpy.ones(2_000_000, numpy.float16)
index = numpy.arange(2_000_000) % 1_900_000
bad = index.copy()
bad[-1] = -1
def calls():
    for by in (index, bad):
        for reduce in ("sum", "mean", "prod", "amax"):
            try:
                host.scatter(values, by, 1_900_000, reduce=reduce)
            except IndexError:
                assert by is bad
        plan = ctypes.c_void_p()
        sizes = [ctypes.c_int64(size) for size in (1, 1_900_000, 2_000_000)]
        at = ctypes.c_void_p(by.ctypes.data)
        status = library.torch_ops_plan_create(at, *sizes, 1, 0, None, ctypes.byref(plan))
        assert (status == 0) == (by is index) == (plan.value is not None)
        assert library.torch_ops_plan_destroy(plan) == 0
for _ in range(3):
    calls()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(12):
    calls()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 30_000, grown  # kilobytes
"""
    output_of(sys.executable, "-c", code, env=environ(), timeout=120)


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
    output_of(sys.executable, "-c", code, env=environ(), timeout=60)


@pytest.mark.skipif(host.device_count() == 0, reason="needs a GPU")
def test_a_child_of_fork_has_no_gpu() -> None:
    """Large calls, which the GPU computes in the parent."""
    code = """
import os, numpy as np, torch_ops_host as host
def check(device):
    source, index = np.arange(2e6), np.arange(2_000_000)[::-1].copy()
    assert np.array_equal(host.gather(source, index, device=device), source[index])
    pinned = host.pinned_empty(4_000_000)
    pinned[...] = -1
    out = host.pinned_empty(4_000_000)
    assert host.relu(pinned, out=out, device=device).sum() == 0
def child():
    assert host.device_count() == 0
    check(None)
    try:
        check("gpu")
    except RuntimeError as error:
        assert "was forked from one that had used CUDA" in str(error)
    else:
        raise AssertionError("a GPU after fork")
check(None)
check("gpu")
from_parent = host.pinned_empty(1000)
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        child()
        del from_parent
        raise SystemExit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    check("gpu")
"""
    output_of(sys.executable, "-c", code, env=environ(), timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(host.device_count() == 0, reason="needs a GPU")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_a_gpu_that_the_library_has_no_code_for(tmp_path: Path) -> None:
    """Of another build of it, for an older GPU or a newer one."""
    setup_py = load_setup_py()
    home = setup_py.find_cuda_home(os.environ, setup_py.bindings.nvidia_wheels(torch.version.cuda))
    arch = "12.0" if torch.cuda.get_device_capability() == (7, 5) else "7.5"
    library = setup_py.setup_c_library
    cuda = library.Cuda(home, setup_py.read_nvcc(home).version, arch)
    steps = library.library_steps(ROOT, tmp_path, tmp_path, "0", cuda, os.environ)
    setup_py.bindings.run_steps(steps, tmp_path, os.environ)
    code = """
import numpy as np, torch_ops_host as host
source, index = np.arange(2e6), np.arange(2_000_000)[::-1].copy()
assert np.array_equal(host.gather(source, index), source[index])
pinned, out = host.pinned_empty(4_000_000), host.pinned_empty(4_000_000)
pinned[...] = -1
assert host.relu(pinned, out=out).sum() == 0
host.hello(1)
for call in (lambda: host.gather(source, index, device="gpu"), lambda: host.hello(1, "gpu")):
    try:
        call()
    except RuntimeError as error:
        assert "has no kernels for device 0" in str(error), error
    else:
        raise AssertionError("kernels for another GPU")
"""
    variables = environ(TORCH_OPS_LIBRARY=str(steps[-1].output))
    output_of(sys.executable, "-c", code, env=variables, timeout=120)


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
        (host.pinned_empty, (2**70, 0), ValueError, rf"have the shape \({2**70}, 0"),
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
