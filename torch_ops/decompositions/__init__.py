"""The ops written in torch's own: all those of a forward pass, and the activations' gradients.

:func:`decompose` makes an exported program one of torch's ops alone, which runs without this
package and which other compilers take.

``activations`` is a table in the form that PyTorch takes wherever it takes decompositions:
``ExportedProgram.run_decompositions``, ``make_fx``, ``aot_module``. A compiler that calls an op of
this package as it is then writes an activation into the loop of its neighbours. ``torch.compile``
does so by itself.

What a decomposed activation keeps for its gradient the compiler decides, not ``save="mask"``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import torch_ops.ops
from torch_ops.decompositions import _points, _rows, _segments

__all__ = ["activations", "decompose"]


#: Maps each registered op of an activation, and of its gradient, to a function of torch's ops, as
#: the modules of the ops say in DECOMPOSITIONS. In-place ops are missing: a traced graph has none.
activations: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    op: decomposition
    for module in pkgutil.walk_packages(torch_ops.ops.__path__, "torch_ops.ops.")
    for op, decomposition in vars(importlib.import_module(module.name))
    .get("DECOMPOSITIONS", {})
    .items()
}


def _as_the_op(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The op's results are contiguous, and the program may have views that only such ones have."""

    @functools.wraps(decomposition)
    def contiguous(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map(Tensor.contiguous, decomposition(*args, **kwargs))

    return contiguous


_FORWARD = {
    op: _as_the_op(decomposition)
    for part in (_rows, _segments, _points)
    for op, decomposition in part.DECOMPOSITIONS.items()
}


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Returns an exported program of torch's own ops alone, in place of those of this package.

    The result can be loaded and run where this package is not installed, and converted by what
    knows torch's core ops, such as ``torch.onnx.export``. It computes the same values by ops that
    take more time and memory: with batch axes and in sums an index is expanded to an entry for
    each element, as ``torch.gather`` and ``Tensor.scatter_add`` have it. Kernels of
    ``torch_ops.jit`` stay as they are.

    Args:
        program: of ``torch.export.export``, on any device, with fixed or dynamic sizes; of a
            forward pass, in which there may be gradients, such as forces.

    Returns:
        ``program.run_decompositions()``, with decompositions of this package's ops too: into core
        ops, but for the norm in ``embedding_renorm_``.

    Raises:
        TypeError: It is not an exported program.

    Differences: entries out of range are not found, and in modes that raise an error for them the
    result is what torch's op does; sums are in no fixed order where torch's are not, on CUDA; of
    several values that ``index_put`` writes to one place, which one stays is torch's choice, too.
    Dtypes that torch's indexing ops do not have, such as uint16, cannot be run.

    Example:
        >>> import torch, torch_ops
        >>> class Sums(torch.nn.Module):
        ...     def forward(self, rows, index):
        ...         return torch_ops.scatter_add(rows, index, 3)
        >>> arguments = (torch.ones(4, 2), torch.tensor([0, 2, 2, 1]))
        >>> program = torch_ops.decompositions.decompose(torch.export.export(Sums(), arguments))
        >>> program.module()(*arguments).tolist()
        [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise TypeError(
            "decompose: program must be a torch.export.ExportedProgram, but it is a "
            f"{type(program).__name__}. Export the model first: torch.export.export(model, args)."
        )
    table = torch.export.default_decompositions()
    table.update(activations | _FORWARD)
    return program.run_decompositions(table)
