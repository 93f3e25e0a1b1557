"""PyTorch Geometric by the ops of this library: ``torch_ops.compat.pyg.enable()``.

Sums, means, extremes, products, softmax, and the features that go along the edges: layers,
pooling and user code that call ``torch_geometric.utils`` compute them by this library then, without
a change of their own. Layers whose messages are features, or features times a factor, are summed in
one kernel, without a tensor of messages. Results, and their dtypes, are those of PyTorch Geometric.
What is otherwise:

- 16-bit floats are summed in float32 and rounded once.
- The gradient of a largest or smallest value goes to the first of several that are alike. PyTorch
  Geometric divides it among them on a CPU.
- A product has a right gradient for a value that is 0.
- An infinite maximum of a segment stays infinite.
- The result of a softmax must not be changed in place before the backward pass, which needs it.

On CUDA an index that was used 16 times is sorted, and the sort is kept as long as its tensor lives
(as by :func:`torch_ops.plan_cache`): a graph that stays the same is sorted once, and from then on
its floats are summed in the same order in each run. Layers that are computed in one kernel, and
are large, share a sort from the second use on, for which the host does not wait.

Adjacency matrices that layers multiply by (``message_and_aggregate``) are left to torch, and so is
what layers index themselves.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType
from typing import Any

__all__ = ["disable", "enable"]

_VERSIONS = ("2.7", "2.8")
_enabled = False


def _replace(pairs: list[tuple[Any, Any]], modules: str = "") -> None:
    """Gives every name of a module that has the first of a pair the second."""
    other = {id(old): (old, new) for old, new in pairs}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or module.__name__ == "torch_ops.compat._pyg":
            continue
        if not module.__name__.startswith(modules):
            continue
        names = vars(module)
        for name, value in list(names.items()):
            found = other.get(id(value))
            if found is not None and found[0] is value:
                names[name] = found[1]


def enable() -> AbstractContextManager[object]:
    """Has PyTorch Geometric compute by this library, in this process, until :func:`disable`.

    ``torch_geometric.utils.scatter``, ``softmax`` and ``segment`` are replaced wherever modules
    have imported them by name, user code too, and so for modules imported later. So are the methods
    of ``MessagePassing`` that carry features of nodes to the edges, and ``propagate`` of classes
    whose messages are features times a factor. Layers that were made before are computed in the new
    way too; what ``torch.compile`` or ``torch.jit.script`` made before is not.

    Returns:
        A context manager, which need not be used. At its end it disables if nothing was enabled
        before, as in ``with torch_ops.compat.pyg.enable(): ...``.

    Raises:
        ModuleNotFoundError: PyTorch Geometric is not installed.

    Warns:
        UserWarning: The version of PyTorch Geometric is not 2.7 or 2.8, of which this is tested.
            Then nothing is changed.
    """
    global _enabled
    until = ExitStack()
    version = importlib.import_module("torch_geometric").__version__
    if ".".join(version.split(".")[:2]) not in _VERSIONS:
        warnings.warn(
            f"torch_ops.compat.pyg is made for PyTorch Geometric {' and '.join(_VERSIONS)}, but "
            f"{version} is installed. It stays as it is.",
            UserWarning,
            stacklevel=2,
        )
        return until
    if _enabled:
        return until
    patch = importlib.import_module("torch_ops.compat._pyg")
    _replace(patch.FUNCTIONS)
    _replace(patch.LOOPS, "torch_geometric.nn.")
    for name, (_, ours) in patch.METHODS.items():
        setattr(patch.MessagePassing, name, ours)
    patch.fuse_all()
    _enabled = True
    until.callback(disable)
    return until


def disable() -> None:
    """Gives PyTorch Geometric its own functions back, also in modules imported since."""
    global _enabled
    if not _enabled:
        return
    patch = importlib.import_module("torch_ops.compat._pyg")
    _replace([(ours, theirs) for theirs, ours in (*patch.FUNCTIONS, *patch.LOOPS)])
    for name, (theirs, _) in patch.METHODS.items():
        setattr(patch.MessagePassing, name, theirs)
    patch.fuse_none()
    _enabled = False
