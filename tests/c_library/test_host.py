"""torch_ops_host: NumPy arrays in and out, without torch; on the CPU, and a GPU if there is one."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from host_arrays import DEVICES, make, picks, reference_gather, reference_scatter
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import torch_ops
import torch_ops_host as host

FLOATING = ["float16", "float32", "float64"]
ALL = [*FLOATING, *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))]


@pytest.fixture(params=DEVICES, ids=str)
def device(request: pytest.FixtureRequest) -> Any:
    """Who computes. Stands in for the fixture of the tensors' devices."""
    return request.param


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
    for value in (0.5, ml_dtypes.bfloat16(0.5)):
        assert host.gather(source, [9], mode="fill", fill_value=value)[0, 0] == 0.5
    with pytest.raises(ValueError, match=r"between -3.38953e\+38 and 3.38953e\+38 for bfloat16"):
        host.gather(source, [9], mode="fill", fill_value=1e39)
    np.testing.assert_array_equal(result.view(np.uint16), source[index].view(np.uint16))
    assert host.relu(source).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", FLOATING)
def test_leaky_relu(device: Any, dtype: str) -> None:
    values = np.array([-2, -0.5, 0, 3, np.inf, np.nan], dtype)
    result = host.leaky_relu(values, 0.25, device=device)
    np.testing.assert_array_equal(result, np.where(values > 0, values, values / 4), strict=True)
    assert host.leaky_relu([-1.0, 1.0]).tolist() == [-0.01, 1.0]
    with pytest.raises(ValueError, match="leaky_relu: slope must fit float64"):
        host.leaky_relu(values, 10**400)
    for wrong in (None, "0.5"):
        with pytest.raises(
            TypeError, match=f"leaky_relu: slope must be a float, but it is {wrong!r}"
        ):
            host.leaky_relu(values, wrong)  # type: ignore[call-overload]


# ---- Reductions, elements, points and modes


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64"])
def test_scatter(device: Any, dtype: str, deterministic: bool) -> None:
    values, index = make((2, 90, 3), dtype), picks((2, 90), 40)
    reductions = {
        "sum": lambda picked: picked.sum(0),
        "mean": lambda picked: np.floor(picked.mean(0)) if dtype[0] == "i" else picked.mean(0),
        "prod": lambda picked: picked.prod(0),
        "amax": lambda picked: picked.max(0),
        "amin": lambda picked: picked.min(0),
    }
    for reduce, over in reductions.items():
        wanted = np.full((2, 40, 3), 1.0 if reduce == "prod" else 0.0)
        for b, row in np.ndindex(2, 40):
            picked = values[b, index[b] == row].astype(np.float64)
            if len(picked) > 0:
                wanted[b, row] = over(picked)
        options: Any = {"reduce": reduce, "deterministic": deterministic, "device": device}
        result = host.scatter(values, index, 40, batch_dims=1, **options)
        # Products of 8 bits wrap.
        expected = wanted.astype(np.int64).astype(dtype) if dtype[0] == "i" else wanted
        np.testing.assert_array_equal(result, expected.astype(dtype), strict=True)


def test_modes(device: Any) -> None:
    source = make((7, 3), "float32")
    index = np.array([-9, -1, 3, 7, 30])
    for mode, rows in {"wrap": [5, 6, 3, 0, 2], "clip": [0, 0, 3, 6, 6]}.items():
        result = host.gather(source, index, mode=mode, device=device)
        np.testing.assert_array_equal(result, source[rows], strict=True)
        sums = host.scatter(result, index, 7, mode=mode, device=device)
        np.testing.assert_array_equal(sums, reference_scatter(result, np.array(rows), 7, 0))
    filled = host.gather(source, index, mode="fill", fill_value=9, device=device)
    np.testing.assert_array_equal(filled[[1, 2]], source[[6, 3]])
    assert (filled[[0, 3, 4]] == 9).all()
    sums = host.scatter(filled, index, 7, mode="fill", device=device)
    assert not sums[[0, 1, 2, 4, 5]].any()
    np.testing.assert_array_equal(sums[[6, 3]], source[[6, 3]])
    picked = host.gather(source, [-1, 0], mode="from_end", device=device)
    np.testing.assert_array_equal(picked, source[[-1, 0]])
    with pytest.raises(IndexError, match=r"gather: index\[1\] is -8, .* must be between -7 and 6"):
        host.gather(source, [0, -8], mode="from_end", device=device)
    with pytest.raises(ValueError, match=r'mode must be one of "raise", "wrap", .*, but it is 3'):
        host.gather(source, [0], mode=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"reduce must be one of .*, but it is 'max'"):
        host.scatter(source, index, 7, reduce="max")  # type: ignore[call-overload]


FILLED: list[Callable[..., np.ndarray]] = [
    lambda source, **options: host.gather(source, [9], **options),
    lambda source, **options: host.gather_elements(source, [9], 0, **options),
    lambda source, **options: host.gather_points(source, [[9]], **options),
]


