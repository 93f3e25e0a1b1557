"""Branches of `c ? a : b` that are plain numbers of a wider type than the dual numbers beside them.

Of float and double the plain snippet's ``c ? x : 0.1`` is double. With a dual number for ``x`` C++
knows one common type alone, the dual number's, so that the branch would be rounded to float: unlike
operators and functions, this one cannot be overloaded. So the text is rewritten, to
``c ? pick<decltype(0.1)>(x) : pick<decltype(x)>(0.1)``; headers/dual/dual.h makes a dual number
over double of the 0.1 then, and leaves all else as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Where no operator stands: comments, strings, characters, lines of the preprocessor.
_HIDDEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])+'"
    r"|(?:(?<=\n)|\A)[ \t]*\#(?:\\\n|[^\n])*",
    re.DOTALL,
)
# What may be a double: literals without a suffix, macros, and names that are declared as one.
_LITERAL = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])")
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
_DECLARED = re.compile(r"\b(?:double|auto)\b[\s&*]*(\w+)")
# Text is repeated in decltype: twice for each level of nesting. Beyond this, it stays as it is.
_LONGEST = 50_000


def pick_in_branches(text: str, others: Iterable[str] = ()) -> str:
    """Rewrites the ternaries of a snippet, line by line as it was.

    Args:
        text: The snippet.
        others: More names that may be doubles: raw arrays, which have no derivative, and what is
            declared in a text before this one.
    """
    if "?" not in text:
        return text
    names = {*declared_doubles(text), "double", *others}
    # From the right, so that those that stand in a branch are done before the one around them.
    at = len(text)
    while (at := _visible(text).rfind("?", 0, at)) >= 0 and len(text) < _LONGEST:
        text = _rewritten(text, at, names)
    return text


def declared_doubles(text: str) -> list[str]:
    """Names that a snippet declares as what is or may be a double."""
    return _DECLARED.findall(_visible(text))


def _rewritten(text: str, at: int, names: set[str]) -> str:
    visible = _visible(text)
    colon = _end_of(visible, at + 1)
    if colon is None or visible[colon] != ":":
        return text
    end = _end_of(visible, colon + 1)
    end = len(text) if end is None else end
    first, second = visible[at + 1 : colon], visible[colon + 1 : end]
    # The comma may be one between arguments of a template: no way to tell where the branch ends.
    unclear = end < len(text) and visible[end] == "," and "<" in second
    if (
        unclear
        or not first.strip()
        or not any(_may_be_double(part, names) for part in (first, second))
    ):
        return text
    if first + second != text[at + 1 : colon] + text[colon + 1 : end] and re.search(
        r"[\"']", text[at + 1 : end]
    ):
        return text  # strings, which the copies in decltype would lack
    return (
        text[: at + 1]
        + _picked(text[at + 1 : colon], first, second)
        + ":"
        + _picked(text[colon + 1 : end], second, first)
        + text[end:]
    )


def _picked(branch: str, visible: str, other: str) -> str:
    last = len(visible.rstrip())  # before a comment that ends the line
    copy = " ".join(other.split())
    return f" torch_ops::pick<decltype({copy})>({branch[:last]}){branch[last:]}"


def _may_be_double(text: str, names: set[str]) -> bool:
    return (
        _LITERAL.search(text) is not None
        or _MACRO.search(text) is not None
        or any(word in names for word in re.findall(r"\b[A-Za-z_]\w*", text))
    )


def _visible(text: str) -> str:
    """The text with what is no code blanked, every character in its place."""
    return _HIDDEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _end_of(visible: str, start: int) -> int | None:
    """Where a branch ends that starts here; None: with the text."""
    depth = pending = 0
    for found in re.finditer(r"::|[()\[\]{}?:;,]", visible[start:]):
        sign = found[0]
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            if depth == 0:
                return start + found.start()
            depth -= 1
        elif depth > 0 or sign == "::":
            continue
        elif sign == "?":
            pending += 1
        elif sign == ":" and pending > 0:
            pending -= 1
        else:
            return start + found.start()
    return None
