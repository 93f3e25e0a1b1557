# A part of _host.pyx: rows by an index.


cdef _gather(op, source, index, batch_dims, mode, fill_value, out, return_time, device):
    cdef int32_t memory = _memory_of(op, device)
    cdef int32_t by_mode = _choice_of(op, "mode", mode, _MODES)
    rows = _as_array(op, "source", source)
    entries = _as_index(op, index)
    batch_dims = _as_int(op, "batch_dims", batch_dims)
    _check_batches(op, "source", rows, entries, batch_dims)
    if batch_dims >= rows.ndim:
        raise ValueError(
            f"{op}: source must have an axis after the batch axes (batch_dims={batch_dims}), but its "
            f"shape is {rows.shape}.")
    shape = entries.shape + rows.shape[batch_dims + 1:]
    return _pick(op, _gather_rows if by_mode != capi.TORCH_OPS_MODE_RAISE else NULL, rows, entries,
                 batch_dims, _product(entries.shape[batch_dims:]), shape, by_mode, mode, fill_value,
                 out, return_time, memory)


cdef _pick(op, ModeFunction function, table, entries, axis, int64_t count, shape, int32_t by_mode,
           mode, fill_value, out, return_time, int32_t memory):
    """By a function, or by batch_gather, which the C library may compute in pieces, if it is NULL.

    The index has `count` entries at the axis.
    """
    result = _take_out(op, out, shape, table.dtype, (table, entries))

    cdef _Memory from_ = _Memory(table), by = _Memory(entries), to = _Memory(result, writable=True)
    cdef _Memory fill = _Memory(_as_fill(op, mode, fill_value, table.dtype))
    cdef int64_t outer = _product(table.shape[:axis])
    cdef int64_t axis_size = table.shape[axis]
    cdef int64_t inner = _product(table.shape[axis + 1:])
    cdef int32_t dtype = _DTYPES[table.dtype.name]
    cdef int32_t index_type = _index_type(entries)
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        if function != NULL:
            status = function(from_.pointer, by.pointer, to.pointer, outer, axis_size, count, inner,
                              dtype, index_type, by_mode, fill.pointer, memory, NULL, &milliseconds)
        else:
            status = _batch_gather(from_.pointer, by.pointer, to.pointer, outer, axis_size, count,
                                   inner, dtype, index_type, memory, NULL, &milliseconds)
    return _give(op, status, result, out, return_time, milliseconds, entries, by_mode)


def gather(source, index, *, batch_dims=0, mode="raise", fill_value=None, out=None,
           return_time=False, device=None):
    """Returns the rows of ``source`` that ``index`` picks, along the first axis after the batches.

    ``output[b..., i..., d...] = source[b..., index[b..., i...], d...]`` with ``batch_dims`` axes
    ``b``: ``numpy.take(source, index, axis=0)`` where there are none. Copies, to the last bit.

    Args:
        source: An array, or what has a buffer, of float16, bfloat16 (of ml_dtypes), float32,
            float64 or an integer dtype. One that is strided, unaligned or in another byte order is
            copied first. Masks of masked arrays are ignored, here and in the other arguments.
        index: An array of any integer dtype except uint64; int32 and int64 are used as they are,
            others converted. Its first ``batch_dims`` axes are as long as the source's. Entries are
            between 0 and ``source.shape[batch_dims] - 1``.
        batch_dims: How many leading axes source and index share.
        mode: What an entry out of range is: "raise", an error; "wrap", the row modulo the size;
            "clip", the nearest row; "fill", none, so that ``fill_value`` is written; "from_end", an
            error as for "raise"; "unchecked", a promise that there is none. For "fill" and
            "from_end" entries down to ``-size`` are in range and count from the end: -1 is the last
            row.
        fill_value: What "fill" writes: a number that the source's dtype has, an int for integers;
            None for 0. Only for "fill".
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
        ValueError: A shape, ``batch_dims``, ``fill_value`` or ``device`` that is none of the above.
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
    if reduce in ("amax", "amin") and rows.dtype.name in _UNORDERED:
        raise TypeError(
            f'{op}: values must not be of {", ".join(_UNORDERED)} for reduce="{reduce}", but they '
            f"are of {rows.dtype}.")
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
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        if plain:
            status = _scatter_add(from_.pointer, by.pointer, to.pointer, batch, axis_size, count,
                                  inner, dtype, index_type, memory, NULL, NULL, 0, &milliseconds)
        else:
            status = _scatter(from_.pointer, by.pointer, to.pointer, batch, axis_size, count, inner,
                              dtype, index_type, reduction, by_mode, flags, memory, NULL,
                              &milliseconds)
    return _give(op, status, result, out, return_time, milliseconds, entries, by_mode)


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
        TypeError: ``values`` has a dtype that ``reduce`` does not allow.
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