@pytest.mark.parametrize("call", FILLED, ids=["gather", "gather_elements", "gather_points"])
@pytest.mark.parametrize(
    ("dtype", "value", "error", "message"),
    [
        ("int64", 1.5, ValueError, "must be an integer for int64, but it is 1.5"),
        ("int64", np.nan, ValueError, "must be an integer for int64, but it is nan"),
        ("uint8", 300.0, ValueError, "must be an integer for uint8, but it is 300.0"),
        ("uint8", 300, ValueError, "must be between 0 and 255 for uint8, but it is 300"),
        ("int8", np.int64(-129), ValueError, "must be between -128 and 127 for int8, but it is"),
        ("uint64", 2**64, ValueError, "must be between 0 and 18446744073709551615 for uint64"),
        ("float32", 1 + 2j, ValueError, r"must be a real number for float32, but it is \(1\+2j\)"),
        ("float16", np.float32(7e4), ValueError, "must be between -65504 and 65504 for float16"),
        ("float64", 10**400, ValueError, r"must be between -1.79769e\+308 and 1.79769e\+308 for"),
        ("float32", "3", TypeError, "must be a number, but it is '3'"),
        ("float32", np.ones(1), TypeError, r"must be a number, but it is array\(\[1.\]\)"),
        ("int64", np.timedelta64(3, "ns"), TypeError, "must be a number, but it is"),
    ],
    ids=str,
)
def test_fill_values_that_are_refused(
    call: Callable[..., np.ndarray], dtype: str, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f": fill_value {message}"):
        call(np.zeros(3, dtype), mode="fill", fill_value=value)


