"""What PyTorch Geometric calls in place of its own functions; `pyg.enable` puts it there.

The functions can be scripted, as those whose places they take. There the first branch of
``torch.jit.is_scripting()`` alone is read.
"""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch_geometric import Index, is_compiling
from torch_geometric.index import ptr2index
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import _scatter, _segment, _softmax, is_torch_sparse_tensor, loop
from torch_geometric.utils.num_nodes import maybe_num_nodes

import torch_ops
from torch_ops import GatherPlan
from torch_ops.compat import _pyg_messages
from torch_ops.compat.torch_scatter import scatter_softmax, segment_csr
from torch_ops.ops._arguments import is_traced
from torch_ops.ops.plan import cached_plan, kept_plan, uses_of

_gather_ext: Any = importlib.import_module("torch_ops._ext.gather")
_scatter_ext: Any = importlib.import_module("torch_ops._ext.scatter")

_their_scatter = _scatter.scatter
_their_softmax = _softmax.softmax
_their_segment = _segment.segment
_their_index_select = MessagePassing._index_select_safe


def _saves_a_sort(index: Tensor) -> bool:
    return index.is_cuda


def _planned(index: Tensor, dim_size: int, dim: int) -> Tensor | GatherPlan:
    """A plan of the index, if it is used again and again and a plan helps, or the index."""
    if isinstance(index, Index):
        index = index.as_tensor()
    if not _saves_a_sort(index):
        return index
    return cached_plan(index, dim_size, dim, 0, _pyg_messages.SIGHTS)


def _arguments(plan: GatherPlan) -> tuple[Tensor, Tensor, Tensor, int, int, int]:
    return plan.index, plan.rows, plan.order, plan.dim_size, plan.dim, plan.batch_dims


# The functions below call the registered ops as the public ones do, but without their looks at
# arguments that are known here: those take as long as an op of a small graph.


def _gathered(src: Tensor, index: Tensor, dim: int) -> Tensor:
    if is_dynamo_compiling():
        return torch_ops.gather(src, index, dim)
    # A plan helps the gradient alone.
    known = _planned(index, src.size(dim), dim) if src.requires_grad else index
    if isinstance(known, GatherPlan):
        output = _gather_ext.call_by_plan(src, *_arguments(known))
    else:
        output = _gather_ext.call(src, known, dim, 0, "raise", None, None)
    return torch_ops.gather(src, known, dim) if output is NotImplemented else output


def _reduced(src: Tensor, index: Tensor, dim_size: int, dim: int, reduce: str) -> Tensor:
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return torch.ops.torch_ops.scatter(src, index, dim_size, dim, reduce=reduce)
    elif is_dynamo_compiling():
        return torch_ops.scatter(src, index, dim_size, dim, reduce=reduce)
    elif is_traced():  # which would make dim_size a constant
        return _their_scatter(src, index, dim, dim_size, "mul" if reduce == "prod" else reduce)
    else:
        known = _planned(index, dim_size, dim)
        if reduce != "sum":
            return torch_ops.scatter(src, known, dim_size, dim, reduce=reduce)
        if isinstance(known, GatherPlan):
            output = _scatter_ext.call_by_plan(src, *_arguments(known))
        else:
            output = _scatter_ext.call(src, known, dim_size, dim, 0, None, "raise", None)
        if output is NotImplemented:
            return torch_ops.scatter(src, known, dim_size, dim)
        return output


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = 0,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """torch_geometric.utils.scatter by torch_ops.scatter; what that does not take, by their own."""
    rank = src.dim()
    dim = dim + rank if dim < 0 else dim
    if reduce == "any" or src.dtype == torch.bool or src.is_complex():
        return _their_scatter(src, index, dim, dim_size, reduce)
    if index.dim() != 1 or dim < 0 or dim >= rank:
        return _their_scatter(src, index, dim, dim_size, reduce)  # which raises
    if dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() > 0 else 0
    if reduce == "sum" or reduce == "add":
        return _reduced(src, index, dim_size, dim, "sum")
    if reduce == "mean" and src.is_floating_point():
        return _reduced(src, index, dim_size, dim, "mean")
    if reduce == "mean":  # of integers it is no integer
        ones = torch.ones(index.size(0), dtype=torch.int64, device=src.device)
        count = _reduced(ones, index, dim_size, 0, "sum").clamp(min=1)
        for _ in range(dim + 1, rank):
            count = count.unsqueeze(-1)
        return _reduced(src, index, dim_size, dim, "sum") / count
    if reduce == "min" or reduce == "amin":
        return _reduced(src, index, dim_size, dim, "amin")
    if reduce == "max" or reduce == "amax":
        return _reduced(src, index, dim_size, dim, "amax")
    if reduce == "mul":
        return _reduced(src, index, dim_size, dim, "prod")
    return _their_scatter(src, index, dim, dim_size, reduce)  # which raises


