# The functions of torch_ops_host: NumPy arrays in and out, the C library in between. It is opened
# when this module is imported, so that another build of it needs no other build of this.
import math
import operator
import os
import sys

import numpy

from torch_ops_host._library import library_path

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t

from torch_ops_host cimport capi

cdef extern from "dlfcn.h":
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)
    const char* dlerror()
    int RTLD_NOW
    int RTLD_LOCAL

ctypedef int32_t (*RowsFunction)(
    const void*, const void*, void*, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t,
    void*, float*) noexcept nogil
ctypedef int32_t (*SumsFunction)(
    const void*, const void*, void*, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t,
    void*, void*, int64_t, float*) noexcept nogil
ctypedef int32_t (*ModeFunction)(
    const void*, const void*, void*, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t,
    const void*, int32_t, void*, float*) noexcept nogil
ctypedef int32_t (*ElementSumsFunction)(
    const void*, const void*, void*, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t,
    int32_t, int32_t, void*, float*) noexcept nogil
ctypedef int32_t (*ReduceFunction)(
    const void*, const void*, void*, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t,
    int32_t, int32_t, int32_t, void*, float*) noexcept nogil
ctypedef int32_t (*PointsFunction)(
    const void*, const void* const*, const int64_t*, int32_t, void*, int64_t, int64_t, int64_t,
    int32_t, int32_t, int32_t, const void*, int32_t, void*, float*) noexcept nogil
ctypedef int32_t (*SlopeFunction)(
    const void*, void*, int64_t, double, int32_t, int32_t, void*, float*) noexcept nogil
ctypedef int32_t (*MapFunction)(
    const void*, void*, int64_t, int32_t, int32_t, void*, float*) noexcept nogil
ctypedef int32_t (*HelloFunction)(int32_t, int32_t) noexcept nogil
ctypedef int32_t (*IntegerFunction)() noexcept nogil
ctypedef int32_t (*SetThreadsFunction)(int32_t) noexcept nogil
ctypedef int32_t (*SetLimitFunction)(int64_t) noexcept nogil
ctypedef int32_t (*AllocFunction)(int64_t, void**) noexcept nogil
ctypedef int32_t (*FreeFunction)(void*) noexcept nogil
ctypedef const char* (*TextFunction)() noexcept nogil
ctypedef int32_t (*IndexErrorFunction)(int64_t*, int64_t*, int64_t*) noexcept nogil


# ---- The library --------------------------------------------------------------------------------

cdef void* _open(path) except NULL:
    cdef void* library = dlopen(os.fsencode(path), RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        raise ImportError(f"{path} cannot be loaded: {dlerror().decode()}", path=str(path))
    return library


cdef void* _find(name) except NULL:
    cdef void* function = dlsym(_library, name)
    if function == NULL:
        raise ImportError(f"{_path} has no {name.decode()}: is it libtorch_ops_c?", path=str(_path))
    return function


_path = library_path()
cdef void* _library = _open(_path)
cdef int32_t _api = (<IntegerFunction> _find(b"torch_ops_api_version"))()
if _api != capi.TORCH_OPS_API_VERSION:
    raise ImportError(
        f"{_path} has version {_api} of the library's interface, but this torch_ops_host is for "
        f"version {capi.TORCH_OPS_API_VERSION}.", path=str(_path))

cdef RowsFunction _batch_gather = <RowsFunction> _find(b"torch_ops_batch_gather")
cdef SumsFunction _scatter_add = <SumsFunction> _find(b"torch_ops_scatter_add")
cdef ModeFunction _gather_rows = <ModeFunction> _find(b"torch_ops_gather_rows")
cdef ReduceFunction _scatter = <ReduceFunction> _find(b"torch_ops_scatter")
cdef ModeFunction _gather_elements = <ModeFunction> _find(b"torch_ops_gather_elements")
cdef ElementSumsFunction _scatter_elements_add = (
    <ElementSumsFunction> _find(b"torch_ops_scatter_elements_add"))
cdef PointsFunction _gather_points = <PointsFunction> _find(b"torch_ops_gather_points")
cdef SlopeFunction _leaky_relu = <SlopeFunction> _find(b"torch_ops_leaky_relu")
cdef MapFunction _relu = <MapFunction> _find(b"torch_ops_relu")
cdef MapFunction _sigmoid = <MapFunction> _find(b"torch_ops_sigmoid")
cdef HelloFunction _hello = <HelloFunction> _find(b"torch_ops_hello")
cdef IntegerFunction _device_count = <IntegerFunction> _find(b"torch_ops_device_count")
cdef IntegerFunction _get_num_threads = <IntegerFunction> _find(b"torch_ops_get_num_threads")
cdef SetThreadsFunction _set_num_threads = <SetThreadsFunction> _find(b"torch_ops_set_num_threads")
cdef SetLimitFunction _set_limit = <SetLimitFunction> _find(b"torch_ops_set_device_memory_limit")
cdef AllocFunction _host_alloc = <AllocFunction> _find(b"torch_ops_host_alloc")
cdef FreeFunction _host_free = <FreeFunction> _find(b"torch_ops_host_free")
cdef TextFunction _last_error = <TextFunction> _find(b"torch_ops_last_error")
cdef TextFunction _version = <TextFunction> _find(b"torch_ops_version")
cdef TextFunction _build_config = <TextFunction> _find(b"torch_ops_build_config")
cdef IndexErrorFunction _last_index_error = (
    <IndexErrorFunction> _find(b"torch_ops_last_index_error"))

# ---- Its parts ----------------------------------------------------------------------------------

include "_arguments.pxi"
include "_rows.pxi"
include "_elements.pxi"
include "_activations.pxi"


# ---- The rest -----------------------------------------------------------------------------------

_MOST_THREADS = 1024  # that the library takes; more may not fit its int32

cdef class _PinnedMemory:
    cdef void* memory
    cdef Py_ssize_t bytes

    def __cinit__(self, Py_ssize_t bytes):
        cdef int32_t status = _host_alloc(bytes, &self.memory)
        if status != capi.TORCH_OPS_SUCCESS:
            _raise("pinned_empty", status)
        self.bytes = bytes

    def __dealloc__(self):
        _host_free(self.memory)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.bytes, 0, flags)


