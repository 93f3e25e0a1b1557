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


# ---- Arguments ----------------------------------------------------------------------------------

cdef dict _DTYPES = {
    "float16": capi.TORCH_OPS_FLOAT16,
    "bfloat16": capi.TORCH_OPS_BFLOAT16,  # of ml_dtypes; NumPy itself has none
    "float32": capi.TORCH_OPS_FLOAT32,
    "float64": capi.TORCH_OPS_FLOAT64,
    "int8": capi.TORCH_OPS_INT8,
    "uint8": capi.TORCH_OPS_UINT8,
    "int16": capi.TORCH_OPS_INT16,
    "uint16": capi.TORCH_OPS_UINT16,
    "int32": capi.TORCH_OPS_INT32,
    "uint32": capi.TORCH_OPS_UINT32,
    "int64": capi.TORCH_OPS_INT64,
    "uint64": capi.TORCH_OPS_UINT64,
}
cdef tuple _FLOATING = ("float16", "bfloat16", "float32", "float64")
cdef dict _MEMORY = {
    None: capi.TORCH_OPS_HOST,
    "cpu": capi.TORCH_OPS_HOST_CPU,
    "gpu": capi.TORCH_OPS_HOST_GPU,
}


cdef dict _MODES = {
    "raise": capi.TORCH_OPS_MODE_RAISE,
    "wrap": capi.TORCH_OPS_MODE_WRAP,
    "clip": capi.TORCH_OPS_MODE_CLIP,
    "fill": capi.TORCH_OPS_MODE_FILL,
    "unchecked": capi.TORCH_OPS_MODE_UNCHECKED,
    "from_end": capi.TORCH_OPS_MODE_FROM_END,
}
cdef dict _REDUCTIONS = {
    "sum": capi.TORCH_OPS_REDUCE_SUM,
    "mean": capi.TORCH_OPS_REDUCE_MEAN,
    "prod": capi.TORCH_OPS_REDUCE_PROD,
    "amax": capi.TORCH_OPS_REDUCE_AMAX,
    "amin": capi.TORCH_OPS_REDUCE_AMIN,
}


cdef class _Memory:
    """The memory of a contiguous array, held as long as this is."""

    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, array, bint writable=False):
        # As bytes: the buffer protocol has no name for every dtype.
        flags = PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0)
        if array.size == 0:
            return  # no memory, and no view of another dtype
        PyObject_GetBuffer(array.reshape(-1).view(numpy.uint8), &self.view, flags)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef void* pointer(self) noexcept:
        return self.view.buf if self.held else NULL


cdef _as_array(op, name, value, allowed=tuple(_DTYPES)):
    array = numpy.asarray(value)
    if array.dtype.name not in allowed:
        raise TypeError(
            f"{op}: {name} must be of one of the dtypes {', '.join(allowed)}, but it is "
            f"{array.dtype}.")
    # Strided, unaligned and byte-swapped arrays are copied.
    return numpy.require(array, array.dtype.newbyteorder("="), ("C", "A"))


cdef _as_index(op, index):
    array = numpy.asarray(index)
    if array.dtype.kind not in "iu" or array.dtype == numpy.uint64:
        raise TypeError(
            f"{op}: index must be of an integer dtype but uint64, but it is {array.dtype}.")
    dtype = numpy.int32 if array.dtype == numpy.int32 else numpy.int64
    return numpy.require(array, dtype, ("C", "A"))


cdef int32_t _memory_of(op, device) except -1:
    if not (device is None or isinstance(device, str)) or device not in _MEMORY:
        raise ValueError(f'{op}: device must be None, "cpu" or "gpu", but it is {device!r}.')
    return _MEMORY[device]


cdef int32_t _choice_of(op, name, value, choices) except -1:
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(f'"{each}"' for each in choices)
        raise ValueError(f"{op}: {name} must be one of {names}, but it is {value!r}.")
    return choices[value]


cdef int32_t _index_type(entries):
    return (capi.TORCH_OPS_INDEX_INT32 if entries.dtype == numpy.int32
            else capi.TORCH_OPS_INDEX_INT64)


cdef _as_fill(op, fill_value, dtype):
    """An array of one element; None for zero."""
    if fill_value is None:
        return None
    try:
        return numpy.full(1, fill_value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{op}: fill_value must be a number of the dtype {dtype}, but it is {fill_value!r}: "
            f"{error}") from None