def softmax(
    src: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    num_nodes: int | None = None,
    dim: int = 0,
) -> Tensor:
    """torch_geometric.utils.softmax by this library; what that does not take, by their own."""
    if not src.is_floating_point() or (ptr is None and (index is None or index.dim() != 1)):
        return _their_softmax(src, index, ptr, num_nodes, dim)
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        if ptr is not None:
            return torch.ops.torch_ops.softmax(src, dim=dim, offsets=ptr.view(-1))
        assert index is not None
        return scatter_softmax(src, index, dim, maybe_num_nodes(index, num_nodes))
    else:
        dim = dim + src.dim() if dim < 0 else dim
        if ptr is not None:
            return torch_ops.softmax(src, dim=dim, offsets=ptr.view(-1))
        assert index is not None
        if is_traced():
            return _their_softmax(src, index, ptr, num_nodes, dim)
        size = maybe_num_nodes(index, num_nodes)
        return torch_ops.softmax(src, _planned(index, size, dim), size, dim)


def segment(src: Tensor, ptr: Tensor, reduce: str = "sum") -> Tensor:
    """torch_geometric.utils.segment by this library; what that does not take, by their own."""
    if reduce in ("sum", "add", "mean", "min", "max"):
        return segment_csr(src, ptr, None, reduce)
    return _their_segment(src, ptr, reduce)


def _index_select(self, src: Tensor, index) -> Tensor:  # type: ignore[no-untyped-def]
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return torch.ops.torch_ops.gather(src, index, self.node_dim)
    elif is_compiling():
        return torch_ops.gather(src, index, self.node_dim)
    else:
        return self._index_select_safe(src, index)


def _index_select_safe(self: MessagePassing, src: Tensor, index: Tensor) -> Tensor:
    dim = self.node_dim
    dim = dim + src.dim() if dim < 0 else dim
    if dim >= 0 and src.layout == torch.strided and index.dim() == 1 and not is_traced():
        try:
            return _gathered(src, index, dim)
        except IndexError:
            pass
    return _their_index_select(self, src, index)  # whose errors speak of edge_index


def _sparse_index(adjacency: Tensor, dim: int) -> Tensor:
    """The rows, for 1, or the columns, for 0, of a sparse tensor."""
    if adjacency.layout == torch.sparse_coo:
        return adjacency._indices()[1 - dim]
    if adjacency.layout == torch.sparse_csr:
        return adjacency.col_indices() if dim == 0 else ptr2index(adjacency.crow_indices())
    return ptr2index(adjacency.ccol_indices()) if dim == 0 else adjacency.row_indices()


def _lift(  # type: ignore[no-untyped-def]
    self, src: Tensor, edge_index: Tensor | SparseTensor, dim: int
) -> Tensor:
    if not torch.jit.is_scripting() and is_torch_sparse_tensor(edge_index):  # type: ignore[attr-defined]
        return self._index_select(src, _sparse_index(edge_index, dim))
    elif isinstance(edge_index, Tensor):
        return self._index_select(src, edge_index[dim])
    elif isinstance(edge_index, SparseTensor):
        row, col, _ = edge_index.coo()
        return self._index_select(src, col if dim == 0 else row)
    raise ValueError(
        f"edge_index must be a tensor or a SparseTensor, but it is {type(edge_index)}."
    )


