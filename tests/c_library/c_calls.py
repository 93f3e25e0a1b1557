"""The functions of libtorch_ops_c with an index, on tensors; and plain references for them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from c_interface import DEVICE, HOST, HOST_CPU, HOST_GPU, LIBRARY, VALUES, status_name
from torch import Tensor

import torch_ops_host as host

# Who computes, by name.
MEMORIES = {"HOST": HOST, "HOST_CPU": HOST_CPU}
if host.device_count() > 0:
    MEMORIES |= {"HOST_GPU": HOST_GPU, "DEVICE": DEVICE}

MODES = ["RAISE", "WRAP", "CLIP", "FILL", "FROM_END"]
REDUCTIONS = ["SUM", "MEAN", "PROD", "AMAX", "AMIN"]
DETERMINISTIC, ONTO_RESULT = VALUES["DETERMINISTIC"], VALUES["ONTO_RESULT"]


class CError(Exception):
    """A status that is not TORCH_OPS_SUCCESS, by its name, and the text."""


def code(tensor: Tensor) -> int:
    name = str(tensor.dtype).removeprefix("torch.").upper()
    return VALUES[name]


def index_code(index: Tensor) -> int:
    return VALUES["INDEX_" + str(index.dtype).removeprefix("torch.").upper()]


class Caller:
    """Calls with tensors of a kind of memory; `stream` is that of a device."""

    def __init__(self, memory: str, stream: int | None = None, timed: bool = False) -> None:
        self.memory = MEMORIES[memory]
        self.device = "cuda" if memory == "DEVICE" else "cpu"
        self.stream = stream
        self.timed = timed

    def place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def like(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A result of which nothing is written yet."""
        return torch.full(tuple(shape), 77, device=self.device).to(dtype)

    def call(self, name: str, *arguments: Any) -> None:
        """Ends with the stream and the time; waits, and raises what a kernel found."""
        time = ctypes.c_float(-1) if self.timed else None
        if self.device == "cuda":
            torch.cuda.synchronize()  # the arrays are there, whatever stream wrote them
        status = getattr(LIBRARY, name)(*arguments, self.stream, time)
        if status == 0 and self.device == "cuda":
            status = LIBRARY.check_errors(self.stream)
        if status != 0:
            raise CError(f"{status_name(status)}: {LIBRARY.error()}")
        assert time is None or time.value >= 0

    def gather_rows(
        self, source: Tensor, index: Tensor, mode: str = "RAISE", fill: Any = None
    ) -> Tensor:
        """[B, M, D] by [B, N]."""
        output = self.like((*index.shape, source.shape[2]), source.dtype)
        options = (VALUES[f"MODE_{mode}"], fill_of(source, fill))
        self._by_index("gather_rows", source, index, output, source, *options)
        return output

    def gather_elements(
        self, source: Tensor, index: Tensor, mode: str = "RAISE", fill: Any = None
    ) -> Tensor:
        """[O, M, I] by [O, N, I]."""
        output = self.like(index.shape, source.dtype)
        options = (VALUES[f"MODE_{mode}"], fill_of(source, fill))
        self._by_index("gather_elements", source, index, output, source, *options)
        return output

    def scatter_elements_add(
        self, values: Tensor, index: Tensor, size: int, mode: str = "RAISE", flags: int = 0
    ) -> Tensor:
        result = self.like((values.shape[0], size, values.shape[2]), values.dtype)
        options = (VALUES[f"MODE_{mode}"], flags)
        self._by_index("scatter_elements_add", values, index, result, result, *options)
        return result

    def scatter(
        self,
        values: Tensor,
        index: Tensor,
        size: int,
        reduce: str = "SUM",
        mode: str = "RAISE",
        flags: int = 0,
        out: Tensor | None = None,
    ) -> Tensor:
        """[B, N, D] by [B, N]."""
        shape = (values.shape[0], size, values.shape[2])
        result = self.like(shape, values.dtype) if out is None else out
        options = (VALUES[f"REDUCE_{reduce}"], VALUES[f"MODE_{mode}"], flags)
        self._by_index("scatter", values, index, result, result, *options)
        return result

    def scatter_arg(
        self, values: Tensor, index: Tensor, size: int, reduce: str, mode: str = "RAISE"
    ) -> Tensor:
        shape = (values.shape[0], size, values.shape[2])
        positions = self.like(shape, torch.int64)
        options = (VALUES[f"REDUCE_{reduce}"], VALUES[f"MODE_{mode}"])
        self._by_index("scatter_arg", values, index, positions, positions, *options)
        return positions

    def gather_points(
        self, source: Tensor, coordinates: Sequence[Tensor], mode: str = "RAISE", fill: Any = None
    ) -> Tensor:
        """[B, sizes..., D] by coordinates [B, P]."""
        batch, points = coordinates[0].shape
        output = self.like((batch, points, source.shape[-1]), source.dtype)
        self.call(
            "gather_points",
            *(source.data_ptr(), *point_arrays(coordinates, source.shape[1:-1])),
            *(output.data_ptr(), batch, points, source.shape[-1], code(source)),
            *(index_code(coordinates[0]), VALUES[f"MODE_{mode}"], fill_of(source, fill)),
            self.memory,
        )
        return output

    def put_points(
        self, table: Tensor, coordinates: Sequence[Tensor], values: Tensor, mode: str = "RAISE"
    ) -> None:
        batch, points = coordinates[0].shape
        self.call(
            "put_points",
            *(table.data_ptr(), *point_arrays(coordinates, table.shape[1:-1])),
            *(values.data_ptr(), batch, points, table.shape[-1], code(table)),
            *(index_code(coordinates[0]), VALUES[f"MODE_{mode}"], self.memory),
        )

    def ravel_points(
        self, coordinates: Sequence[Tensor], sizes: Sequence[int], mode: str = "RAISE"
    ) -> Tensor:
        places = self.like(coordinates[0].shape, torch.int64)
        self.call(
            "ravel_points",
            *(*point_arrays(coordinates, sizes), places.data_ptr(), places.numel()),
            *(index_code(coordinates[0]), VALUES[f"MODE_{mode}"], self.memory),
        )
        return places

    @contextmanager
    def plan(self, index: Tensor, size: int) -> Iterator[ctypes.c_void_p]:
        plan = ctypes.c_void_p()
        if self.device == "cuda":
            torch.cuda.synchronize()
        batch, entries = index.shape
        status = LIBRARY.plan_create(
            *(index.data_ptr(), batch, size, entries, index_code(index), self.memory),
            *(self.stream, ctypes.byref(plan)),
        )
        if status != 0:
            assert plan.value is None
            raise CError(f"{status_name(status)}: {LIBRARY.error()}")
        try:
            yield plan
        finally:
            assert LIBRARY.plan_destroy(plan) == 0

    def plan_gather(self, plan: ctypes.c_void_p, source: Tensor, entries: int) -> Tensor:
        output = self.like((source.shape[0], entries, source.shape[2]), source.dtype)
        pointers = (source.data_ptr(), output.data_ptr())
        self.call("plan_gather", plan, *pointers, source.shape[2], code(source))
        return output

    def plan_scatter(
        self,
        plan: ctypes.c_void_p,
        values: Tensor,
        size: int,
        reduce: str = "SUM",
        flags: int = 0,
        out: Tensor | None = None,
    ) -> Tensor:
        shape = (values.shape[0], size, values.shape[2])
        result = self.like(shape, values.dtype) if out is None else out
        self.call(
            "plan_scatter",
            *(plan, values.data_ptr(), result.data_ptr(), shape[2], code(values)),
            *(VALUES[f"REDUCE_{reduce}"], flags),
        )
        return result

    def _by_index(
        self, name: str, first: Tensor, index: Tensor, last: Tensor, table: Tensor, *options: Any
    ) -> None:
        self.call(
            name,
            *(tensor.data_ptr() for tensor in (first, index, last)),
            *(table.shape[0], table.shape[1], index.shape[1], table.shape[2]),
            *(code(first), index_code(index), *options, self.memory),
        )


