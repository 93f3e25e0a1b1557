"""Layers of PyTorch Geometric that sum neighbours' features times factors, in one kernel.

``message`` of such a layer returns ``x_j``, ``edge_weight.view(-1, 1) * x_j`` and the like, which
``aggregate`` sums. `factor_of` reads that in the text of the function and makes another function of
it, which gives the factor alone. `propagate_of` gives the class a ``propagate`` that multiplies and
sums in one kernel, so that nothing is made with a row for each edge; what has no such form, or
hooks, or edges that were not seen often enough for a plan, goes the way it went before.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

import torch_ops
from torch_ops.jit import IndexedKernel
from torch_ops.jit.building.toolchain import find_host_compiler
from torch_ops.jit.plans import IndexPlan, plan_of
from torch_ops.ops.plan import kept_plan, uses_of

_REDUCES: dict[type, str] = {SumAggregation: "sum", MeanAggregation: "mean"}
# Whatever these hold would see, or change, messages that are never made.
_HOOKS = (
    *("_propagate_forward_pre_hooks", "_propagate_forward_hooks"),
    *("_message_forward_pre_hooks", "_message_forward_hooks"),
    *("_aggregate_forward_pre_hooks", "_aggregate_forward_hooks"),
)
_HOOKS_OF_MODULES = (
    *("_forward_pre_hooks", "_forward_hooks"),
    *("_backward_pre_hooks", "_backward_hooks"),
)

# ---- What a message is --------------------------------------------------------------------------


class Form(NamedTuple):
    """A message that is ``factor(layer, None, **others)`` times a neighbour's ``rows``."""

    rows: str
    others: tuple[str, ...]
    factor: Callable[..., Any]
    message: Any  # the function that was read


class _NotAFactorError(Exception):
    """The message is more than a product with the features."""


def _factor(value: ast.expr | None, name: str) -> ast.expr:
    """What ``value`` multiplies the features ``name`` by; 1 where it is the features themselves."""
    match value:
        case ast.Name(id=found) if found == name:
            return ast.Constant(1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for rows, other in ((left, right), (right, left)):
                if isinstance(rows, ast.Name) and rows.id == name:
                    return other
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, _factor(body, name), _factor(orelse, name))
    raise _NotAFactorError


def _function(text: ast.FunctionDef, message: types.FunctionType) -> types.FunctionType:
    """The function of a text, where ``message`` is."""
    module = ast.fix_missing_locations(ast.Module([text], []))
    made: dict[str, Any] = {}
    exec(compile(module, message.__code__.co_filename, "exec"), message.__globals__, made)
    return made[text.name]


