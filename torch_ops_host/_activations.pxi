# A part of _host.pyx: activations.


cdef _apply(op, MapFunction function, x, out, return_time, device, double slope=0):
    """By a function, or by leaky_relu where that is NULL."""
    cdef int32_t memory = _memory_of(op, device)
    values = _as_array(op, "x", x, _FLOATING)
    result = _take_out(op, out, values.shape, values.dtype, (values,), may_be=values)
    cdef _Memory from_ = _Memory(values), to = _Memory(result, writable=True)
    cdef int64_t size = values.size
    cdef int32_t dtype = _DTYPES[values.dtype.name]
    cdef float milliseconds = 0
    cdef int32_t status
    with nogil:
        if function != NULL:
            status = function(from_.pointer, to.pointer, size, dtype, memory, NULL, &milliseconds)
        else:
            status = _leaky_relu(from_.pointer, to.pointer, size, slope, dtype, memory, NULL,
                                 &milliseconds)
    return _give(op, status, result, out, return_time, milliseconds)


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
        slope = float(None if isinstance(slope, (str, bytes)) else slope)
    except (TypeError, ValueError):
        raise TypeError(f"leaky_relu: slope must be a float, but it is {slope!r}.") from None
    except OverflowError:
        raise ValueError("leaky_relu: slope must fit float64, but it is larger.") from None
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