def fill_of(tensor: Tensor, value: Any) -> Any:
    """A pointer to an element of the tensor's dtype, in host memory."""
    if value is None:
        return None
    element = torch.tensor([value]).to(tensor.dtype)
    return ctypes.create_string_buffer(bytes(element.view(torch.uint8).tolist()))


def point_arrays(coordinates: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Any, Any, int]:
    count = len(coordinates)
    pointers = (ctypes.c_void_p * count)(*(each.data_ptr() for each in coordinates))
    return pointers, (ctypes.c_int64 * count)(*sizes), count


# ---- References


def resolve(entry: int, size: int, mode: str) -> int | None:
    """The row that an entry names; None where it names none."""
    if mode == "WRAP":
        return entry % size
    if mode == "CLIP":
        return min(max(entry, 0), size - 1)
    row = entry + size if entry < 0 and mode in ("FILL", "FROM_END") else entry
    return row if 0 <= row < size else None


def reduce_reference(
    values: np.ndarray, index: np.ndarray, size: int, reduce: str, mode: str
) -> Any:
    """[N, D] of float64 or of Python's integers by [N]: what a reduction gives, as float64."""
    result = np.zeros((size, values.shape[1]), object)
    for row in range(size):
        named = [n for n, entry in enumerate(index) if resolve(int(entry), size, mode) == row]
        for d in range(values.shape[1]):
            picked = [values[n, d] for n in named]
            if reduce == "PROD":
                result[row, d] = math.prod(picked)
            elif picked:
                total = sum(picked)
                whole = isinstance(total, int)
                result[row, d] = {
                    "SUM": total,
                    "MEAN": total // len(picked) if whole else total / len(picked),
                    "AMAX": max(picked),
                    "AMIN": min(picked),
                }[reduce]
    return result


def as_numbers(tensor: Tensor) -> np.ndarray:
    """Python's integers and floats."""
    floats = tensor.dtype.is_floating_point
    numbers = tensor.double() if floats else tensor.to(torch.int64)
    return numbers.cpu().numpy().astype(object)
