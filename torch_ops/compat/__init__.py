"""Other libraries' calls, made by this one.

:mod:`torch_ops.compat.torch_scatter` has the functions of torch_scatter, and :func:`install` lets
``import torch_scatter`` find it. :mod:`torch_ops.compat.pyg` has PyTorch Geometric's layers
computed by this library.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["install", "uninstall"]

_PACKAGES = ("torch_scatter",)
_MODULES = ("pyg", "torch_scatter")  # imported when they are first asked for


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


class _Installed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a package, and its modules, in ours of the same names."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.package and not name.startswith(self.package + "."):
            return None
        ours = importlib.util.find_spec(f"{__name__}.{name}")
        if ours is None:
            return None
        is_package = ours.submodule_search_locations is not None
        spec = ModuleSpec(name, self, origin=ours.origin, is_package=is_package)
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        ours = importlib.import_module(f"{__name__}.{module.__name__}")
        # First, for an import leaves the module in its package, where a function may have its name.
        for name in [name for name in sys.modules if name.startswith(ours.__name__ + ".")]:
            importlib.import_module(name.removeprefix(__name__ + "."))
        own = {"__name__", "__spec__", "__loader__", "__package__", "__path__"}
        module.__dict__.update({k: v for k, v in vars(ours).items() if k not in own})


def _installed(package: str) -> _Installed | None:
    if package not in _PACKAGES:
        raise ValueError(f"package must be one of {list(_PACKAGES)}, but it is {package!r}.")
    found = (f for f in sys.meta_path if isinstance(f, _Installed) and f.package == package)
    return next(found, None)


def install(package: str) -> None:
    """Lets ``import torch_scatter`` find :mod:`torch_ops.compat.torch_scatter`.

    Call it before anything imports the package: PyTorch Geometric, for one, looks for it when it is
    itself imported. A second call does nothing.

    Args:
        package: "torch_scatter".

    Raises:
        ValueError: ``package`` is another.
        RuntimeError: The package itself has been imported already.

    Example:
        >>> import torch_ops.compat
        >>> torch_ops.compat.install("torch_scatter")
        >>> import torch_scatter
        >>> torch_scatter.scatter_sum
        <function scatter_sum at ...>
        >>> torch_ops.compat.uninstall("torch_scatter")
    """
    if _installed(package) is not None:
        return
    if package in sys.modules:
        raise RuntimeError(
            f"{package} has been imported already, from {sys.modules[package].__file__}, and what "
            f'was imported of it stays in use. Call torch_ops.compat.install("{package}") before '
            "anything imports it."
        )
    sys.meta_path.insert(0, _Installed(package))
    importlib.import_module(package)


def uninstall(package: str) -> None:
    """Takes back :func:`install`: later imports find the package itself, where there is one.

    What has been imported stays as it is. Without an install before, nothing happens.

    Args:
        package: "torch_scatter".

    Raises:
        ValueError: ``package`` is another.
    """
    finder = _installed(package)
    if finder is None:
        return
    sys.meta_path.remove(finder)
    for name in list(sys.modules):
        if name == package or name.startswith(package + "."):
            del sys.modules[name]