def _kept_edges(theirs: Any) -> Any:
    """A function of edges and no attributes, whose result is kept for edges that stay the same."""
    keep, messages, uses, is_traced = kept_plan, _pyg_messages, uses_of, is_dynamo_compiling

    def edges(edge_index, edge_attr=None, *args, **kwargs):  # type: ignore[no-untyped-def]
        if (
            not is_traced()  # or compiled code would hold for the edges of one call alone
            and edge_attr is None
            and messages.is_index(edge_index)
            and uses(edge_index) >= messages.SIGHTS  # new edges are to cost little
        ):
            key = (theirs.__name__, args, tuple(sorted(kwargs.items())))

            def make(edge_index):  # type: ignore[no-untyped-def]
                result, _ = theirs(edge_index, None, *args, **kwargs)
                return result, result._version

            known = keep(edge_index, key, 1, make)
            if isinstance(known, tuple) and known[0]._version == known[1]:
                return known[0], None
        return theirs(edge_index, edge_attr, *args, **kwargs)

    return _with_overloads(_pyg_messages.in_place_of(theirs, edges), theirs)


def _with_overloads(ours: Any, theirs: Any) -> Any:
    """``ours``, with overloads of its own for torch.jit.script.

    It has them by name, deletes them when it compiles them, and keeps the results by function. So
    one name would serve only the first of the two.
    """
    jit: Any = torch._jit_internal
    name = jit._qualified_name(theirs)
    ours._jit_override_qualname = name + "_kept"
    overloads = jit._get_fn_overloads(name)
    compiled = torch.jit._state._try_get_jit_cached_overloads(theirs)
    if overloads is not None:
        jit._overloaded_fns[ours._jit_override_qualname] = list(overloads)
    elif compiled is not None:
        torch.jit._state._set_jit_overload_cache(ours, compiled)
    return ours


# Theirs and ours, in the modules of layers. They write to no edges; those of users might.
LOOPS = [
    (theirs, _kept_edges(theirs))
    for theirs in (loop.remove_self_loops, loop.add_self_loops, loop.add_remaining_self_loops)
]

_their_templates = MessagePassing._set_jittable_templates


def _set_jittable_templates(self: MessagePassing, raise_on_error: bool = False) -> None:
    """At a class's first layer, theirs makes its propagate."""
    _their_templates(self, raise_on_error)
    fuse(type(self))


_fused: dict[type, tuple[Any, Any]] = {}  # propagate of theirs and ours, by class


def fuse(layer: type) -> None:
    """Has a class whose messages are products compute them with their sums."""
    theirs = vars(layer).get("_jinja_propagate")
    if theirs is None or theirs is vars(layer)["_orig_propagate"]:
        return  # there was no layer of the class, or it has a propagate of its own
    if vars(layer)["propagate"] is not theirs:
        return  # it was done before
    ours = _pyg_messages.propagate_of(layer)
    if ours is not None:
        _fused[layer] = theirs, ours
        layer.propagate = ours  # type: ignore[attr-defined]


def fuse_all() -> None:
    """Those of which there was a layer before."""
    classes = [MessagePassing]
    for layer in classes:
        classes += layer.__subclasses__()
        fuse(layer)


def fuse_none() -> None:
    while _fused:
        layer, (theirs, ours) = _fused.popitem()
        if vars(layer).get("propagate") is ours:
            layer.propagate = theirs  # type: ignore[attr-defined]


# Theirs and ours: the functions, wherever a module has them, ...
FUNCTIONS = [
    (_scatter.scatter, scatter),
    (_softmax.softmax, softmax),
    (_segment.segment, segment),
]
# ... and the methods of MessagePassing.
METHODS = {
    name: (vars(MessagePassing)[name], method)
    for name, method in (
        ("_index_select", _index_select),
        ("_index_select_safe", _index_select_safe),
        ("_lift", _lift),
        ("_set_jittable_templates", _set_jittable_templates),
    )
}
