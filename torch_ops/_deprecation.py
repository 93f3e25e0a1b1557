"""Warns of what a later version removes; docs/policy.md says when it does."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MINORS_THAT_WARN = 2


def removal(since: str) -> str:
    """The minor version that removes what is deprecated since this one: 0.4 for 0.2."""
    major, minor = since.split(".")
    return f"{major}.{int(minor) + _MINORS_THAT_WARN}"


class Deprecation:
    """Something public that is going to be removed.

    Decorates a function, which then warns of each call. :meth:`warn` is for the rest: a class warns
    in ``__init__``, an argument where it is given. tools/release.py finds these calls in the
    sources, and refuses to release a version that must not have them any more.

    Args:
        name: what users know it by, such as ``torch_ops.gather's argument mask``.
        since: the first minor version that warns, such as ``0.2``.
        instead: what users are to do, such as ``use torch_ops.masked_gather``.
    """

    def __init__(self, name: str, *, since: str, instead: str) -> None:
        self._text = (
            f"{name} is deprecated since torch_ops {since} and will be removed in "
            f"{removal(since)}: {instead}."
        )

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            self.warn()
            return function(*args, **kwargs)

        return wrapper

    def warn(self) -> None:
        """Warns at the line that called the caller; not under torch.compile, whose graph it breaks.

        As torch's, it is a FutureWarning: Python hides a DeprecationWarning that is not of the
        program's main file.
        """
        if not torch.compiler.is_compiling():
            warnings.warn(self._text, FutureWarning, stacklevel=3)
