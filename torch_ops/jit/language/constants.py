"""Values that are baked into a source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

# The C++ type of each dtype, and the header that it needs.
CTYPES = {
    torch.bool: ("bool", ""),
    torch.int8: ("signed char", ""),
    torch.uint8: ("unsigned char", ""),
    torch.int16: ("short", ""),
    torch.uint16: ("unsigned short", ""),
    torch.int32: ("int", ""),
    torch.uint32: ("unsigned int", ""),
    torch.int64: ("long long", ""),
    torch.uint64: ("unsigned long long", ""),
    torch.float16: ("__half", "cuda_fp16.h"),
    torch.bfloat16: ("__nv_bfloat16", "cuda_bf16.h"),
    torch.float32: ("float", ""),
    torch.float64: ("double", ""),
    torch.complex64: ("float2", ""),
    torch.complex128: ("double2", ""),
    torch.float8_e4m3fn: ("__nv_fp8_e4m3", "cuda_fp8.h"),
    torch.float8_e5m2: ("__nv_fp8_e5m2", "cuda_fp8.h"),
}


def define(constants: Mapping[str, Any] | None) -> str:
    """Source text that gives each name its value.

    Numbers and text become macros, so that ``#if`` and ``#pragma unroll`` take them too; a dtype
    becomes a type.
    """
    if constants is not None and not isinstance(constants, Mapping):
        raise TypeError(
            f"constants must be a dict of names and values, but it is {type(constants).__name__}."
        )
    lines = []
    for name, value in (constants or {}).items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"constants: a name must be one of C++, but it is {name!r}.")
        if isinstance(value, torch.dtype):
            if value not in CTYPES:
                raise TypeError(f"constants: {name} is {value}, which CUDA has no type for.")
            ctype, header = CTYPES[value]
            lines += [f"#include <{header}>"] if header else []
            lines.append(f"using {name} = {ctype};")
        else:
            lines.append(f"#define {name} {_literal(name, value)}")
    return "\n".join(lines)


def _literal(name: str, value: Any) -> str:
    if hasattr(value, "item") and not isinstance(value, torch.Tensor | type):  # a NumPy scalar
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(name, value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        if "\n" in value:
            raise ValueError(f"constants: {name} must be one line, but it is {value!r}.")
        return value
    raise TypeError(
        f"constants: {name} must be an int, a float, a bool, a str or a torch.dtype, but it is a "
        f"{type(value).__name__}."
    )


def _integer(name: str, value: int) -> str:
    if value == -(2**63):  # whose literal without the sign would be too large
        return f"({value + 1}ll - 1)"
    if not -(2**63) < value < 2**64:
        raise ValueError(f"constants: {name} is {value}, which no integer of CUDA's holds.")
    suffix = "" if abs(value) < 2**31 else "ll" if value < 2**63 else "ull"
    return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"


def _number(value: float) -> str:
    if math.isnan(value):
        return "(__longlong_as_double(0x7ff8000000000000ll))"
    if math.isinf(value):
        infinity = "__longlong_as_double(0x7ff0000000000000ll)"
        return f"({infinity})" if value > 0 else f"(-{infinity})"
    return repr(value) if math.copysign(1, value) > 0 else f"({value!r})"
