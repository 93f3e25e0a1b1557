from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, overload

from numpy import bool_, floating, integer
from numpy.typing import ArrayLike, DTypeLike, NDArray

Device = Literal["cpu", "gpu"] | None
Mode = Literal["raise", "wrap", "clip", "fill", "unchecked", "from_end"]
Reduction = Literal["sum", "mean", "prod", "amax", "amin"]
Number = float | integer[Any] | floating[Any] | bool_
_Array = NDArray[Any]
_Timed = tuple[NDArray[Any], float]

@overload
def gather(
    source: ArrayLike,
    index: ArrayLike,
    *,
    batch_dims: SupportsIndex = 0,
    mode: Mode = "raise",
    fill_value: Number | None = None,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def gather(
    source: ArrayLike,
    index: ArrayLike,
    *,
    batch_dims: SupportsIndex = 0,
    mode: Mode = "raise",
    fill_value: Number | None = None,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def batch_gather(
    source: ArrayLike,
    index: ArrayLike,
    *,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def batch_gather(
    source: ArrayLike,
    index: ArrayLike,
    *,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def scatter_add(
    values: ArrayLike,
    index: ArrayLike,
    dim_size: SupportsIndex,
    *,
    batch_dims: SupportsIndex = 0,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def scatter_add(
    values: ArrayLike,
    index: ArrayLike,
    dim_size: SupportsIndex,
    *,
    batch_dims: SupportsIndex = 0,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def scatter(
    values: ArrayLike,
    index: ArrayLike,
    dim_size: SupportsIndex,
    *,
    batch_dims: SupportsIndex = 0,
    reduce: Reduction = "sum",
    mode: Mode = "raise",
    deterministic: bool = False,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def scatter(
    values: ArrayLike,
    index: ArrayLike,
    dim_size: SupportsIndex,
    *,
    batch_dims: SupportsIndex = 0,
    reduce: Reduction = "sum",
    mode: Mode = "raise",
    deterministic: bool = False,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def gather_elements(
    source: ArrayLike,
    index: ArrayLike,
    axis: SupportsIndex,
    *,
    mode: Mode = "raise",
    fill_value: Number | None = None,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def gather_elements(
    source: ArrayLike,
    index: ArrayLike,
    axis: SupportsIndex,
    *,
    mode: Mode = "raise",
    fill_value: Number | None = None,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def scatter_elements_add(
    values: ArrayLike,
    index: ArrayLike,
    dim_size: SupportsIndex,
    axis: SupportsIndex,
    *,
    mode: Mode = "raise",
    deterministic: bool = False,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def scatter_elements_add(
    values: ArrayLike,
    index: ArrayLike,
    dim_size: SupportsIndex,
    axis: SupportsIndex,
    *,
    mode: Mode = "raise",
    deterministic: bool = False,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def gather_points(
    source: ArrayLike,
    coordinates: Sequence[ArrayLike],
    *,
    mode: Mode = "raise",
    fill_value: Number | None = None,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def gather_points(
    source: ArrayLike,
    coordinates: Sequence[ArrayLike],
    *,
    mode: Mode = "raise",
    fill_value: Number | None = None,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def relu(
    x: ArrayLike,
    *,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def relu(
    x: ArrayLike,
    *,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def leaky_relu(
    x: ArrayLike,
    slope: float = 0.01,
    *,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def leaky_relu(
    x: ArrayLike,
    slope: float = 0.01,
    *,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
@overload
def sigmoid(
    x: ArrayLike,
    *,
    out: _Array | None = None,
    return_time: Literal[False] = False,
    device: Device = None,
) -> _Array: ...
@overload
def sigmoid(
    x: ArrayLike,
    *,
    out: _Array | None = None,
    return_time: Literal[True],
    device: Device = None,
) -> _Timed: ...
def pinned_empty(
    shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = ...
) -> _Array: ...
def hello(threads: SupportsIndex = 8, device: Device = None) -> None: ...
def version() -> str: ...
def build_config() -> dict[str, str]: ...
def device_count() -> int: ...
def get_num_threads() -> int: ...
def set_num_threads(threads: SupportsIndex) -> None: ...
def set_device_memory_limit(bytes: SupportsIndex) -> None: ...
