"""libtorch_ops_c by ctypes, as the tests of the C interface call it."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch_ops_host

HEADER = Path(torch_ops_host.get_include()) / "torch_ops.h"
TEXT = HEADER.read_text(encoding="utf-8")
# Status codes, dtypes and the like by their names without TORCH_OPS_.
VALUES = {name: int(value) for name, value in re.findall(r"TORCH_OPS_(\w+) = (\d+)", TEXT)}
# Functions by the header: those that follow TORCH_OPS_API, each with its result and parameters.
FUNCTIONS = {
    name: (result, [] if parameters == "void" else parameters.split(","))
    for result, name, parameters in re.findall(
        r"^TORCH_OPS_API ([\w*\s]*?)\b(torch_ops_\w+)\((.*?)\);", TEXT, re.MULTILINE | re.DOTALL
    )
}

HOST, DEVICE, HOST_CPU, HOST_GPU = (
    VALUES[name] for name in ("HOST", "DEVICE", "HOST_CPU", "HOST_GPU")
)
_TYPES = {"float": c_float, "double": c_double, "int": c_int, "int64_t": c_int64}
_TYPES |= dict.fromkeys(["int32_t", *re.findall(r"typedef int32_t (\w+);", TEXT)], c_int32)


def _type_of(declared: str) -> Any:
    """Of a result or a parameter; addresses are taken as numbers, too."""
    words = declared.replace("const ", "").split()
    if words[0] == "char*":
        return c_char_p
    if words == ["float*", "milliseconds"]:
        return POINTER(c_float)
    if "*" in declared or words[0] == "torch_ops_stream":
        return POINTER(c_void_p) if declared.count("*") == 2 else c_void_p
    return _TYPES[words[0]]


class Library:
    """Its functions without their prefix: LIBRARY.gather(...)."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name, (result, parameters) in FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype = _type_of(result)
            function.argtypes = [_type_of(each) for each in parameters]
            setattr(self, name.removeprefix("torch_ops_"), function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def error(self) -> str:
        return str(self.last_error().decode())


LIBRARY = Library(torch_ops_host.library_path())


def status_name(status: int) -> str:
    """Of a status: SUCCESS, NULL_POINTER and so on."""
    header = TEXT[TEXT.index("TORCH_OPS_SUCCESS") : TEXT.index("typedef int32_t torch_ops_dtype")]
    names = {int(value): name for name, value in re.findall(r"TORCH_OPS_(\w+) = (\d+)", header)}
    return names[status]
