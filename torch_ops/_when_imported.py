"""Imports a module of ours once another one has been imported, now or later."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Finder:
    """Stands in ``sys.meta_path`` until the other module is looked for."""

    def __init__(self, name: str, ours: str) -> None:
        self.name = name
        self.ours = ours

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _import(name, self.ours)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _import(name: str, ours: str) -> None:
    try:
        importlib.import_module(ours)
    except Exception as error:  # the other module works without ours
        warnings.warn(
            f"{ours}, which belongs to {name}, could not be imported: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def when_imported(name: str, ours: str) -> None:
    """Imports ``ours`` when ``name`` has been imported; at once if it has been."""
    if name in sys.modules:
        _import(name, ours)
    else:
        sys.meta_path.insert(0, _Finder(name, ours))
