"""The parameters of a kernel: read from mangled names, which no macro and no typedef can hide."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

_ext: Any = importlib.import_module("torch_ops._ext.jit")

# Beside a source that is compiled: the mangled name of signature<decltype(&kernel)> holds the types
# of the kernel's parameters, which the name of an extern "C" kernel does not.
SIGNATURES = "namespace torch_ops { template <class> __device__ char signature; }"

Kind: Any = _ext.ParamKind
# Type and name for messages; kind; bytes (0: unknown); dtypes that a pointer may point to (none:
# any), and these in words; the alignment that a pointer needs; whether it may be written through.
Param = tuple[str, Any, int, list[torch.dtype], str, int, bool]


def signature_of(kernel: str) -> str:
    """The name expression whose mangled name tells a kernel's signature."""
    return f"&torch_ops::signature<decltype(&{kernel})>"


def kernel_name(mangled: str) -> str:
    """``"scale<float,4>"`` of the mangled name of it; without spaces."""
    text = _ext.demangle(mangled)
    if text is None:
        return mangled
    text = text[: _parameters_begin(text)]
    # A template's name has its return type before it.
    return text.removeprefix("void ").replace(" ", "")


def types_in(mangled: str) -> list[str] | None:
    """The types of the parameters, where a mangled name of signature<> or of a kernel has them."""
    text = _ext.demangle(mangled)
    if text is None:
        return None
    inner = re.fullmatch(r"torch_ops::signature<void ?\(\*\)(\(.*\))>", text)
    listed = inner[1] if inner else text[_parameters_begin(text) :]
    if not listed.startswith("(") or not listed.endswith(")"):
        return None
    types = [part.strip() for part in split(listed[1:-1])]
    return [] if types in ([""], ["void"]) else types


def _parameters_begin(text: str) -> int:
    """Where the last parenthesis at depth 0 opens, which is that of the parameters."""
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        if text[position] in ")>]":
            depth += 1
        elif text[position] in "(<[":
            depth -= 1
            if depth == 0 and text[position] == "(":
                return position
    return len(text)


def split(text: str) -> list[str]:
    """Splits at the commas that are outside all brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "(<[{":
            depth += 1
        elif character in ")>]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


# ---- types --------------------------------------------------------------------------------------

_INTEGERS = {  # bytes, and the dtypes of an array of it
    "signed char": (1, [torch.int8]),
    "char": (1, [torch.int8, torch.uint8]),
    "unsigned char": (1, [torch.uint8, torch.bool]),
    "short": (2, [torch.int16]),
    "unsigned short": (2, [torch.uint16]),
    "int": (4, [torch.int32]),
    "unsigned int": (4, [torch.uint32]),
    "long": (8, [torch.int64]),
    "unsigned long": (8, [torch.uint64]),
    "long long": (8, [torch.int64]),
    "unsigned long long": (8, [torch.uint64]),
}
_FLOATS = {
    "float": (Kind.FLOAT, 4, torch.float32),
    "double": (Kind.FLOAT, 8, torch.float64),
    "__half": (Kind.HALF, 2, torch.float16),
    "__nv_bfloat16": (Kind.BFLOAT16, 2, torch.bfloat16),
}
_POINTED = {  # what only a pointer can point to, with a dtype of torch's
    "__nv_fp8_e4m3": [torch.float8_e4m3fn],
    "__nv_fp8_e5m2": [torch.float8_e5m2],
    "__nv_fp8_e8m0": [torch.float8_e8m0fnu],
    "__half2": [torch.float16],
    "__nv_bfloat162": [torch.bfloat16],
}
_COMPLEX = re.compile(r"(?:cuda::std|std|thrust)::(?:\w+::)*complex<(float|double)>")
_VECTOR = re.compile(r"(u?)(char|short|int|long|longlong|float|double)([1234])(?:_(16|32)a)?")
_ALIGN_OF_PAIR = {"__half2": 4, "__nv_bfloat162": 4}


def make_param(type: str, name: str) -> Param:
    """What a call checks an argument of this type against."""
    bare = re.sub(r"\b(?:const|volatile|__restrict__?)\b ?", "", type).strip()
    text = f"{_as_written(type)} {name}".strip()
    if type.rstrip().endswith(("*", "]")) or "(*)" in type or type.rstrip().endswith("__restrict"):
        pointed = re.sub(r"\*\s*(?:const|__restrict(?:__)?)?\s*$", "", type).strip()
        writes = not re.search(r"\bconst$|^const\b", pointed)
        dtypes, align = _element(re.sub(r"\b(?:const|volatile)\b", "", pointed).strip())
        words = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return text, Kind.POINTER, 8, dtypes, words, align, writes
    if bare == "bool":
        return _scalar(text, Kind.BOOL, 1)
    if bare in _INTEGERS:
        unsigned = bare.startswith("unsigned")
        return _scalar(text, Kind.UNSIGNED if unsigned else Kind.INT, _INTEGERS[bare][0])
    if bare in _FLOATS:
        kind, size, _ = _FLOATS[bare]
        return _scalar(text, kind, size)
    if bare in ("float2", "double2") or _COMPLEX.fullmatch(bare):
        return _scalar(text, Kind.COMPLEX, 16 if "double" in bare else 8)
    return _scalar(text, Kind.BYTES, 0)


def _scalar(text: str, kind: Any, size: int) -> Param:
    return text, kind, size, [], "", 1, False


def _element(type: str) -> tuple[list[torch.dtype], int]:
    """The dtypes of a tensor that a pointer to this type may point to, and its alignment."""
    if type == "bool":
        return [torch.bool], 1
    if type in _INTEGERS:
        return _INTEGERS[type][1], 1
    if type in _FLOATS:
        return [_FLOATS[type][2]], 1
    if type in _POINTED:
        return _POINTED[type], _ALIGN_OF_PAIR.get(type, 1)
    if type.endswith("*"):  # an array of pointers
        return [torch.int64, torch.uint64], 1
    if found := _COMPLEX.fullmatch(type):
        return [torch.complex64 if found[1] == "float" else torch.complex128], 1
    if found := _VECTOR.fullmatch(type):
        return _vector(*found.groups())
    return [], 1  # a struct, an enum, void


def _vector(unsigned: str, scalar: str, count: str, align: str | None) -> tuple[Any, int]:
    """float4 and the like: read from a tensor of the scalars, or of complex numbers."""
    if scalar in ("float", "double"):
        dtypes = [torch.float32 if scalar == "float" else torch.float64]
        if count == "2":
            dtypes.append(torch.complex64 if scalar == "float" else torch.complex128)
        size = 4 if scalar == "float" else 8
    else:
        word = {"longlong": "long long"}.get(scalar, scalar)
        name = f"unsigned {word}" if unsigned else {"char": "signed char"}.get(word, word)
        size, dtypes = _INTEGERS[name]
    if align:
        return dtypes, int(align)
    # A vector of three is an array of its elements; others lie at multiples of their size.
    return dtypes, size if count in "13" else min(16, size * int(count))


def _as_written(type: str) -> str:
    """``float const*`` as people write it: ``const float*``."""
    found = re.fullmatch(r"([^*]+?) const(\*+)", type)
    return f"const {found[1]}{found[2]}" if found else type


# ---- what the text tells: which kernels there are, and what their parameters are called ----------


class KernelText(NamedTuple):
    """A kernel as it stands in the text: macros and conditions are not looked at."""

    name: str
    is_template: bool
    parameters: tuple[str, ...]  # their names, "" where there is none


_TOKEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | (?m:^[ \t]*\#(?:[^\n\\]|\\.)*)
    | R"(?P<tag>[^\s()\\]*)\(.*?\)(?P=tag)" | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)+'
    | (?P<token>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)* | [^\s\w])""",
    re.DOTALL | re.VERBOSE,
)


