# A part of _host.pyx: arguments of calls, results, and errors.


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
cdef tuple _UNORDERED = ("uint16", "uint32", "uint64")  # which the library does not compare
_LARGEST_BFLOAT16 = float.fromhex("0x1.fep127")
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
    cdef void* pointer  # NULL for an empty array

    def __cinit__(self, array, bint writable=False):
        # As bytes: the buffer protocol has no name for every dtype. A subclass may view otherwise.
        flags = PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0)
        if array.size == 0:
            return  # no memory, and no view of another dtype
        plain = array.view(numpy.ndarray).reshape(-1)
        PyObject_GetBuffer(plain.view(numpy.uint8), &self.view, flags)
        self.pointer = self.view.buf

    def __dealloc__(self):
        if self.pointer != NULL:
            PyBuffer_Release(&self.view)


cdef _as_array(op, name, value, allowed=tuple(_DTYPES)):
    array = numpy.asarray(value)
    if array.dtype.name not in allowed:
        raise TypeError(
            f"{op}: {name} must be of one of the dtypes {', '.join(allowed)}, but it is "
            f"{array.dtype}.")
    # Strided, unaligned and byte-swapped arrays are copied.
    return numpy.require(array, array.dtype.newbyteorder("="), ("C", "A"))


cdef _as_index(op, index, name="index"):
    array = numpy.asarray(index)
    if array.dtype.kind not in "iu" or array.dtype == numpy.uint64:
        raise TypeError(
            f"{op}: {name} must be of any integer dtype except uint64, but it is {array.dtype}.")
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


cdef _as_number(value):
    """Python's number for a scalar of Python or NumPy; None for what is not a number."""
    if not isinstance(value, numpy.generic):
        return value if isinstance(value, (int, float, complex)) else None
    kind = value.dtype.kind
    if kind == "f" or value.dtype.name == "bfloat16":
        return float(value)  # item() of a longdouble is a longdouble
    if kind == "c":
        return complex(value)
    return value.item() if kind in "biu" else None


cdef _as_fill(op, mode, fill_value, dtype):
    """An array of one element; of none for zero."""
    if fill_value is None:
        return numpy.empty(0)
    number = _as_number(fill_value)
    if number is None:
        raise TypeError(f"{op}: fill_value must be a number, but it is {fill_value!r}.")
    if mode != "fill":
        raise ValueError(f'{op}: fill_value is for mode="fill", but mode is "{mode}".')
    if isinstance(number, complex):
        raise ValueError(
            f"{op}: fill_value must be a real number for {dtype}, but it is {number}.")
    if dtype.kind in "iu":
        if not isinstance(number, int):
            raise ValueError(
                f"{op}: fill_value must be an integer for {dtype}, but it is {number}.")
        least, most = int(numpy.iinfo(dtype).min), int(numpy.iinfo(dtype).max)
        if not least <= number <= most:
            raise ValueError(
                f"{op}: fill_value must be between {least} and {most} for {dtype}, but it is "
                f"{number}.")
        return numpy.full(1, number, dtype)
    largest = _LARGEST_BFLOAT16 if dtype.name == "bfloat16" else float(numpy.finfo(dtype).max)
    if largest < abs(number) != math.inf:
        raise ValueError(
            f"{op}: fill_value must be between -{largest:g} and {largest:g} for {dtype}, but it is "
            f"{number}.")
    return numpy.full(1, float(number), dtype)


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


cdef _give(op, int32_t status, result, out, return_time, float milliseconds, index=None,
           int32_t mode=capi.TORCH_OPS_MODE_RAISE):
    if status != capi.TORCH_OPS_SUCCESS:
        _raise(op, status, index, mode)
    if out is not None and result is not out:
        out.view(numpy.ndarray)[...] = result
        result = out
    return (result, milliseconds) if return_time else result


cdef _raise(op, int32_t status, index=None, int32_t mode=capi.TORCH_OPS_MODE_RAISE):
    cdef int64_t position = 0, value = 0, bound = 0, least = 0
    if status == capi.TORCH_OPS_INDEX_OUT_OF_RANGE and index is not None:
        _last_index_error(&position, &value, &bound)
        entry = ", ".join(str(int(i)) for i in numpy.unravel_index(position, index.shape))
        if bound == 0:
            raise IndexError(
                f"{op}: the number of entries of index is {index.size}, but the axis has size 0: "
                "no entry is allowed.")
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
