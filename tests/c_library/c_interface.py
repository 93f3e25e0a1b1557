"""libtorch_ops_c by ctypes, as the tests of the C interface call it."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

import torch_ops_host

HEADER = Path(torch_ops_host.get_include()) / "torch_ops.h"
TEXT = HEADER.read_text(encoding="utf-8")
# Status codes, dtypes and the like by their names without TORCH_OPS_.
VALUES = {name: int(value) for name, value in re.findall(r"TORCH_OPS_(\w+) = (\d+)", TEXT)}
# Names of functions by the header: those that follow TORCH_OPS_API.
FUNCTIONS = re.findall(r"^TORCH_OPS_API [\w*\s]*?\b(torch_ops_\w+)\(", TEXT, re.MULTILINE)

HOST, DEVICE, HOST_CPU, HOST_GPU = (
    VALUES[name] for name in ("HOST", "DEVICE", "HOST_CPU", "HOST_GPU")
)
INDEX_TYPES = {np.dtype(np.int32): 0, np.dtype(np.int64): 1}
DTYPES = {
    np.dtype(name): VALUES[name.upper()]
    for name in (
        *("float16", "float32", "float64", "int8", "uint8"),
        *("int16", "uint16", "int32", "uint32", "int64", "uint64"),
    )
}

_ROWS = [c_void_p] * 3 + [c_int64] * 4 + [c_int32] * 3 + [c_void_p]
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "status_string": (c_char_p, [c_int32]),
    "last_error": (c_char_p, []),
    "last_index_error": (c_int32, [POINTER(c_int64)] * 3),
    "check_errors": (c_int32, [c_void_p]),
    "api_version": (c_int32, []),
    "version": (c_char_p, []),
    "build_config": (c_char_p, []),
    "device_count": (c_int32, []),
    "set_num_threads": (c_int32, [c_int32]),
    "get_num_threads": (c_int32, []),
    "set_device_memory_limit": (c_int32, [c_int64]),
    "host_alloc": (c_int32, [c_int64, POINTER(c_void_p)]),
    "host_free": (c_int32, [c_void_p]),
    "gather": (c_int32, _ROWS[:3] + _ROWS[4:] + [POINTER(c_float)]),
    "batch_gather": (c_int32, [*_ROWS, POINTER(c_float)]),
    "scatter_add": (c_int32, [*_ROWS, c_void_p, c_int64, POINTER(c_float)]),
    "scatter_add_workspace": (
        c_int32,
        [c_int64] * 3 + [c_int32] * 2 + [POINTER(c_int64)],
    ),
    "gather_rows": (c_int32, [*_ROWS[:-2], c_int32, c_void_p, c_int32, c_void_p, POINTER(c_float)]),
    "scatter": (c_int32, [*_ROWS[:-2], *[c_int32] * 4, c_void_p, POINTER(c_float)]),
    "scatter_arg": (c_int32, [*_ROWS[:-2], *[c_int32] * 3, c_void_p, POINTER(c_float)]),
    "scatter_elements_add": (
        c_int32,
        [*_ROWS[:-2], *[c_int32] * 3, c_void_p, POINTER(c_float)],
    ),
    "gather_points": (
        c_int32,
        [c_void_p, POINTER(c_void_p), POINTER(c_int64), c_int32, c_void_p]
        + [c_int64] * 3
        + [c_int32] * 3
        + [c_void_p, c_int32, c_void_p, POINTER(c_float)],
    ),
    "put_points": (
        c_int32,
        [c_void_p, POINTER(c_void_p), POINTER(c_int64), c_int32, c_void_p]
        + [c_int64] * 3
        + [c_int32] * 4
        + [c_void_p, POINTER(c_float)],
    ),
    "ravel_points": (
        c_int32,
        [POINTER(c_void_p), POINTER(c_int64), c_int32, c_void_p, c_int64]
        + [c_int32] * 3
        + [c_void_p, POINTER(c_float)],
    ),
    "plan_create": (
        c_int32,
        [c_void_p] + [c_int64] * 3 + [c_int32] * 2 + [c_void_p, POINTER(c_void_p)],
    ),
    "plan_destroy": (c_int32, [c_void_p]),
    "plan_gather": (
        c_int32,
        [c_void_p] * 3 + [c_int64, c_int32, c_void_p, POINTER(c_float)],
    ),
    "plan_scatter": (
        c_int32,
        [c_void_p] * 3 + [c_int64] + [c_int32] * 3 + [c_void_p, POINTER(c_float)],
    ),
    "leaky_relu": (
        c_int32,
        [c_void_p] * 2 + [c_int64, c_double] + [c_int32] * 2 + [c_void_p, POINTER(c_float)],
    ),
    "leaky_relu_backward": (
        c_int32,
        [c_void_p] * 3 + [c_int64, c_double] + [c_int32] * 2 + [c_void_p, POINTER(c_float)],
    ),
    "relu": (c_int32, [c_void_p] * 2 + [c_int64] + [c_int32] * 2 + [c_void_p, POINTER(c_float)]),
    "relu_backward": (
        c_int32,
        [c_void_p] * 3 + [c_int64] + [c_int32] * 2 + [c_void_p, POINTER(c_float)],
    ),
    "gather_host": (c_float, [c_void_p] * 3 + [c_int] * 2),
    "batch_gather_host": (c_float, [c_void_p] * 3 + [c_int] * 3),
    "hello": (c_int32, [c_int32, c_int32]),
}
_SIGNATURES["gather_elements"] = _SIGNATURES["gather_rows"]
_SIGNATURES["sigmoid"] = _SIGNATURES["relu"]
_SIGNATURES["sigmoid_backward"] = _SIGNATURES["relu_backward"]


class Library:
    """Its functions without their prefix: LIBRARY.gather(...)."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, f"torch_ops_{name}")
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def error(self) -> str:
        return str(self.last_error().decode())


LIBRARY = Library(torch_ops_host.library_path())


def has_signature(function: str) -> bool:
    return function.removeprefix("torch_ops_") in _SIGNATURES


def status_name(status: int) -> str:
    """Of a status: SUCCESS, NULL_POINTER and so on."""
    header = TEXT[TEXT.index("TORCH_OPS_SUCCESS") : TEXT.index("typedef int32_t torch_ops_dtype")]
    names = {int(value): name for name, value in re.findall(r"TORCH_OPS_(\w+) = (\d+)", header)}
    return names[status]