cdef int64_t _product(sizes):
    cdef int64_t product = 1
    for size in sizes:
        product *= size
    return product


cdef _as_int(op, name, value):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be an int, but it is {value!r}.") from None


cdef int64_t _as_int_between(op, name, value, least, most) except? -1:
    number = _as_int(op, name, value)
    if not least <= number <= most:
        raise ValueError(
            f"{op}: {name} must be between {least} and {most}, but it is {number}.")
    return number


cdef _check_batches(op, name, array, index, batch_dims):
    if not 0 <= batch_dims <= index.ndim:
        raise ValueError(
            f"{op}: batch_dims must be between 0 and index.ndim = {index.ndim}, but it is "
            f"{batch_dims}.")
    if array.shape[:batch_dims] != index.shape[:batch_dims]:
        raise ValueError(
            f"{op}: {name} and index must have the same batch axes, but {name} has the shape "
            f"{array.shape} and index {index.shape} with batch_dims={batch_dims}.")


cdef _take_out(op, out, shape, dtype, inputs, may_be=None):
    """What the library writes to: out, or an array that is copied there when it is done."""
    if out is None:
        try:
            return numpy.empty(shape, dtype)
        except ValueError as error:  # sizes that no array has
            raise ValueError(f"{op}: the result would have the shape {shape}: {error}") from None
    if not isinstance(out, numpy.ndarray):
        raise TypeError(f"{op}: out must be a NumPy array, but it is a {type(out).__name__}.")
    if out.dtype != dtype:
        raise TypeError(f"{op}: out must be of the dtype {dtype}, but it is {out.dtype}.")
    if out.shape != shape:
        raise ValueError(f"{op}: out must have the shape {shape}, but it has {out.shape}.")
    if not out.flags.writeable:
        raise ValueError(f"{op}: out must be writeable.")
    fits = out.flags.c_contiguous and out.flags.aligned
    if fits and may_be is not None and may_be.ctypes.data == out.ctypes.data:
        return out  # an activation that overwrites its input
    if fits and not any(numpy.may_share_memory(out, each) for each in inputs):
        return out
    return numpy.empty(shape, dtype)


cdef _give(result, out, return_time, float milliseconds):
    if out is not None and result is not out:
        out[...] = result
        result = out
    return (result, milliseconds) if return_time else result


cdef _raise(op, int32_t status, index=None, int32_t mode=capi.TORCH_OPS_MODE_RAISE):
    cdef int64_t position = 0, value = 0, bound = 0, least = 0
    if status == capi.TORCH_OPS_INDEX_OUT_OF_RANGE and index is not None:
        _last_index_error(&position, &value, &bound)
        entry = ", ".join(str(int(i)) for i in numpy.unravel_index(position, index.shape))
        if bound == 0:
            raise IndexError(
                f"{op}: index has {index.size} entries, but the axis has size 0: no entry is "
                "allowed.")
        if mode == capi.TORCH_OPS_MODE_FROM_END:
            least = -bound
        raise IndexError(
            f"{op}: index[{entry}] is {value}, out of range for an axis of size {bound}: it must "
            f"be between {least} and {bound - 1}.")
    # The library names its own function, which its caller here did not call.
    text = f"{op}: {_last_error().decode(errors='replace').partition(': ')[2]}"
    if status == capi.TORCH_OPS_INDEX_OUT_OF_RANGE:  # of a point
        raise IndexError(text)
    if status == capi.TORCH_OPS_OUT_OF_MEMORY:
        raise MemoryError(text)
    if status in (capi.TORCH_OPS_NO_DEVICE, capi.TORCH_OPS_CUDA_ERROR,
                  capi.TORCH_OPS_INTERNAL_ERROR):
        raise RuntimeError(text)
    raise ValueError(text)


# ---- Rows by an index ---------------------------------------------------------------------------