def pinned_empty(shape, dtype=numpy.float64):
    """Returns an array like ``numpy.empty(shape, dtype)`` in memory that is pinned for a GPU.

    A GPU reads and writes it without staging copies. Plain memory where there is no GPU.

    Args:
        shape: An integer, or a sequence of integers.
        dtype: A NumPy dtype without Python objects.

    Returns:
        The array, of which nothing is set.

    Raises:
        TypeError: A size is no integer, or the dtype has Python objects.
        ValueError: A size is negative.
        MemoryError: So much cannot be pinned.
    """
    op = "pinned_empty"
    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"{op}: dtype must have no Python objects, but it is {dtype}.")
    sizes = shape if numpy.iterable(shape) else (shape,)
    shape = tuple(_as_int(op, "each size of shape", size) for size in sizes)
    if any(size < 0 for size in shape):
        raise ValueError(f"{op}: shape must have no negative sizes, but it is {shape}.")
    bytes = math.prod(shape) * dtype.itemsize
    if bytes == 0:
        return _take_out(op, None, shape, dtype, ())
    if bytes > sys.maxsize:
        raise MemoryError(f"{op}: {bytes} bytes of host memory are asked for.")
    return numpy.ndarray(shape, dtype, _PinnedMemory(bytes))


def hello(threads=8, device=None):
    """Has ``threads`` threads print a line each to stdout: of the GPU, or of the host.

    Args:
        threads: At most 1024.
        device: None for the GPU if there is one, "cpu" or "gpu".
    """
    cdef int32_t count = <int32_t> _as_int_between("hello", "threads", threads, 0, _MOST_THREADS)
    cdef int32_t memory = _memory_of("hello", device)
    cdef int32_t status
    with nogil:
        status = _hello(count, memory)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise("hello", status)


def version():
    """The library's version."""
    return _version().decode()


def build_config():
    """How the library was built: a dict of "cuda", its version or "none", "archs", "compiler"."""
    pairs = (pair.partition("=") for pair in _build_config().decode().split("; "))
    return {name: value for name, _, value in pairs}


def device_count():
    """How many GPUs the library can use."""
    return _device_count()


def get_num_threads():
    """How many threads the CPU's kernels use."""
    return _get_num_threads()


def set_num_threads(threads):
    """Has the CPU's kernels use so many threads; 0 for the default, one for each CPU."""
    cdef int32_t count = <int32_t> _as_int_between(
        "set_num_threads", "threads", threads, 0, _MOST_THREADS)
    cdef int32_t status = _set_num_threads(count)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise("set_num_threads", status)


def set_device_memory_limit(bytes):
    """Lets a call take so many bytes of a GPU at most; 0, the default, for what is free there."""
    cdef int64_t most = _as_int_between("set_device_memory_limit", "bytes", bytes, 0, 2**63 - 1)
    cdef int32_t status = _set_limit(most)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise("set_device_memory_limit", status)