@functools.lru_cache(maxsize=256)
def find_kernels(code: str) -> tuple[KernelText, ...]:
    """The ``__global__`` functions in a source."""
    return tuple(_find_kernels([m["token"] for m in _TOKEN.finditer(code) if m["token"]]))


def _find_kernels(tokens: list[str]) -> Iterator[KernelText]:
    # What each open brace is: the name of a namespace, "" for one without a name and extern "C",
    # None for all others.
    scopes: list[str | None] = []
    statement: list[str] = []  # the tokens since the last ; or brace
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token == "{":
            scopes.append(_scope(statement))
            statement = []
        elif token in ";}":
            if token == "}" and scopes:
                scopes.pop()
            statement = []
        elif token == "__global__" and None not in scopes:
            is_template = "template" in statement
            name, parameters, position = _read_kernel(tokens, position)
            if name:
                path = [scope for scope in scopes if scope] + [name]
                yield KernelText("::".join(path), is_template, parameters)
            statement = []
        else:
            statement.append(token)


def _scope(statement: list[str]) -> str | None:
    if "namespace" in statement:
        after = statement[statement.index("namespace") + 1 :]
        return after[0] if after else ""
    return "" if statement == ["extern"] else None


def _read_kernel(tokens: list[str], position: int) -> tuple[str, tuple[str, ...], int]:
    """Name and parameters' names of the kernel whose ``__global__`` was read, and where it ends."""
    name = ""
    while position < len(tokens) and tokens[position] not in "{;":
        token = tokens[position]
        if token == "(":
            end = _closing(tokens, position)
            # __launch_bounds__(256), __attribute__((...)) and the like go before the name.
            if not name.startswith("__") or name == "__":
                return name, _parameter_names(tokens[position + 1 : end]), end + 1
            position = end
            name = ""
        elif token[0].isalpha() or token[0] == "_":
            name = token
        position += 1
    return "", (), position


def _closing(tokens: list[str], position: int) -> int:
    depth = 0
    for at in range(position, len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if depth == 0:
            return at
    return len(tokens)


def _parameter_names(tokens: list[str]) -> tuple[str, ...]:
    names = []
    for part in split(" ".join(tokens)):
        words = re.findall(r"[A-Za-z_]\w*", part.partition("=")[0].partition("[")[0])
        names.append(words[-1] if len(words) > 1 else "")
    return tuple(names)