cdef _gather(op, source, index, batch_dims, mode, fill_value, out, return_time, device):
    cdef int32_t memory = _memory_of(op, device)
    cdef int32_t by_mode = _choice_of(op, "mode", mode, _MODES)
    rows = _as_array(op, "source", source)
    entries = _as_index(op, index)
    batch_dims = _as_int(op, "batch_dims", batch_dims)
    if not 0 <= batch_dims < max(rows.ndim, 1) or rows.ndim == 0:
        raise ValueError(
            f"{op}: source must have an axis behind the {batch_dims} batch axes, but its shape is "
            f"{rows.shape}.")
    _check_batches(op, "source", rows, entries, batch_dims)
    shape = entries.shape + rows.shape[batch_dims + 1:]
    result = _take_out(op, out, shape, rows.dtype, (rows, entries))

    cdef _Memory from_ = _Memory(rows), by = _Memory(entries), to = _Memory(result, writable=True)
    cdef int64_t batch = _product(rows.shape[:batch_dims])
    cdef int64_t axis_size = rows.shape[batch_dims]
    cdef int64_t count = _product(entries.shape[batch_dims:])
    cdef int64_t inner = _product(rows.shape[batch_dims + 1:])
    cdef int32_t dtype = _DTYPES[rows.dtype.name]
    cdef int32_t index_type = _index_type(entries)
    cdef void* from_pointer = from_.pointer()
    cdef void* by_pointer = by.pointer()
    cdef void* to_pointer = to.pointer()
    cdef float milliseconds = 0
    cdef int32_t status
    filled = _as_fill(op, fill_value, rows.dtype)
    cdef _Memory fill = _Memory(filled if filled is not None else numpy.empty(0))
    cdef void* fill_pointer = fill.pointer()
    with nogil:
        if by_mode == capi.TORCH_OPS_MODE_RAISE:
            status = _batch_gather(from_pointer, by_pointer, to_pointer, batch, axis_size, count,
                                   inner, dtype, index_type, memory, NULL, &milliseconds)
        else:
            status = _gather_rows(from_pointer, by_pointer, to_pointer, batch, axis_size, count,
                                  inner, dtype, index_type, by_mode, fill_pointer, memory, NULL,
                                  &milliseconds)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise(op, status, entries, by_mode)
    return _give(result, out, return_time, milliseconds)


def gather(source, index, *, batch_dims=0, mode="raise", fill_value=None, out=None,
           return_time=False, device=None):
    """Returns the rows of ``source`` that ``index`` picks, along the first axis behind the batches.

    ``output[b..., i..., d...] = source[b..., index[b..., i...], d...]`` with ``batch_dims`` axes
    ``b``: ``numpy.take(source, index, axis=0)`` where there are none. Copies, to the last bit.

    Args:
        source: An array, or what has a buffer, of float16, bfloat16 (of ml_dtypes), float32,
            float64 or an integer dtype. One that is strided, unaligned or in another byte order is
            copied first.
        index: An array of an integer dtype but uint64; int32 and int64 are used as they are, others
            converted. Its first ``batch_dims`` axes are as long as the source's. Entries are
            between 0 and ``source.shape[batch_dims] - 1``.
        batch_dims: How many leading axes source and index share.
        mode: What an entry out of range is: "raise", an error; "wrap", the row modulo the size;
            "clip", the nearest row; "fill", none, so that ``fill_value`` is written, and -1 is the
            last row; "from_end", as "raise", but -1 is the last row; "unchecked", a promise that
            there is none.
        fill_value: What "fill" writes; None for 0.
        out: An array for the result, of its shape and dtype, with any strides.
        return_time: Whether to return the kernels' time too.
        device: Who computes: None for what is fastest (docs/c_api.md), "cpu", or "gpu".

    Returns:
        An array of the shape ``index.shape + source.shape[batch_dims+1:]``; with ``return_time`` a
        pair of it and the kernels' milliseconds.

    Other threads of Python run in the meantime.

    Raises:
        IndexError: An entry is out of range: the message has its position, its value and the bound.
            What ``out`` holds then is unspecified.
        TypeError: A dtype that is not in the lists above.
        ValueError: A shape, ``batch_dims`` or ``device`` that is none of the above.
        MemoryError: Host or device memory is short.
        RuntimeError: ``device="gpu"`` where there is none, or an error of CUDA.

    Example:
        >>> import numpy, torch_ops_host
        >>> source = numpy.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> torch_ops_host.gather(source, [2, 0])
        array([[5., 6.],
               [1., 2.]])
    """
    return _gather("gather", source, index, batch_dims, mode, fill_value, out, return_time, device)