def _does(code: types.CodeType) -> tuple[Any, ...]:
    """What a function does, wherever its text is."""
    constants = [
        _does(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_cellvars, constants


def factor_of(message: Any) -> Form | None:
    """The form of a ``message``, or None if its text does not show one."""
    if not isinstance(message, types.FunctionType) or message.__closure__:
        return None
    try:
        lines = inspect.getsource(message)
        # Not dedented, which would change texts of several lines.
        nodes = ast.walk(ast.parse(f"if 1:\n{lines}" if lines[0].isspace() else lines))
    except (OSError, SyntaxError):
        return None
    function = next((node for node in nodes if isinstance(node, ast.FunctionDef)), None)
    names = message.__code__.co_varnames[1 : message.__code__.co_argcount]
    carried = [name for name in names if name.endswith(("_i", "_j"))]
    special = {*MessagePassing.special_args, *carried}
    if (
        function is None
        or function.decorator_list
        or inspect.signature(message).parameters.keys() != {"self", *names}
        or len(carried) != 1
        or not carried[0].endswith("_j")
        or special & {*names} != {*carried}
    ):
        return None
    for argument in function.args.args:
        argument.annotation = None
    function.returns = None
    function.args.defaults = []
    ast.increment_lineno(function, message.__code__.co_firstlineno - function.lineno)
    if _does(_function(function, message).__code__) != _does(message.__code__):
        return None  # the file has changed since, or a name is private to the class
    (rows,) = carried
    try:
        for node in ast.walk(function):
            if isinstance(node, ast.Return):
                node.value = _factor(node.value, rows)
    except _NotAFactorError:
        return None
    left = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    left |= {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    if rows in left:
        return None
    factor = _function(function, message)
    factor.__defaults__ = message.__defaults__
    return Form(rows[:-2], tuple(name for name in names if name != rows), factor, message)


# What is done besides messages, as MessagePassing has it.
_METHODS = {
    name: getattr(MessagePassing, name)
    for name in ("aggregate", "update", "_check_input", "_set_size")
}


def _is_other(layer: type) -> bool:
    return any(getattr(layer, name) is not method for name, method in _METHODS.items())


def form_of(layer: type) -> Form | None:
    """The form of a class's messages, if the rest of it is as MessagePassing has it."""
    if _is_other(layer):
        return None
    return factor_of(layer.message)  # type: ignore[attr-defined]


# ---- Kernels ------------------------------------------------------------------------------------

# How often edges are used before a plan is made of them. The layers of one pass use them some times
# each, and where each step has a graph of its own, the wait for the sort is never paid back.
SIGHTS = 16


_compiles: dict[str, bool] = {}  # by the type of device


def _can_compile(kind: str) -> bool:
    if kind == "cuda":
        return all(importlib.util.find_spec(name) for name in ("cuda", "cuda.core"))
    try:
        find_host_compiler()
    except RuntimeError:
        return False
    return kind == "cpu"


def is_index(edges: Any) -> bool:
    """Is it a tensor of edges, and no EdgeIndex, sparse or fake tensor?"""
    return (
        type(edges) is Tensor
        and edges.layout == torch.strided
        and edges.dtype in (torch.int32, torch.int64)
    )


# The same on CUDA, where a plan for which the host does not wait is made before.
SIGHTS_WITHOUT_WAITING = 2

# Without a plan each kernel sorts the edges. That pays for rows of so many bytes and so many values
# of messages (docs/internals/log.md, "Kernels compiled at run time").
_LEAST_UNPLANNED = {"cpu": (0, 2**16), "cuda": (256, 2**25)}


def _is_worth_it(x: Tensor, edges: Tensor) -> bool:
    least_bytes, least_values = _LEAST_UNPLANNED["cuda" if x.is_cuda else "cpu"]
    row = x.numel() // max(x.size(0), 1)
    return row * edges.size(1) >= least_values and row * x.element_size() >= least_bytes


def _graph_of(
    x: Tensor, edges: Tensor, j: int, sizes: tuple[int, int], uses: int
) -> dict[str, Any]:
    """Edges as kernels take them: a plan, if they were used often; src is row j, dst the other."""

    def make(edges: Tensor, wait: bool = True) -> IndexPlan:
        return plan_of(("src", "dst"), [edges[j], edges[1 - j]], list(sizes), 0, wait=wait)

    plan: Tensor | IndexPlan = edges
    if uses >= SIGHTS:
        plan = kept_plan(edges, ("messages", j, sizes), 1, make)
    elif edges.is_cuda and _is_worth_it(x, edges):
        soon = functools.partial(make, wait=False)
        plan = kept_plan(edges, ("messages soon", j, sizes), SIGHTS_WITHOUT_WAITING, soon)
    if isinstance(plan, IndexPlan):
        return {"plan": plan}
    return {"src": edges[j], "dst": edges[1 - j], "sizes": {"src": sizes[0], "dst": sizes[1]}}


@functools.cache
def _kernel(inputs: str, outputs: str, text: str, name: str, **how: str) -> Any:
    return IndexedKernel(inputs, outputs, text, f"pyg_{name}", **how)


def _reduced(x: Tensor, w: Tensor | None, reduce: str, graph: dict[str, Any]) -> Tensor:
    if w is None:
        return _kernel("T x[src]", "T out[dst]", "out = x", reduce, reduce=reduce)(x, **graph)
    name = f"{reduce}_of_products"
    kernel = _kernel("T x[src], T w", "T out[dst]", "out = w * x", name, reduce=reduce)
    return kernel(x, w, **graph)


# ---- Under torch.compile ------------------------------------------------------------------------

# Which edges were seen often shows when compiled code runs, so this is an op for it. Its gradient
# is another, since the kernels' own is traced by those that trace them.
torch.library.define(
    "torch_ops::_pyg_messages",
    "(Tensor x, Tensor? w, Tensor edges, int j, SymInt count, bool mean) -> Tensor",
)
torch.library.define(
    "torch_ops::_pyg_messages_backward",
    "(Tensor grad, Tensor x, Tensor? w, Tensor edges, int j, bool mean, bool for_x, bool for_w) "
    "-> (Tensor, Tensor)",
)
_DEVICES = ("cpu", "cuda")


@torch.library.impl("torch_ops::_pyg_messages", _DEVICES)
def _messages(x: Tensor, w: Tensor | None, edges: Tensor, j: int, count: int, mean: bool) -> Tensor:
    graph = _graph_of(x, edges, j, (x.size(0), count), uses_of(edges))
    reduce = "mean" if mean else "sum"
    if "plan" in graph or _is_worth_it(x, edges):
        return _reduced(x, w, reduce, graph)
    rows = torch_ops.gather(x, edges[j])
    return torch_ops.scatter(rows if w is None else rows * w, edges[1 - j], count, reduce=reduce)


@torch.library.impl("torch_ops::_pyg_messages_backward", _DEVICES)
def _messages_backward(
    grad: Tensor, x: Tensor, w: Tensor | None, edges: Tensor, j: int, mean: bool, for_x: bool,
    for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    graph = _graph_of(x, edges, j, (x.size(0), grad.size(0)), uses_of(edges))
    if mean:
        if "plan" in graph:
            _, (_, offsets, _), _, _ = graph["plan"].parts_for(("dst",), "pyg_mean")
            entries = offsets.diff()
        else:
            ones = torch.ones(edges.size(1), dtype=torch.int64, device=edges.device)
            entries = torch_ops.scatter_add(ones, edges[1 - j], grad.size(0))
        entries = entries.clamp(min=1).view(-1, *[1] * (x.dim() - 1))
        wide = torch.promote_types(grad.dtype, torch.float32)
        grad = (grad / entries.to(wide)).to(grad.dtype)
    of_x, of_w = grad.new_empty(0), grad.new_empty(0)
    sums = w is not None and w.size(-1) != x.size(-1)
    if "plan" not in graph and not _is_worth_it(x, edges):
        rows = torch_ops.gather(grad, edges[1 - j])
        if for_x:
            of_x = rows if w is None else rows * w
            of_x = torch_ops.scatter_add(of_x, edges[j], x.size(0))
        if for_w:
            of_w = rows * torch_ops.gather(x, edges[j])
            of_w = of_w.sum(-1, keepdim=True) if sums else of_w
        return of_x, of_w
    how = {"features": "sum"} if sums else {}
    if for_x and for_w:  # one kernel reads both rows
        kernel = _kernel(
            "T g[dst], T x[src], T w", "T gx[src], T gw", "gx = w * g; gw = x * g", "grads", **how
        )
        of_x, of_w = kernel(grad, x, w, **graph)
    elif for_w:
        of_w = _kernel("T g[dst], T x[src]", "T gw", "gw = x * g", "grad_of_factor", **how)(
            grad, x, **graph
        )
    elif w is not None:
        of_x = _kernel("T g[dst], T w", "T gx[src]", "gx = w * g", "grad")(grad, w, **graph)
    else:
        of_x = _kernel("T g[dst]", "T gx[src]", "gx = g", "grad")(grad, **graph)
    if for_w and sums:
        of_w = of_w.unsqueeze(-1)
    return of_x, of_w


@torch.library.register_fake("torch_ops::_pyg_messages")
def _messages_fake(
    x: Tensor, w: Tensor | None, edges: Tensor, j: int, count: int, *_: Any
) -> Tensor:
    return x.new_empty(count, *x.shape[1:])


@torch.library.register_fake("torch_ops::_pyg_messages_backward")
def _messages_backward_fake(
    grad: Tensor, x: Tensor, w: Tensor | None, edges: Tensor, j: int, mean: bool, for_x: bool,
    for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    of_w = w.shape if for_w and w is not None else (0,)
    return grad.new_empty(x.shape if for_x else 0), grad.new_empty(of_w)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, edges, ctx.j, _, ctx.mean = inputs
    ctx.save_for_backward(x, w, edges)


def _derive(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, w, edges = ctx.saved_tensors
    for_x, for_w = ctx.needs_input_grad[:2]
    of_x, of_w = torch.ops.torch_ops._pyg_messages_backward(
        grad, x, w, edges, ctx.j, ctx.mean, for_x, for_w
    )
    return of_x if for_x else None, of_w if for_w else None, None, None, None, None


torch.library.register_autograd("torch_ops::_pyg_messages", _derive, setup_context=_keep)

# ---- propagate ----------------------------------------------------------------------------------


# Compiled code leaves rows of fewer bytes to torch.compile.
_LEAST_ROW = 128


def _fused(
    self: MessagePassing, form: Form, edges: Any, size: Any, given: dict[str, Any]
) -> Tensor | None:
    """What propagate returns, or None if it must be computed as before."""
    # What new and small graphs are asked comes first: it is to cost little.
    if not is_index(edges) or edges.dim() != 2:
        return None
    j = 0 if self.flow == "source_to_target" else 1
    x = given.get(form.rows)
    pair = x if isinstance(x, tuple | list) and len(x) == 2 else None
    x = x if pair is None else pair[0]  # in either flow, as theirs
    if not isinstance(x, Tensor) or x.dim() < 2:
        return None
    is_compiling, uses = torch.compiler.is_compiling(), 0
    if not is_compiling:
        uses = uses_of(edges)
        if torch._C._is_tracing() or (uses < SIGHTS and not _is_worth_it(x, edges)):
            return None
    reduce = _REDUCES.get(type(self.aggr_module))
    if (
        reduce is None
        or not _compiles.get(x.device.type)
        or x.layout != torch.strided
        or not x.is_floating_point()
        or self.node_dim not in (0, -x.dim())
        or edges.device != x.device
        or self.explain
        or self.decomposed_layers > 1
        or any(name in self.__dict__ for name in ("message", "aggregate", "update"))
        or type(self).message is not form.message  # it was replaced since
        or _is_other(type(self))
        or any(getattr(self, hooks) for hooks in _HOOKS)
        or any(getattr(self.aggr_module, hooks) for hooks in _HOOKS_OF_MODULES)
        or _has_any_global_hook()
    ):
        return None
    sizes = self._check_input(edges, size)
    for place, each in ((j, x),) if pair is None else enumerate(pair):
        if isinstance(each, Tensor):
            self._set_size(sizes, place, each)
    count = sizes[1 - j] if sizes[1 - j] is not None else sizes[j]
    graph = None
    if is_compiling:
        if x.shape[1:].numel() * x.element_size() < _LEAST_ROW:
            return None
    else:
        try:
            graph = _graph_of(x, edges, j, (x.size(0), count), uses)
        except IndexError:  # theirs speaks of edge_index
            return None
        if "plan" not in graph and not _is_worth_it(x, edges):
            return None
    factor = form.factor(
        self, **{f"{form.rows}_j": None}, **{name: given[name] for name in form.others}
    )
    is_one = isinstance(factor, int) and factor == 1
    if is_one or (
        isinstance(factor, Tensor)
        and factor.dim() == x.dim()
        and factor.dtype == x.dtype
        and factor.device == x.device
        and factor.shape[:-1] == (edges.size(1), *x.shape[1:-1])
        and factor.size(-1) in (1, x.size(-1))
    ):
        w = None if is_one else factor
        if graph is not None:
            try:
                return _reduced(x, w, reduce, graph)
            except IndexError:
                return None
        return torch.ops.torch_ops._pyg_messages(x, w, edges, j, count, reduce == "mean")
    messages = factor * self._index_select(x, edges[j])
    return self.aggregate(messages, index=edges[1 - j], ptr=None, dim_size=count)


def propagate_of(layer: type) -> Any:
    """Another ``propagate`` for a class, or None if its messages have no form for it."""
    theirs = vars(layer)["propagate"]
    form = form_of(layer)
    if form is None:
        return None
    _compiles.update({kind: _can_compile(kind) for kind in _DEVICES})
    fused = _fused

    def propagate(self, edge_index, *args, size=None, **kwargs):  # type: ignore[no-untyped-def]
        if not args and all(name in kwargs for name in form.others):
            output = fused(self, form, edge_index, size, kwargs)
            if output is not None:
                return output
        return theirs(self, edge_index, *args, size=size, **kwargs)

    return in_place_of(theirs, propagate)


def in_place_of(theirs: Any, ours: Any) -> Any:
    """``ours``, for torch.jit.script ``theirs``: it reads the text of that, by names of that."""
    function = types.FunctionType(
        ours.__code__, theirs.__globals__, theirs.__name__, ours.__defaults__, ours.__closure__
    )
    function.__kwdefaults__ = ours.__kwdefaults__
    return functools.update_wrapper(function, theirs)
