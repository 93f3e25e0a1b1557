"""What a compiler's error in a derivative means, said in the words of who wrote the snippet."""

from __future__ import annotations

import re

from torch_ops.jit.building.errors import CompileError
from torch_ops.jit.language.program import Snippet, without_comments

_FIXED = (
    r"\b(?:float|double|half|__half|bool|char|short|int|long|unsigned|size_t|ptrdiff_t|"
    r"u?int\d+_t)\b"
)
_DECLARATION = re.compile(_FIXED + r"[\s*&]*\w+\s*(?:\[[^\]]*\]\s*)*(?:[=,;{(]|$)")
_CAST = re.compile(
    rf"\(\s*(?:{_FIXED}\s*)+\)|static_cast\s*<|{_FIXED}\s*\("  # not the lambda's (float a)
)
_CAST_VALUE = re.compile(rf"=\s*(?:{_CAST.pattern})")  # int k = int(x), where auto would not help


def explained(
    error: CompileError, what: str, snippet: Snippet, *, has_backward: bool = True
) -> CompileError:
    """The error of a derivative's compilation with what to do about it.

    ``has_backward``: the kernel can be given its gradients.
    """
    texts = {
        snippet.title: snippet.operation,
        "preamble": snippet.preamble,
        "loop_prep": snippet.loop_prep,
        "after_loop": snippet.after_loop,
    }
    line = ""
    if error.name in texts and error.line is not None:
        lines = texts[error.name].split("\n")
        line = lines[min(error.line, len(lines)) - 1]
    where = f"{error.name}, line {error.line}: {line.strip()}" if line else "see below"
    otherwise = 'Or give the gradients in backward="...", or none by backward=None.\n'
    text = (
        f"The derivative of {what} does not compile ({where}).\n{_advice(line, error.message)}\n"
        f"{otherwise if has_backward else ''}\n{error}"
    )
    return CompileError(
        text, name=error.name, line=error.line, message=error.message, log=error.log
    )


def _advice(line: str, message: str) -> str:
    if "has no answer in a derivative" in message:
        return "Ask about a type that is not const: `T`, or `std::remove_const_t<decltype(value)>`."
    if re.search(r"(?<!if )\bconstexpr\b", line):
        return "A value with derivatives cannot be constexpr: write `const`, such as `const T`."
    if re.search(r"(?:\bstd\s*|[^\w\s]\s*|^\s*)::\s*\w+\s*\(", line):
        return (
            "A function that is named with its namespace has no derivative: leave out `std::` or "
            "`::`, so that `exp(x)` is found for values that have one."
        )
    if _DECLARATION.search(line) and not _CAST_VALUE.search(line):
        return (
            "A local variable of a fixed type cannot hold a value that has a derivative: write "
            "`auto`, or the type of the parameter, such as `T`, in place of its type."
        )
    if re.search(r"no matching function|no instance of|undefined|not declared|identifier", message):
        return (
            "A function without a derivative rule is called on a value that has a derivative. "
            "docs/jit.md lists those with one; a function of your own must be a template, "
            "`template <class T> __device__ T f(T x)`."
        )
    if _CAST.search(line):
        return (
            "A cast to a fixed type would drop the derivative: cast to the type of the parameter, "
            "such as `T`, or drop the derivative on purpose by `primal(value)`."
        )
    return (
        "Values have derivatives here, so that they are of a class: write `auto` or `T` for types, "
        "and `primal(value)` where a plain number is meant. A function of your own has no rule of "
        "its own: make it a template, `template <class T> __device__ T f(T x)`."
    )


# ---- what would compile, to another function ----------------------------------------------------

_FLOAT = re.compile(r"\b(?:float|double)\b")
_SPECIALISATION = re.compile(r"\btemplate\s*<\s*>([^;{]*)")
_TEMPLATE = re.compile(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)+>[^;{()]*?\b(\w+)\s*\(([^()]*)\)")


def check_preamble(what: str, preamble: str) -> None:
    """Refuses functions that have a text of their own for floats, which a dual number would miss.

    Raises:
        CompileError: There is one, beside a template that takes the dual numbers.
    """
    text = without_comments(preamble)
    for found in _SPECIALISATION.finditer(text):
        # What it is a specialisation for stands in <>, or is told by its parameters.
        parts = re.findall(r"<([^<>]*)>", found[1]) or re.findall(r"\(([^()]*)\)", found[1])
        if any(_FLOAT.search(part) for part in parts):
            _refuse_preamble(what, text, found.start(), "a specialisation of a template for floats")
    templates = {(found[1], _count(found[2])) for found in _TEMPLATE.finditer(text)}
    for name in {name for name, _ in templates}:
        for found in re.finditer(rf"\b{name}\s*\(([^()]*)\)[^(){{}};,]*\{{", text):
            head = re.split(r"[;{}]", text[: found.start()])[-1]
            overloads = "template" not in head and (name, _count(found[1])) in templates
            if overloads and _FLOAT.search(found[1]):
                _refuse_preamble(what, text, found.start(), f"{name}, a template too, for floats")


def _count(parameters: str) -> int:
    return parameters.count(",") + 1 if parameters.strip() else 0


def _refuse_preamble(what: str, text: str, at: int, which: str) -> None:
    line = text.count("\n", 0, at) + 1
    raise CompileError(
        f"The derivative of {what} does not compile (preamble, line {line}): of {which} it would "
        "be the template that is differentiated. Make it one function, which asks by "
        "`if constexpr (std::is_same_v<T, float>)`.\n"
        'Or give the gradients in backward="...", or none by backward=None.',
        name="preamble",
        line=line,
        message=which,
        log="",
    )