def batch_gather(source, index, *, out=None, return_time=False, device=None):
    """Returns ``gather(source, index, batch_dims=index.ndim - 1)``.

    All axes of the index but its last are batch axes: ``[B, M, D]`` by ``[B, N]`` gives
    ``[B, N, D]``.

    Args:
        source: As for :func:`gather`.
        index: As for :func:`gather`, of one axis at least.
        out: As for :func:`gather`.
        return_time: As for :func:`gather`.
        device: As for :func:`gather`.

    Returns:
        An array of the shape ``index.shape + source.shape[index.ndim:]``, or a pair.

    Raises:
        ValueError: ``index`` has no axis. The rest is as for :func:`gather`.

    Example:
        >>> import numpy, torch_ops_host
        >>> source = numpy.array([[1, 2, 3], [4, 5, 6]])
        >>> torch_ops_host.batch_gather(source, [[2, 0], [1, 1]])
        array([[3, 1],
               [5, 5]])
    """
    index = numpy.asarray(index)
    if index.ndim == 0:
        raise ValueError("batch_gather: index must have at least one axis, but it is 0-dimensional.")
    return _gather("batch_gather", source, index, index.ndim - 1, "raise", None, out, return_time,
                   device)


cdef _reduce(op, values, index, dim_size, batch_dims, reduce, mode, int32_t flags, out,
             return_time, device):
    cdef int32_t memory = _memory_of(op, device)
    cdef int32_t reduction = _choice_of(op, "reduce", reduce, _REDUCTIONS)
    cdef int32_t by_mode = _choice_of(op, "mode", mode, _MODES)
    cdef bint plain = op == "scatter_add"  # which the C library may compute in pieces
    rows = _as_array(op, "values", values)
    entries = _as_index(op, index)
    dim_size = _as_int(op, "dim_size", dim_size)
    batch_dims = _as_int(op, "batch_dims", batch_dims)
    if dim_size < 0:
        raise ValueError(f"{op}: dim_size must not be negative, but it is {dim_size}.")
    _check_batches(op, "values", rows, entries, batch_dims)
    if rows.shape[:entries.ndim] != entries.shape:
        raise ValueError(
            f"{op}: the shape of values must begin with index's, {entries.shape}, but it is "
            f"{rows.shape}.")
    shape = entries.shape[:batch_dims] + (dim_size,) + rows.shape[entries.ndim:]
    result = _take_out(op, out, shape, rows.dtype, (rows, entries))

    cdef _Memory from_ = _Memory(rows), by = _Memory(entries), to = _Memory(result, writable=True)
    cdef int64_t batch = _product(entries.shape[:batch_dims])
    cdef int64_t axis_size = dim_size
    cdef int64_t count = _product(entries.shape[batch_dims:])
    cdef int64_t inner = _product(rows.shape[entries.ndim:])
    cdef int32_t dtype = _DTYPES[rows.dtype.name]
    cdef int32_t index_type = _index_type(entries)
    cdef void* from_pointer = from_.pointer()
    cdef void* by_pointer = by.pointer()
    cdef void* to_pointer = to.pointer()
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        if plain:
            status = _scatter_add(from_pointer, by_pointer, to_pointer, batch, axis_size, count,
                                  inner, dtype, index_type, memory, NULL, NULL, 0, &milliseconds)
        else:
            status = _scatter(from_pointer, by_pointer, to_pointer, batch, axis_size, count, inner,
                              dtype, index_type, reduction, by_mode, flags, memory, NULL,
                              &milliseconds)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise(op, status, entries, by_mode)
    return _give(result, out, return_time, milliseconds)


