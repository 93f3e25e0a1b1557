"""What compiled code tells by itself, and its way into the process."""

from __future__ import annotations

import hashlib
import importlib
import re
import threading
from typing import Any

from torch_ops.jit.building.cache import Artefact
from torch_ops.jit.building.signature import Kind, Param

_ext: Any = importlib.import_module("torch_ops._ext.jit")

_libraries: dict[bytes, int] = {}
_libraries_lock = threading.Lock()


def load_once(artefact: Artefact) -> int:
    """The library of compiled code; the same code is loaded once."""
    key = hashlib.sha256(artefact.data).digest()
    with _libraries_lock:
        if key not in _libraries:
            _libraries[key] = _ext.load_library(artefact.data)
        return _libraries[key]


def kernels_in(artefact: Artefact) -> list[str]:
    """The symbols of the kernels in compiled code."""
    if artefact.facts["format"] == "ptx":
        found = re.findall(rb"\.entry\s+([\w$.]+)", artefact.data)
    else:  # each has a section of its own
        found = re.findall(rb"\.text\.([\w$.]+)(?=\0)", artefact.data)
    return list(dict.fromkeys(symbol.decode() for symbol in found))


def params_in_ptx(ptx: str, symbol: str) -> list[Param]:
    """The parameters of a kernel in PTX: their sizes, and which are floats."""
    begin = re.search(rf"\.entry\s+{re.escape(symbol)}\s*\(([^)]*)\)", ptx)
    params: list[Param] = []
    for declared in re.findall(r"\.param\s+([^,\n]+)", begin[1] if begin else ""):
        words = declared.split()
        kind, bits = next((w[1], w[2:]) for w in words if re.fullmatch(r"\.[fsub]\d+", w))
        array = re.search(r"\[(\d+)\]", declared)
        text = " ".join(words[:-1])
        if array:
            params.append((text, Kind.BYTES, int(array[1]), [], "", 1, False))
        elif ".ptr" in words:
            params.append((text, Kind.POINTER, 8, [], "", 1, True))
        elif bits == "64" and kind != "f":
            params.append((text, Kind.UNKNOWN, 8, [], "", 1, True))
        else:
            is_float = kind == "f"  # of other numbers the sign is not known
            number = Kind.FLOAT if is_float else Kind.BITS
            params.append((text, number, int(bits) // 8, [], "", 1, False))
    return params