@pytest.mark.parametrize("call", FILLED, ids=["gather", "gather_elements", "gather_points"])
def test_a_fill_value_is_for_one_mode(call: Callable[..., np.ndarray]) -> None:
    for mode in ("raise", "wrap", "clip", "unchecked", "from_end"):
        with pytest.raises(ValueError, match=f'is for mode="fill", but mode is "{mode}"'):
            call(np.zeros(3), mode=mode, fill_value=0)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *[(dtype, value) for dtype in FLOATING for value in (np.nan, -np.inf, 2, True, 1.5)],
        ("float64", np.longdouble(0.1)),
        ("float32", np.float64(0.1)),
        ("float16", np.uint8(7)),
        ("uint64", 2**64 - 1),
        ("int8", np.int64(-128)),
        ("uint8", np.True_),
    ],
    ids=str,
)
def test_fill_values(dtype: str, value: Any) -> None:
    for call in FILLED:
        result = call(np.zeros(3, dtype), mode="fill", fill_value=value)
        np.testing.assert_array_equal(result, np.array([value]).astype(dtype), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements(device: Any, dtype: str, axis: int) -> None:
    source = make((6, 5, 4), dtype)
    shape = list(source.shape)
    shape[axis] = 9
    size = source.shape[axis]
    index = picks(tuple(shape), size, "int32")
    result = host.gather_elements(source, index, axis, device=device)
    np.testing.assert_array_equal(result, np.take_along_axis(source, index, axis), strict=True)
    negative = index - size
    np.testing.assert_array_equal(
        host.gather_elements(source, negative, axis, mode="from_end", device=device), result
    )
    for deterministic in (False, True):
        sums = host.scatter_elements_add(
            result, index, size, axis, deterministic=deterministic, device=device
        )
        places = list(np.indices(index.shape))
        places[axis] = index
        wanted = np.zeros(source.shape, np.float64 if dtype[0] == "f" else np.int64)
        np.add.at(wanted, tuple(places), result)
        np.testing.assert_array_equal(sums, wanted.astype(dtype), strict=True)
    index[1, 2, 3] = size
    message = rf"index\[1, 2, 3\] is {size}, out of range for an axis of size {size}"
    with pytest.raises(IndexError, match=f"gather_elements: {message}"):
        host.gather_elements(source, index, axis, device=device)
    with pytest.raises(IndexError, match=f"scatter_elements_add: {message}"):
        host.scatter_elements_add(result, index, size, axis, device=device)


def test_points(device: Any) -> None:
    source = make((6, 5, 4), "float32")
    first, second = picks((7, 1), 6, "int32"), picks((3,), 5)
    result = host.gather_points(source, (first, second), device=device)
    np.testing.assert_array_equal(result, source[first, second], strict=True)
    np.testing.assert_array_equal(
        host.gather_points(source, [first - 6, second], mode="from_end", device=device), result
    )
    filled = host.gather_points(source, [[0, 9], 3], mode="fill", fill_value=7, device=device)
    np.testing.assert_array_equal(filled, [source[0, 3], np.full(4, 7, np.float32)])
    with pytest.raises(IndexError, match=r"gather_points: coordinates\[1\]\[2\] is 5, out"):
        host.gather_points(source, [[0, 1, 2], [0, 1, 5]], device=device)
    with pytest.raises(ValueError, match="must be between 1 and 3 for source with the shape"):
        host.gather_points(source, [])
    with pytest.raises(ValueError, match="the coordinates must have shapes that fit each other"):
        host.gather_points(source, [[0, 1], [0, 1, 2]])
    with pytest.raises(TypeError, match=r"coordinates must be a sequence of index arrays.* is 5"):
        host.gather_points(source, 5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"coordinates\[1\] must be of any integer dtype except"):
        host.gather_points(source, [[0], [0.5]])
    with pytest.raises(IndexError, match=r"coordinates\[1\] has entries, but the axis has size 0"):
        host.gather_points(np.ones((2, 0)), [[0], [0]], device=device)


def test_shapes_of_elements_that_do_not_fit() -> None:
    source = make((6, 5), "float32")
    index = picks((6, 9), 5)
    with pytest.raises(ValueError, match="axis must be between -2 and 1, but it is 2"):
        host.gather_elements(source, index, 2)
    with pytest.raises(ValueError, match="must have the same shape but at axis 0, but source has"):
        host.gather_elements(source, index, 0)
    with pytest.raises(ValueError, match="values and index must have one shape"):
        host.scatter_elements_add(source, index, 5, 1)
    with pytest.raises(ValueError, match="source must have at least one axis"):
        host.gather_elements(np.float32(1), np.int64(0), 0)
    with pytest.raises(ValueError, match="dim_size must not be negative"):
        host.scatter_elements_add(source, picks((6, 5), 5), -1, 1)


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


def test_masks_are_ignored(device: Any) -> None:
    source = np.ma.masked_less(make((8, 3), "float32"), 0)
    for whole in (np.ma.masked_all((5, 3), np.float32), np.ma.masked_all((5, 6), np.float32)):
        out = whole[:, :: whole.shape[1] // 3]
        assert host.gather(source, [3, 0, 7, 7, 2], out=out, device=device) is out
        np.testing.assert_array_equal(out.data, source.data[[3, 0, 7, 7, 2]])
        assert out.mask.all()


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
    message = "number of entries of index is 1, but the axis has size 0: no entry is allowed"
    with pytest.raises(IndexError, match=message):
        host.gather(np.ones((0, 2)), [0], device=device)
    with pytest.raises(IndexError, match=message):
        host.scatter_add(np.ones((1, 2)), [0], 0, device=device)


def test_index_is_checked_where_rows_are_empty(device: Any) -> None:
    with pytest.raises(IndexError, match=r"index\[1\] is 9"):
        host.gather(np.ones((5, 0)), [0, 9], device=device)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: host.gather(np.ones(3, complex), [0]), TypeError, "source must be of one of"),
        (lambda: host.gather(np.ones(3), [0.0]), TypeError, "index must be of any integer dtype"),
        (lambda: host.gather(np.ones(3), np.uint64([0])), TypeError, "but it is uint64"),
        (lambda: host.gather(np.ones(3), [True]), TypeError, "but it is bool"),
        *[
            (
                lambda dtype=dtype: host.scatter(np.ones(2, dtype), [0, 0], 1, reduce="amax"),
                TypeError,
                f'values must not be of uint16, .* for reduce="amax", but they are of {dtype}',
            )
            for dtype in ("uint16", "uint32", "uint64")
        ],
        (lambda: host.gather(1.0, [0]), ValueError, "must have an axis"),
        (lambda: host.gather(np.ones(1), [0], batch_dims=1), ValueError, "must have an axis"),
        (
            lambda: host.gather(np.ones((3, 3)), [0], batch_dims=-1),
            ValueError,
            "batch_dims must be between 0 and index.ndim = 1, but it is -1",
        ),
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
        (
            lambda: host.gather(np.ones(3), [0], batch_dims="0"),
            TypeError,
            "batch_dims must be an int",
        ),
        (lambda: host.scatter_add(np.ones(2), [0, 1], "5"), TypeError, "dim_size must be an int"),
        (
            lambda: host.scatter_add(np.ones(2), [0, 1], 5, batch_dims=None),
            TypeError,
            "batch_dims must be an int, but it is None",
        ),
        (lambda: host.relu([1, 2]), TypeError, "but it is int64"),
        (lambda: host.sigmoid(["a"]), TypeError, "sigmoid: x must be"),
        (lambda: host.relu(np.ones(3), device="tpu"), ValueError, '"cpu" or "gpu", but it is'),
        (
            lambda: host.relu(np.ones(3), device=["cpu"]),
            ValueError,
            r"""relu: device must be None, "cpu" or "gpu", but it is \['cpu'\]""",
        ),
        (
            lambda: host.scatter_add(np.ones(2), [0, 1], 2**70),
            ValueError,
            rf"scatter_add: the result would have the shape \({2**70},\)",
        ),
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
    for name, arguments in (
        ("gather", (np.ones(3), [0])),
        ("batch_gather", (np.ones(3), [0])),
        ("scatter_add", (np.ones(1), [0], 3)),
        ("sigmoid", (np.ones(3),)),
        ("hello", (1,)),
    ):
        with pytest.raises(RuntimeError, match=f"^{name}: a CUDA device is asked for, but"):
            getattr(host, name)(*arguments, device="gpu")


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