def scatter_add(values, index, dim_size, *, batch_dims=0, out=None, return_time=False, device=None):
    """Returns ``dim_size`` rows, each the sum of the rows of ``values`` that ``index`` sends there.

    ``result[b..., m, d...] = sum of values[b..., i..., d...] where index[b..., i...] == m``, and 0
    where there are none. The transpose of :func:`gather`. 16-bit floats are summed in float32 and
    rounded once; integers wrap. On the CPU the same bits on every run and with any number of
    threads; on a GPU the order in which floats are summed is not fixed.

    Args:
        values: As the source of :func:`gather`; its shape begins with the index's.
        index: As for :func:`gather`; entries are between 0 and ``dim_size - 1``.
        dim_size: How many rows the result has.
        batch_dims: How many leading axes values and index share with the result.
        out: As for :func:`gather`. Overwritten, not added to.
        return_time: As for :func:`gather`.
        device: As for :func:`gather`.

    Returns:
        An array of the shape ``index.shape[:batch_dims] + (dim_size,) + values.shape[index.ndim:]``,
        or a pair.

    Raises:
        ValueError: ``dim_size`` is negative, or the shapes do not fit. The rest is as for
            :func:`gather`.

    Example:
        >>> import numpy, torch_ops_host
        >>> torch_ops_host.scatter_add(numpy.array([1.0, 2.0, 4.0]), [1, 0, 1], 3)
        array([2., 5., 0.])
    """
    return _reduce("scatter_add", values, index, dim_size, batch_dims, "sum", "raise", 0, out,
                   return_time, device)


def scatter(values, index, dim_size, *, batch_dims=0, reduce="sum", mode="raise",
            deterministic=False, out=None, return_time=False, device=None):
    """Returns ``dim_size`` rows, each what the rows of ``values`` that ``index`` sends there give.

    As :func:`scatter_add`, for other reductions too: "sum", "mean" (of integers, rounded down),
    "prod", "amax" and "amin". Rows to which nothing is sent are 0, or 1 for "prod". 16-bit floats
    are computed in float32 and rounded once.

    Args:
        values: As for :func:`scatter_add`; for "amax" and "amin" not of uint16, uint32 or uint64.
        index: As for :func:`scatter_add`.
        dim_size: As for :func:`scatter_add`.
        batch_dims: As for :func:`scatter_add`.
        reduce: The reduction.
        mode: As for :func:`gather`, but "fill" leaves the values out.
        deterministic: Whether sums and means of floats must have the same bits on every run, on a
            GPU too. All other results, and those of the CPU, have them anyway.
        out: As for :func:`gather`. Overwritten.
        return_time: As for :func:`gather`.
        device: "gpu" for a GPU, whose memory must hold all arrays. Else the CPU computes.

    Returns:
        As :func:`scatter_add`.

    Raises:
        ValueError: ``reduce`` or ``mode`` is none of the above. The rest is as for
            :func:`scatter_add`.

    Example:
        >>> import numpy, torch_ops_host
        >>> torch_ops_host.scatter(numpy.array([1.0, 5.0, 2.0]), [0, 0, 2], 3, reduce="mean")
        array([3., 0., 2.])
    """
    flags = capi.TORCH_OPS_DETERMINISTIC if deterministic else 0
    return _reduce("scatter", values, index, dim_size, batch_dims, reduce, mode, flags, out,
                   return_time, device)


# ---- An entry for each element ------------------------------------------------------------------

cdef _axis_of(op, axis, rank) except *:
    axis = _as_int(op, "axis", axis)
    if not -rank <= axis < rank:
        raise ValueError(
            f"{op}: axis must be between {-rank} and {rank - 1}, but it is {axis}.")
    return axis % rank


cdef _check_elements(op, name, shape, index, axis):
    """All axes but this one are alike."""
    if len(shape) != index.ndim or any(
            size != index.shape[d] for d, size in enumerate(shape) if d != axis):
        raise ValueError(
            f"{op}: {name} and index must have the same shape but at axis {axis}, but {name} has "
            f"the shape {shape} and index {index.shape}.")


