"""What Inductor, the compiler behind torch.compile, is told about our ops: which it may fuse.

Inductor calls an op that it does not know as it is, and its neighbours then read and write whole
tensors. It is given decompositions of the activations and of gathers of rows, and computes them
within the kernels of their neighbours, as it does with torch's own. Only the index of a gather is
still checked by a kernel of ours. A gather that has no neighbour to be fused with, such as one
whose rows are multiplied as a matrix, becomes a call of ours again, which is faster.

torch_ops/__init__.py imports this module once torch._inductor.decomposition has been imported.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch._inductor import decomposition
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import guard_or_false

from torch_ops.decompositions import activations

_ops = torch.ops.torch_ops
_aten = torch.ops.aten

# On a CPU a fused gather of narrow rows takes up to 4 times as long as two loops, one of wide rows
# nearly as long (docs/internals/log.md, "Under torch.compile").
_DEVICES = ("cuda",)

# Rows of fewer bytes are faster by our kernel: the check of the index costs more than it saves.
_LEAST_ROW = 8

# Inductor leaves others, such as complex ones, to torch's kernels, where nothing is fused.
_DTYPES = {
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
}


def _gather(
    source: Tensor,
    index: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    fill_value: float | None = None,
    name: str | None = None,
) -> Any:
    """Rows as torch's own indexing picks them, once a kernel of ours has checked the index."""
    dim = batch_dims if dim is None else dim % source.dim()
    size = source.shape[dim]
    picks_apart = 0 < batch_dims < dim  # torch would put the picked axes first
    row = math.prod((*source.shape[batch_dims:dim], *source.shape[dim + 1 :]))
    _prepare()
    if (
        mode == "fill"
        or picks_apart
        or source.device.type not in _DEVICES
        or source.dtype not in _DTYPES
        or not guard_or_false(size > 0)
        or not guard_or_false(row * source.itemsize >= _LEAST_ROW)
    ):
        return NotImplemented
    checked = _ops.ravel_multi_index.default([index], [size], mode=mode, name=name or "gather")
    # What is out of range got the size itself, and has been recorded as an error. Inductor sees
    # the bounds, and does without a check of its own, which would end the CUDA context.
    rows = checked.clamp(0, size - 1).to(torch.int64)
    batches = [
        torch.arange(index.shape[axis], device=index.device).view(
            [-1 if other == axis else 1 for other in range(index.dim())]
        )
        for axis in range(batch_dims)
    ]
    return _aten.index.Tensor(source, [*batches, *[None] * (dim - batch_dims), rows])


def _gather_by_plan(
    source: Tensor,
    index: Tensor,
    rows: Tensor,
    order: Tensor,
    dim_size: int,
    dim: int,
    batch_dims: int,
) -> Any:
    return _gather(source, index, dim, batch_dims=batch_dims)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    dim: int = 0,
    batch_dims: int = 0,
    rows: Tensor | None = None,
    order: Tensor | None = None,
    name: str | None = None,
) -> Any:
    return _gather(weight, input, dim, batch_dims=batch_dims, name=name or "embedding")


# ---- Gathers that are not fused -----------------------------------------------------------------

_REDUCTIONS = {
    *(_aten.sum, _aten.mean, _aten.prod, _aten.amax, _aten.amin, _aten.argmax, _aten.argmin),
    *(_aten.any, _aten.var, _aten.var_mean, _aten.cumsum),
}
_VIEWS = {
    *(_aten.view, _aten.reshape, _aten._unsafe_view, _aten.permute, _aten.expand, _aten.select),
    *(_aten.squeeze, _aten.unsqueeze, _aten.slice, _aten.alias),
}

# What may stand between a check and the indexing.
_BOUNDS = {_aten.clamp, _aten.clamp_min, _aten.clamp_max, torch.ops.prims.convert_element_type}


def _is_computed_with(node: Node) -> bool:
    """Whether a user of the node's result, or of a view of it, is fused with it."""
    for user in node.users:
        packet = getattr(user.target, "overloadpacket", None)
        if packet in _VIEWS:
            if _is_computed_with(user):
                return True
        elif packet in _REDUCTIONS or torch.Tag.pointwise in getattr(user.target, "tags", ()):
            return True
    return False


def _check_of(node: Node) -> Node | None:
    """The check of the rows that an indexing by torch picks, if _gather wrote both."""
    indices: Any = node.args[1]
    found: Any = indices[-1] if isinstance(indices, (list, tuple)) else None
    while isinstance(found, Node) and getattr(found.target, "overloadpacket", None) in _BOUNDS:
        found = found.args[0]
    is_check = isinstance(found, Node) and found.target is _ops.ravel_multi_index.default
    return found if is_check and len(found.args[0]) == 1 else None


@functools.cache
def _prepare() -> None:
    """Has Inductor call our kernel for a gather that was not decomposed or that it would not fuse.

    At the first gather, since the modules cannot be imported with that of the decompositions.
    """
    from torch._inductor.fx_passes.post_grad import pass_patterns
    from torch._inductor.lowering import constrain_to_fake_tensors, make_fallback
    from torch._inductor.pattern_matcher import CallFunctionVarArgs, Match, register_graph_pattern

    def is_alone(match: Match) -> bool:
        node = match.output_node()
        return _check_of(node) is not None and not _is_computed_with(node)

    def call_ours(match: Match, source: Node, indices: list[Node | None]) -> None:
        node = match.output_node()
        check: Any = _check_of(node)
        batch_dims = sum(index is not None for index in indices[:-1])
        arguments = (source, check.args[0][0], len(indices) - 1)
        options = {"batch_dims": batch_dims, **check.kwargs}
        if options["name"] == "gather":
            del options["name"]
        with match.graph.inserting_before(node):
            ours = match.graph.call_function(_ops.gather.default, arguments, options)
        ours.meta.update(node.meta)
        node.replace_all_uses_with(ours)
        match.erase_nodes()

    def first_like(node: Node) -> Node:
        found: Any = node.graph.find_nodes(op="call_function", target=node.target)
        return next(n for n in found if n.args == node.args and n.kwargs == node.kwargs)

    def is_repeated(match: Match) -> bool:
        return first_like(match.output_node()) is not match.output_node()

    def check_once(match: Match, *args: Any, **kwargs: Any) -> None:
        node = match.output_node()
        node.replace_all_uses_with(first_like(node))
        match.erase_nodes()

    for op in _GATHERS:
        make_fallback(op, constrain_to_fake_tensors, warn=False, override_decomp=True)
    gathers = CallFunctionVarArgs(_aten.index.Tensor)
    register_graph_pattern(gathers, extra_check=is_alone, pass_dict=pass_patterns[2])(call_ours)
    # torch merges equal checks itself, but from 2.15 on not where one of them serves the backward
    # pass and another does not.
    checks = CallFunctionVarArgs(_ops.ravel_multi_index.default)
    register_graph_pattern(checks, extra_check=is_repeated, pass_dict=pass_patterns[1])(check_once)


# ---- Registration -------------------------------------------------------------------------------

_GATHERS = {
    _ops.gather.default: _gather,
    _ops.gather.plan: _gather_by_plan,
    _ops.embedding.default: _embedding,
}
for _op, _decomposition in {**activations, **_GATHERS}.items():
    decomposition.register_decomposition(_op)(_decomposition)  # type: ignore[arg-type]
# Inductor's copy of the table may be older.
decomposition.fast_random_decomps.cache_clear()
