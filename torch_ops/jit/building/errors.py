"""CompileError, and how a compiler's log is read for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from torch_ops.jit.building.source import OURS, Source

# Strings, which are compiled when there is an error to be read.
# NVRTC: operation(2): error: ...   g++, clang++: operation:2:5: error: ...
_MESSAGE = (
    r"^(?:(?P<file>[^\n(:]+)(?:\((?P<paren>\d+)\)|:(?P<colon>\d+)(?::\d+)?)|At end of source): "
    r"(?:catastrophic |fatal )?error(?: #?[\w-]+)?: (?P<message>.*)$"
)
# Compilers tell with an error inside ours from where it was instantiated or expanded.
_MENTION = r"(?P<file>[\w.<>]+)(?:\((?P<paren>\d+)\)|:(?P<colon>\d+)(?::\d+)?)"
_MENTION_EDG = r'at line (?P<line>\d+) of "?(?P<file>[\w.]+)"?'
_NAME_MAP = "__nv_name_map"  # the file in which NVRTC puts name expressions
_AROUND = 2  # lines shown before and after the one that is meant


class CompileError(RuntimeError):
    """A kernel's source does not compile.

    The message says in which of the strings that were given the error is, on which line of it, and
    shows the text around.

    Attributes:
        name: The string that the error is in: ``"code"``, ``"operation"``, ``"preamble"``, ... None
            where the compiler points at none of them.
        line: The line in that string, counted from 1; None likewise.
        message: What the compiler says of the first error.
        log: All that the compiler printed.
    """

    __module__ = "torch_ops.jit"

    def __init__(
        self, text: str, *, name: str | None, line: int | None, message: str, log: str
    ) -> None:
        super().__init__(text)
        self.name = name
        self.line = line
        self.message = message
        self.log = log

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (str(self), self.name, self.line, self.message, self.log)


def _restore(text: str, name: str, line: int, message: str, log: str) -> CompileError:
    return CompileError(text, name=name, line=line, message=message, log=log)


class _Place(NamedTuple):
    name: str | None
    line: int | None
    message: str


def compile_error(what: str, source: Source, log: str, unknown: Sequence[str] = ()) -> CompileError:
    """Makes the CompileError of a failed compilation.

    Args:
        what: The kernel, as the user knows it: ``'RawKernel "relu"'``.
        source: What was compiled.
        log: What the compiler printed.
        unknown: Name expressions that mean nothing in the source.
    """
    texts = source.user_texts()
    place = _find_place(texts, log)
    if place.name is None and unknown:
        place = _Place("name_expressions", 1, f"{place.message} ({unknown[0]})")
        texts["name_expressions"] = unknown[0]
    if place.name is None or place.line is None:
        head = f"{what} does not compile: {place.message}"
        shown = ""
    else:
        head = f"{what} does not compile: {place.name}, line {place.line}: {place.message}"
        shown = f"\n{_advice(place)}\n{_text_around(texts[place.name], place.line)}"
    text = f"{head}{shown}\n\nThe compiler's log:\n{log.strip()}"
    return CompileError(text, name=place.name, line=place.line, message=place.message, log=log)


def _find_place(texts: dict[str, str], log: str) -> _Place:
    """The first error in a text of the user; else what the first error says of one."""
    errors = list(re.finditer(_MESSAGE, log, re.MULTILINE))
    for error in errors:
        if error["file"] in texts:
            line = _within(texts[error["file"]], int(error["paren"] or error["colon"]))
            return _Place(error["file"], line, error["message"])
    undefined = re.search(r"undefined (?:reference to|symbol:) [`']?(.*?)'?$", log, re.MULTILINE)
    if undefined:
        # ``f``, ``f(float)``, ``float f<float>(float)``, ``(anonymous namespace)::f(float)``
        function = re.search(r"(\w+)(?:<[^()]*>)?(?:\([^()]*\))?$", undefined[1])
        for name, text in texts.items():
            found = function and re.search(rf"\b{function[1]}\b", text)
            if found:
                return _Place(name, text.count("\n", 0, found.start()) + 1, undefined[0])
        return _Place(None, None, undefined[0])
    if not errors:
        lines = [line for line in log.splitlines() if line.strip()]
        return _Place(None, None, lines[0].strip() if lines else "the compiler says nothing")
    first = errors[0]["message"]
    file = errors[0]["file"] or _NAME_MAP
    if file != _NAME_MAP and not file.startswith(OURS):  # a header
        first = errors[0][0]
    for pattern in (_MENTION, _MENTION_EDG):
        for mention in re.finditer(pattern, log):
            if mention["file"] in texts and mention["file"] != OURS:
                facts = mention.groupdict()
                number = facts.get("line") or facts.get("paren") or facts.get("colon")
                line = _within(texts[mention["file"]], int(number or 1))
                return _Place(mention["file"], line, first)
    return _Place(None, None, first)


# Texts in the idiom of other tools: what g++, clang++ or NVRTC says of one, and what to write.
_THREADS = r"(?:threadIdx|blockIdx|blockDim|gridDim|__shared__|__sync\w+|__shfl\w+)"
_UNKNOWN = r"'{0}' was not declared|undeclared identifier '{0}'|identifier \"{0}\" is undefined"
_OF_SNIPPETS = {
    r"for array subscript|subscripted value|pointer-to-object type": (
        "A parameter is one element, without an index, unless it is declared raw."
    ),
    _UNKNOWN.format("i"): (
        "In a reduction a parameter is one element, without an index; for its position, pass "
        "torch.arange(n) too."
    ),
    r"(?:assignment|increment|decrement) of read-only|const-qualified|modifiable lvalue": (
        "An input can only be read: declare what is written as an output, raw if it is indexed."
    ),
    _UNKNOWN.format(_THREADS): (
        "A snippet computes one element, whose index is `i`: blocks and shared memory are a "
        "RawKernel's."
    ),
    r"'__\w+' was not declared|undeclared identifier '__|undefined (?:reference|symbol).*\b__": (
        "Only CUDA has it: for the CPU write C++, beside it under `#ifdef __CUDA_ARCH__`."
    ),
}
_NO_HEADER = re.compile(
    r'cannot open source file "(?:\w+|(?:assert|float|limits|math|std\w+|string)\.h|'
    r'(?:torch|ATen|c10)/.*)"'
)


def _advice(place: _Place) -> str:
    if _NO_HEADER.search(place.message):
        return (
            "NVRTC has no headers of C++ and of torch: leave the include out, or write CUDA's own, "
            "such as <cuda/std/cstdint>.\n"
        )
    for pattern, advice in _OF_SNIPPETS.items():
        if place.name != "code" and re.search(pattern, place.message):
            return f"{advice}\n"
    return ""


def _within(text: str, line: int) -> int:
    # A string that ends too early (a brace is missing) is reported one line past its end.
    return max(1, min(line, text.count("\n") + 1))


def _text_around(text: str, line: int) -> str:
    lines = text.split("\n")
    first, last = max(1, line - _AROUND), min(len(lines), line + _AROUND)
    width = len(str(last))
    return "\n".join(
        f"{'>' if number == line else ' '} {number:>{width}} | {lines[number - 1]}".rstrip()
        for number in range(first, last + 1)
    )