def gather_elements(source, index, axis, *, mode="raise", fill_value=None, out=None,
                    return_time=False, device=None):
    """Returns the elements of ``source`` that ``index`` picks along an axis, one entry for each.

    ``numpy.take_along_axis(source, index, axis)``, without broadcasting, and with modes. Copies, to
    the last bit.

    Args:
        source: As for :func:`gather`, with one axis at least.
        index: As for :func:`gather`; of the source's shape but at ``axis``.
        axis: Along which the index picks; negative counts from the end.
        mode: As for :func:`gather`; "from_end" is what take_along_axis does.
        fill_value: As for :func:`gather`.
        out: As for :func:`gather`.
        return_time: As for :func:`gather`.
        device: "gpu" for a GPU, whose memory must hold all arrays. Else the CPU computes.

    Returns:
        An array of the index's shape, or a pair.

    Raises:
        ValueError: The shapes do not fit, or ``axis`` or ``mode`` is none that is allowed. The rest
            is as for :func:`gather`.

    Example:
        >>> import numpy, torch_ops_host
        >>> source = numpy.array([[1, 2, 3], [4, 5, 6]])
        >>> torch_ops_host.gather_elements(source, [[2, 0], [1, -1]], 1, mode="from_end")
        array([[3, 1],
               [5, 6]])
    """
    op = "gather_elements"
    cdef int32_t memory = _memory_of(op, device)
    cdef int32_t by_mode = _choice_of(op, "mode", mode, _MODES)
    table = _as_array(op, "source", source)
    entries = _as_index(op, index)
    axis = _axis_of(op, axis, max(table.ndim, 1))
    _check_elements(op, "source", table.shape, entries, axis)
    if table.ndim == 0:
        raise ValueError(f"{op}: source must have at least one axis, but it is 0-dimensional.")
    result = _take_out(op, out, entries.shape, table.dtype, (table, entries))
    filled = _as_fill(op, fill_value, table.dtype)

    cdef _Memory from_ = _Memory(table), by = _Memory(entries), to = _Memory(result, writable=True)
    cdef _Memory fill = _Memory(filled if filled is not None else numpy.empty(0))
    cdef int64_t outer = _product(table.shape[:axis])
    cdef int64_t axis_size = table.shape[axis]
    cdef int64_t count = entries.shape[axis]
    cdef int64_t inner = _product(table.shape[axis + 1:])
    cdef int32_t dtype = _DTYPES[table.dtype.name]
    cdef int32_t index_type = _index_type(entries)
    cdef void* from_pointer = from_.pointer()
    cdef void* by_pointer = by.pointer()
    cdef void* to_pointer = to.pointer()
    cdef void* fill_pointer = fill.pointer()
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        status = _gather_elements(from_pointer, by_pointer, to_pointer, outer, axis_size, count,
                                  inner, dtype, index_type, by_mode, fill_pointer, memory, NULL,
                                  &milliseconds)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise(op, status, entries, by_mode)
    return _give(result, out, return_time, milliseconds)


def scatter_elements_add(values, index, dim_size, axis, *, mode="raise", deterministic=False,
                         out=None, return_time=False, device=None):
    """Returns the sums of the elements that ``index`` sends to each place along an axis.

    The transpose of :func:`gather_elements`: ``numpy.put_along_axis`` that adds to zeros. Integers
    wrap; 16-bit floats are summed in float32 and rounded once.

    Args:
        values: As for :func:`scatter_add`, with one axis at least.
        index: As for :func:`gather`; of the values' shape.
        dim_size: How long the result is at ``axis``.
        axis: Along which the index sends; negative counts from the end.
        mode: As for :func:`scatter`.
        deterministic: As for :func:`scatter`.
        out: As for :func:`gather`. Overwritten.
        return_time: As for :func:`gather`.
        device: "gpu" for a GPU, whose memory must hold all arrays. Else the CPU computes.

    Returns:
        An array of the values' shape with ``dim_size`` at ``axis``, or a pair.

    Raises:
        ValueError: The shapes do not fit, or an argument is none that is allowed. The rest is as
            for :func:`gather`.

    Example:
        >>> import numpy, torch_ops_host
        >>> values = numpy.array([[1.0, 2.0], [4.0, 8.0]])
        >>> torch_ops_host.scatter_elements_add(values, [[0, 2], [2, 2]], 3, 1)
        array([[ 1.,  0.,  2.],
               [ 0.,  0., 12.]])
    """
    op = "scatter_elements_add"
    cdef int32_t memory = _memory_of(op, device)
    cdef int32_t by_mode = _choice_of(op, "mode", mode, _MODES)
    cdef int32_t flags = capi.TORCH_OPS_DETERMINISTIC if deterministic else 0
    rows = _as_array(op, "values", values)
    entries = _as_index(op, index)
    axis = _axis_of(op, axis, max(rows.ndim, 1))
    dim_size = _as_int(op, "dim_size", dim_size)
    if dim_size < 0:
        raise ValueError(f"{op}: dim_size must not be negative, but it is {dim_size}.")
    if rows.ndim == 0 or rows.shape != entries.shape:
        raise ValueError(
            f"{op}: values and index must have one shape, of one axis at least, but values has the "
            f"shape {rows.shape} and index {entries.shape}.")
    shape = rows.shape[:axis] + (dim_size,) + rows.shape[axis + 1:]
    result = _take_out(op, out, shape, rows.dtype, (rows, entries))

    cdef _Memory from_ = _Memory(rows), by = _Memory(entries), to = _Memory(result, writable=True)
    cdef int64_t outer = _product(rows.shape[:axis])
    cdef int64_t axis_size = dim_size
    cdef int64_t count = rows.shape[axis]
    cdef int64_t inner = _product(rows.shape[axis + 1:])
    cdef int32_t dtype = _DTYPES[rows.dtype.name]
    cdef int32_t index_type = _index_type(entries)
    cdef void* from_pointer = from_.pointer()
    cdef void* by_pointer = by.pointer()
    cdef void* to_pointer = to.pointer()
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        status = _scatter_elements_add(from_pointer, by_pointer, to_pointer, outer, axis_size,
                                       count, inner, dtype, index_type, by_mode, flags, memory,
                                       NULL, &milliseconds)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise(op, status, entries, by_mode)
    return _give(result, out, return_time, milliseconds)


