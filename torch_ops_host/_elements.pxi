# A part of _host.pyx: an entry for each element, and points.

# ---- An entry for each element ------------------------------------------------------------------

cdef _axis_of(op, axis, rank):
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
    return _pick(op, _gather_elements, table, entries, axis, entries.shape[axis], entries.shape,
                 by_mode, mode, fill_value, out, return_time, memory)


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
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        status = _scatter_elements_add(from_.pointer, by.pointer, to.pointer, outer, axis_size,
                                       count, inner, dtype, index_type, by_mode, flags, memory,
                                       NULL, &milliseconds)
    return _give(op, status, result, out, return_time, milliseconds, entries, by_mode)


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
        TypeError: ``coordinates`` is not a sequence.
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
    if not numpy.iterable(coordinates):
        raise TypeError(
            f"{op}: coordinates must be a sequence of index arrays, one for each axis, but it is "
            f"{coordinates!r}.")
    given = [_as_index(op, each, f"coordinates[{j}]") for j, each in enumerate(coordinates)]
    most = min(table.ndim, <int> _MOST_COORDINATES)
    if not 1 <= len(given) <= most:
        raise ValueError(
            f"{op}: the number of coordinates must be between 1 and {most} for source with the "
            f"shape {table.shape}, but it is {len(given)}.")
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

    cdef _Memory from_ = _Memory(table), to = _Memory(result, writable=True), one
    cdef _Memory fill = _Memory(_as_fill(op, mode, fill_value, table.dtype))
    cdef const void* pointers[_MOST_COORDINATES]
    cdef int64_t sizes[_MOST_COORDINATES]
    held = []  # the memory of the coordinates
    for j, each in enumerate(given):
        one = _Memory(each)
        held.append(one)
        pointers[j] = one.pointer
        sizes[j] = table.shape[j]
    cdef int32_t coordinate_count = len(given)
    cdef int64_t points = given[0].size
    cdef int64_t inner = _product(table.shape[len(given):])
    cdef int32_t dtype = _DTYPES[table.dtype.name]
    cdef int32_t index_type = _index_type(given[0])
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        status = _gather_points(from_.pointer, pointers, sizes, coordinate_count, to.pointer, 1,
                                points, inner, dtype, index_type, by_mode, fill.pointer, memory,
                                NULL, &milliseconds)
    return _give(op, status, result, out, return_time, milliseconds)