# ---- Points -------------------------------------------------------------------------------------

cdef enum:
    _MOST_COORDINATES = 16

def gather_points(source, coordinates, *, mode="raise", fill_value=None, out=None,
                  return_time=False, device=None):
    """Returns the slices of ``source`` at points that are given by their coordinates.

    ``source[coordinates[0], coordinates[1], ...]`` of NumPy, with modes. Copies, to the last bit.

    Args:
        source: As for :func:`gather`.
        coordinates: A sequence of index arrays, as for :func:`gather`, one for each of the source's
            first axes, 16 at most. They are broadcast against each other.
        mode: As for :func:`gather`; "from_end" is what NumPy does.
        fill_value: As for :func:`gather`.
        out: As for :func:`gather`.
        return_time: As for :func:`gather`.
        device: "gpu" for a GPU, whose memory must hold all arrays. Else the CPU computes.

    Returns:
        An array of the coordinates' shape and then of the source's further axes, or a pair.

    Raises:
        IndexError: A coordinate is out of range: the message has its position among the points.
        ValueError: There are no coordinates, more than axes, or they do not fit each other. The
            rest is as for :func:`gather`.

    Example:
        >>> import numpy, torch_ops_host
        >>> source = numpy.array([[1, 2, 3], [4, 5, 6]])
        >>> torch_ops_host.gather_points(source, ([0, 1, 1], [2, 0, 1]))
        array([3, 4, 5])
    """
    op = "gather_points"
    cdef int32_t memory = _memory_of(op, device)
    cdef int32_t by_mode = _choice_of(op, "mode", mode, _MODES)
    table = _as_array(op, "source", source)
    given = [_as_index(op, each) for each in coordinates]
    most = min(table.ndim, <int> _MOST_COORDINATES)
    if not 1 <= len(given) <= most:
        raise ValueError(
            f"{op}: there must be 1 to {most} coordinates for source with the shape {table.shape}, "
            f"but there are {len(given)}.")
    try:
        given = numpy.broadcast_arrays(*given)
    except ValueError:
        raise ValueError(
            f"{op}: the coordinates must have shapes that fit each other, but they are "
            f"{', '.join(str(each.shape) for each in given)}.") from None
    narrow = all(each.dtype == numpy.int32 for each in given)
    given = [numpy.require(each, numpy.int32 if narrow else numpy.int64, ("C", "A"))
             for each in given]
    shape = given[0].shape + table.shape[len(given):]
    result = _take_out(op, out, shape, table.dtype, (table, *given))
    filled = _as_fill(op, fill_value, table.dtype)

    cdef _Memory from_ = _Memory(table), to = _Memory(result, writable=True), one
    cdef _Memory fill = _Memory(filled if filled is not None else numpy.empty(0))
    cdef const void* pointers[_MOST_COORDINATES]
    cdef int64_t sizes[_MOST_COORDINATES]
    held = []  # the memory of the coordinates
    for j, each in enumerate(given):
        one = _Memory(each)
        held.append(one)
        pointers[j] = one.pointer()
        sizes[j] = table.shape[j]
    cdef int32_t coordinate_count = len(given)
    cdef int64_t points = given[0].size
    cdef int64_t inner = _product(table.shape[len(given):])
    cdef int32_t dtype = _DTYPES[table.dtype.name]
    cdef int32_t index_type = _index_type(given[0])
    cdef void* from_pointer = from_.pointer()
    cdef void* to_pointer = to.pointer()
    cdef void* fill_pointer = fill.pointer()
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        status = _gather_points(from_pointer, pointers, sizes, coordinate_count, to_pointer, 1,
                                points, inner, dtype, index_type, by_mode, fill_pointer, memory,
                                NULL, &milliseconds)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise(op, status)
    return _give(result, out, return_time, milliseconds)


# ---- Activations --------------------------------------------------------------------------------

cdef _apply(op, MapFunction function, x, out, return_time, device, double slope=0):
    """By a function, or by leaky_relu where that is NULL."""
    cdef int32_t memory = _memory_of(op, device)
    values = _as_array(op, "x", x, _FLOATING)
    result = _take_out(op, out, values.shape, values.dtype, (values,), may_be=values)
    cdef _Memory from_ = _Memory(values), to = _Memory(result, writable=True)
    cdef void* from_pointer = from_.pointer()
    cdef void* to_pointer = to.pointer()
    cdef int64_t size = values.size
    cdef int32_t dtype = _DTYPES[values.dtype.name]
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        if function != NULL:
            status = function(from_pointer, to_pointer, size, dtype, memory, NULL, &milliseconds)
        else:
            status = _leaky_relu(from_pointer, to_pointer, size, slope, dtype, memory, NULL,
                                 &milliseconds)
    if status != capi.TORCH_OPS_SUCCESS:
        _raise(op, status)
    return _give(result, out, return_time, milliseconds)


def relu(x, *, out=None, return_time=False, device=None):
    """Returns ``max(x, 0)``, element by element; NaN stays NaN.

    Args:
        x: An array, or what has a buffer, of float16, bfloat16 (of ml_dtypes), float32 or float64.
        out: As for :func:`gather`; it may be ``x``.
        return_time: As for :func:`gather`.
        device: As for :func:`gather`.

    Returns:
        An array of x's shape and dtype, or a pair.

    Raises:
        TypeError: Another dtype. The rest is as for :func:`gather`.

    Example:
        >>> import numpy, torch_ops_host
        >>> torch_ops_host.relu(numpy.array([-1.5, 0.5]))
        array([0. , 0.5])
    """
    return _apply("relu", _relu, x, out, return_time, device)


def leaky_relu(x, slope=0.01, *, out=None, return_time=False, device=None):
    """Returns ``x`` where it is positive, else ``slope * x``.

    Args:
        x: As for :func:`relu`.
        slope: A float.
        out: As for :func:`relu`.
        return_time: As for :func:`relu`.
        device: As for :func:`relu`.

    Returns:
        As :func:`relu`.

    Example:
        >>> import numpy, torch_ops_host
        >>> torch_ops_host.leaky_relu(numpy.array([-2.0, 0.0, 3.0]), 0.5)
        array([-1.,  0.,  3.])
    """
    try:
        slope = float(slope)
    except (TypeError, ValueError):
        raise TypeError(f"leaky_relu: slope must be a float, but it is {slope!r}.") from None
    return _apply("leaky_relu", NULL, x, out, return_time, device, slope)


def sigmoid(x, *, out=None, return_time=False, device=None):
    """Returns ``1 / (1 + exp(-x))``, element by element; 16-bit floats are computed in float32.

    Args:
        x: As for :func:`relu`.
        out: As for :func:`gather`; it may be ``x``.
        return_time: As for :func:`gather`.
        device: As for :func:`gather`.

    Returns:
        An array of x's shape and dtype, or a pair.

    Raises:
        TypeError: Another dtype. The rest is as for :func:`gather`.

    Example:
        >>> import numpy, torch_ops_host
        >>> torch_ops_host.sigmoid(numpy.array([0.0, -1000.0]))
        array([0.5, 0. ])
    """
    return _apply("sigmoid", _sigmoid, x, out, return_time, device)


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
        shape: An integer or a tuple.
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
        return numpy.empty(shape, dtype)
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
