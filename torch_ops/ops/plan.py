"""gather_plan: checks and sorts an index once for gather and scatter; and plans that are kept."""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils import _pytree as pytree

from torch_ops.ops._arguments import check_dense, check_device, check_kinds, given

_gather_plan = torch.ops.torch_ops.gather_plan.default
_Plan = TypeVar("_Plan")


@dataclass(frozen=True, eq=False, repr=False)
class GatherPlan:
    """An index that :func:`gather_plan` has checked and sorted. Make it only by that function.

    :func:`gather`, :func:`scatter_add` and :func:`scatter` accept it in place of the index. Its
    tensors are on the index's device; :meth:`to` copies them to another. It is a pytree, with the
    tensors as leaves, so it can be an argument of functions under ``torch.compile``, ``torch.func``
    and ``torch.export``; and it can be pickled.

    Its tensors are not compared again. If the index is overwritten afterwards, gather and
    scatter_add contradict each other; with ``rows`` and ``order`` from elsewhere, a GPU may write
    out of bounds. So load plans only from files that you trust.

    Attributes:
        index: The index, as it was given.
        rows: The rows that its entries name, sorted: ``batch * dim_size + entry``, where ``batch``
            counts over the batch axes. int32 if all of them fit, else int64.
        order: For each of ``rows``, which entry it was, counted in row-major order. The order of
            entries that name the same row is kept. Of the same dtype.
        dim_size: How long the axis is that the index picks from.
        dim: Which axis that is; negative counts from the end.
        batch_dims: How many leading axes index and source share.
    """

    index: Tensor
    rows: Tensor
    order: Tensor
    dim_size: int
    dim: int
    batch_dims: int

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> GatherPlan:
        """Returns the plan with its tensors on ``device``; tensors already there are not copied."""
        check_device("GatherPlan.to", device)
        return self._map(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> GatherPlan:
        """Returns the plan in pinned memory; a DataLoader with ``pin_memory=True`` calls this.

        From there ``to("cuda", non_blocking=True)`` does not wait.
        """
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> GatherPlan:
        index, rows, order = (change(part) for part in (self.index, self.rows, self.order))
        return GatherPlan(index, rows, order, self.dim_size, self.dim, self.batch_dims)

    def __repr__(self) -> str:
        # No values of tensors: printing a plan must not wait for a GPU.
        dtype = str(self.index.dtype).removeprefix("torch.")
        return (
            f"GatherPlan(index={dtype}{list(self.index.shape)}, dim_size={self.dim_size}, "
            f"dim={self.dim}, batch_dims={self.batch_dims}, device='{self.index.device}')"
        )


_TENSORS = ("index", "rows", "order")


def _flatten(plan: GatherPlan) -> tuple[list[Any], Any]:
    return [plan.index, plan.rows, plan.order], (plan.dim_size, plan.dim, plan.batch_dims)


def _flatten_with_keys(plan: GatherPlan) -> tuple[list[Any], Any]:
    leaves, context = _flatten(plan)
    keys = [pytree.GetAttrKey(name) for name in _TENSORS]
    return list(zip(keys, leaves, strict=True)), context


def _unflatten(leaves: Any, context: Any) -> GatherPlan:
    return GatherPlan(*leaves, *context)


# The numbers are context, not leaves: torch.vmap and others accept only tensors.
pytree.register_pytree_node(
    GatherPlan,
    _flatten,
    _unflatten,
    flatten_with_keys_fn=_flatten_with_keys,
    serialized_type_name="torch_ops.GatherPlan",  # what torch.export.save writes
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)


class _RegisteredPlan(nn.Module, GatherPlan):
    """A plan whose tensors are buffers."""

    def __init__(self, plan: GatherPlan, persistent: bool) -> None:
        super().__init__()
        for name in _TENSORS:
            self.register_buffer(name, getattr(plan, name), persistent)
        for name in ("dim_size", "dim", "batch_dims"):
            object.__setattr__(self, name, getattr(plan, name))

    # Of the plan, as for any other: a module moves its own parts by _apply.
    to = GatherPlan.to  # type: ignore[assignment]
    __repr__ = GatherPlan.__repr__

    def forward(self, input: Any) -> Any:
        return input  # nn.Sequential calls all modules that it has, and a plan is data

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _RegisteredPlan:
        def keep_dtype(part: Tensor) -> Tensor:  # module.type() converts integers too
            changed = fn(part)
            return changed if changed.dtype == part.dtype else part.to(changed.device)

        return super()._apply(keep_dtype, recurse)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = [getattr(self, name) for name in _TENSORS]
        loaded: list[Any] = [state_dict.get(prefix + name) for name in _TENSORS]
        # Torch says which are missing or of another shape; fake ones have no values to compare.
        if torch._C._len_torch_dispatch_stack() == 0 and all(
            type(new) is Tensor and not new.is_meta and new.shape == old.shape
            for new, old in zip(loaded, own, strict=True)
        ):
            index, *sorted_ = (new.to(old.dtype) for new, old in zip(loaded, own, strict=True))
            try:
                again = _gather_plan(index, self.dim_size, dim=self.dim, batch_dims=self.batch_dims)
                fits = all(map(torch.equal, again, sorted_))
            except IndexError:
                fits = False
            if not fits:
                error_msgs.append(
                    f"the plan {prefix.removesuffix('.')} of the state_dict was made for other "
                    f"sizes than the module's, {self!r}, or its index, rows and order are not of "
                    "one plan. Register a plan of its sizes first."
                )
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


pytree.register_pytree_node(_RegisteredPlan, _flatten, _unflatten)


def plan_arguments(
    plan: GatherPlan,
    op: str,
    data: Tensor,
    dim: int | None = None,
    batch_dims: int = 0,
    dim_size: int | None = None,
    *,
    picks: bool = False,
) -> tuple[Any, ...]:
    """The arguments of an op's overload ``.plan`` after the data.

    ``dim``, ``batch_dims`` and ``dim_size`` are those that the caller was given. The defaults fit
    any plan. ``picks``: ``data`` is what the plan's index picks from, and not what it combines.
    """
    if dim_size not in (None, plan.dim_size):
        raise ValueError(
            f"{op}: the plan was made for dim_size={plan.dim_size}, but dim_size={dim_size} was "
            "given. Leave it out: the plan has it."
        )
    if not _is_axis(dim, plan, data, picks) or (batch_dims and batch_dims != plan.batch_dims):
        made = f"{op}: the plan was made for dim={plan.dim} and batch_dims={plan.batch_dims}, but "
        if op == "index":
            raise ValueError(
                f"{made}index takes one for dim=0. Use torch_ops.gather(source, plan)."
            )
        asked = [] if dim is None else [f"dim={dim}"]
        asked += [f"batch_dims={batch_dims}"] if batch_dims else []
        raise ValueError(
            f"{made}{' and '.join(asked)} was given. Leave out dim and batch_dims: the plan has "
            "them."
        )
    return plan.index, plan.rows, plan.order, plan.dim_size, plan.dim, plan.batch_dims


def refuse_plan(name: str, index: Tensor) -> None:
    """For a Function, whose arguments are tensors."""
    if isinstance(index, GatherPlan):
        raise TypeError(
            f"{name}: index must be a tensor, but a GatherPlan was given. torch_ops.gather, "
            "scatter and scatter_add take plans."
        )


def _is_axis(dim: int | None, plan: GatherPlan, data: Tensor, picks: bool) -> bool:
    """Is it the plan's axis? One of the two may count from the end."""
    if dim is None or dim == plan.dim:
        return True
    if not isinstance(data, Tensor):
        return False
    rank = data.dim() if picks else data.dim() - plan.index.dim() + plan.batch_dims + 1
    return abs(dim - plan.dim) == rank and -rank <= min(dim, plan.dim) < 0


def gather_plan(
    index: Tensor, dim_size: int, *, dim: int | None = None, batch_dims: int = 0
) -> GatherPlan:
    """Checks and sorts an index once, for calls of gather and scatter that use it many times.

    ``gather(source, plan)``, ``scatter_add(values, plan)`` and ``scatter(values, plan)`` return
    the same as with ``index``, ``dim`` and ``batch_dims``, for sources and results that are
    ``dim_size`` long at ``dim``. On CUDA a plan saves the sort, which is needed if scatter_add, and
    so the gradient of gather, sums floats in a fixed order, and if scatter multiplies or finds the
    largest or smallest values. With a plan floats are always summed in that order, in the
    derivatives too. A plan pays if an index stays the same over several steps, such as a list of
    neighbours.

    Args:
        index: uint8, int8, int16, int32 or int64, of any shape and strides, as for :func:`gather`.
            It is kept, not copied, and must not be overwritten while the plan is used.
        dim_size: The length of the axis that the index picks from. Each entry must be between 0 and
            ``dim_size - 1``.
        dim: Which axis that is; negative counts from the end. Default: ``batch_dims``.
        batch_dims: How many leading axes the index shares with the source or the values.

    Returns:
        A :class:`GatherPlan`.

    Gradient:
        None: an index has none. The ops that use the plan are differentiable as with an index.

    Memory:
        In addition to the index 8 bytes per entry, or 16 if the entries, or the rows of all
        batches, are 2^31 or more.

    Deterministic.

    Raises:
        IndexError: An entry is out of range; the message names its position, its value and the
            bound. Here the call itself raises on CUDA too: it waits for the device, in both error
            modes.
        TypeError: ``index`` has another dtype or is not a tensor, or a number is not an int.
        ValueError: ``dim_size`` is negative, ``batch_dims`` is out of range, or ``dim`` is one of
            the batch axes.
        RuntimeError: The current stream is capturing a CUDA graph, or ``torch.vmap`` maps over the
            index. (Make the plan outside of either, and pass it to the code inside.)

    Example:
        >>> import torch, torch_ops
        >>> neighbours = torch.tensor([[2, 0], [1, 1]])
        >>> plan = torch_ops.gather_plan(neighbours, 3, batch_dims=1)
        >>> plan
        GatherPlan(index=int64[2, 2], dim_size=3, dim=1, batch_dims=1, device='cpu')
        >>> atoms = torch.tensor([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
        >>> for step in range(2):
        ...     messages = torch_ops.gather(atoms, plan)
        ...     atoms = torch_ops.scatter_add(messages, plan)
        >>> atoms
        tensor([[10.,  0., 12.],
                [ 0., 84.,  0.]])
    """
    check_dense("gather_plan", index=index)
    _check_numbers("gather_plan", dim_size, dim, batch_dims)
    dim_size, dim, batch_dims = _constants(dim_size, dim, batch_dims)
    rows, order = _gather_plan(index, dim_size, dim=dim, batch_dims=batch_dims)
    return GatherPlan(index, rows, order, dim_size, batch_dims if dim is None else dim, batch_dims)


def _check_numbers(name: str, dim_size: int, dim: int | None, batch_dims: int) -> None:
    check_kinds(
        name,
        dim_size=(dim_size, "an int"),
        dim=(dim, "an int or None"),
        batch_dims=(batch_dims, "an int"),
    )


def _constants(*numbers: Any) -> list[Any]:
    """NumPy's numbers and tensors as ints, which can be saved and stay; symbols as they are."""
    if is_compiling() or torch._C._is_tracing():
        return [*numbers]
    return [operator.index(n) if isinstance(n, (Integral, Tensor)) else n for n in numbers]


def register_plan(module: nn.Module, name: str, plan: GatherPlan, persistent: bool = False) -> None:
    """Makes a plan part of a module, as ``register_buffer`` does with a tensor.

    ``module.name`` is the plan, which the ops take. Its tensors are buffers: they move with
    ``module.to(...)``, and are copied and pickled with the module. Call it again with the same
    name to replace the plan: torch refuses the assignment ``module.name = plan``.
    ``DistributedDataParallel`` overwrites buffers with those of rank 0: do not register a plan of
    a rank's own, unless it ignores the plan's tensors.

    Args:
        module: The module.
        name: The attribute's name: not empty, and without dots.
        plan: A plan that :func:`gather_plan` returned.
        persistent: Whether the tensors are in the module's ``state_dict``, as ``name.index``,
            ``name.rows`` and ``name.order``. The numbers are not: before a module loads them, it
            must register a plan of the same sizes. ``load_state_dict`` sorts the index again, and
            raises RuntimeError if the tensors are not those of such a plan.

    Raises:
        TypeError: ``module`` is not a module, ``plan`` is not a plan, or ``name`` is not a string.
        KeyError: The module already has such an attribute, which is no registered plan, or ``name``
            cannot be one.

    Example:
        >>> import torch, torch_ops
        >>> layer = torch.nn.Module()
        >>> torch_ops.register_plan(layer, "edges", torch_ops.gather_plan(torch.tensor([1, 1]), 3))
        >>> torch_ops.scatter(torch.tensor([2.0, 3.0]), layer.double().edges, reduce="mean")
        tensor([0.0000, 2.5000, 0.0000])
    """
    for role, argument, kind in (("module", module, nn.Module), ("plan", plan, GatherPlan)):
        if not isinstance(argument, kind):
            raise TypeError(
                f"register_plan: {role} must be a {kind.__name__}, but {given(argument)} was given."
            )
    if not isinstance(name, str):
        raise TypeError(f"register_plan: name must be a string, but {given(name)} was given.")
    if name == "" or "." in name:
        raise KeyError(f"register_plan: name must not be empty or have a dot, but it is {name!r}.")
    taken = getattr(module, name, None)
    is_free = not hasattr(module, name) or (taken is None and name in module._modules)
    # register_module replaces a module silently.
    if not is_free and not isinstance(taken, _RegisteredPlan):
        raise KeyError(
            f"register_plan: name must be new or that of a registered plan, but {name!r} is "
            f"{given(taken)} of the module."
        )
    module.register_module(name, _RegisteredPlan(plan, persistent))


class _Seen(weakref.ref[Tensor]):
    """What is known of a tensor and of its views: their plans, which do not keep it alive."""

    __slots__ = ("number", "plans", "used", "uses", "version")

    def __new__(cls, owner: Tensor) -> _Seen:
        return super().__new__(cls, owner, _forget)

    def __init__(self, owner: Tensor) -> None:
        self.number = id(owner)
        self.version = owner._version
        self.used = next(_clock)
        self.uses = 0  # that were counted
        # Keyed by the numbers of a plan and the part of the owner: the plan, or how often it was
        # asked for.
        self.plans: dict[tuple[Any, ...], Any] = {}


def _forget(seen: weakref.ref[Tensor]) -> None:
    """The owner is gone."""
    assert isinstance(seen, _Seen)
    if _seen.get(seen.number) is seen:
        _seen.pop(seen.number, None)


_MOST_SEEN = 64  # tensors, and parts of each
_seen: dict[int, _Seen] = {}  # by the owner's id
_lock = threading.RLock()  # a tensor that dies while it is held may ask for it
_clock = itertools.count(1)


def _may_be_seen(index: Tensor) -> bool:
    return not (
        type(index) is not Tensor  # but a fake one, say
        or index.layout != torch.strided  # which each op refuses
        or is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or index.is_inference()  # it could be overwritten unnoticed
    )


def _may_have_plan(index: Tensor) -> bool:
    """Of a tensor that may be seen."""
    return not (
        # What a checkpoint computes again must not find a plan that was not there at first.
        torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        # A new plan would have to wait, and a kept one may be freed before the graph is.
        or (index.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _remembered(owner: Tensor) -> _Seen:
    """What is known of a tensor that is not a view; nothing, if it was written to."""
    seen = _seen.get(id(owner))
    if seen is None or seen() is not owner or seen.version != owner._version:
        seen = _seen[id(owner)] = _Seen(owner)
        if len(_seen) > _MOST_SEEN:
            oldest = min(list(_seen.values()), key=lambda each: each.used)
            _seen.pop(oldest.number, None)
    seen.used = next(_clock)
    return seen


def uses_of(tensor: Tensor) -> int:
    """How often this was asked of the tensor or a view of it; 0 where it cannot be known."""
    owner = tensor if tensor._base is None else tensor._base
    seen = _seen.get(id(owner))
    if seen is None or seen() is not owner or seen.version != owner._version:
        if not _may_be_seen(tensor):
            return 0
        with _lock:
            seen = _remembered(owner)
    seen.used = next(_clock)
    seen.uses += 1
    return seen.uses


def kept_plan(
    tensor: Tensor, key: tuple[Any, ...], sights: int, make: Callable[[Tensor], _Plan]
) -> Tensor | _Plan:
    """What ``make`` gives for a tensor of indices that was asked for ``sights`` times.

    Before that it is the tensor itself. ``key`` tells one plan of a tensor from another.
    """
    if not _may_be_seen(tensor):
        return tensor
    owner = tensor if tensor._base is None else tensor._base
    key = (*key, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    seen = _seen.get(id(owner))
    if seen is not None and seen() is owner and seen.version == owner._version:
        plan = seen.plans.get(key)
        if plan is not None and not isinstance(plan, int):
            seen.used = next(_clock)
            return plan if _may_have_plan(tensor) else tensor
    with _lock:
        seen = _remembered(owner)
        count = seen.plans.get(key, 0)
        if not isinstance(count, int):  # another thread made it
            return count if _may_have_plan(tensor) else tensor
        if key not in seen.plans and len(seen.plans) >= _MOST_SEEN:
            del seen.plans[next(iter(seen.plans))]
        seen.plans[key] = count + 1
    if count + 1 < sights or not _may_have_plan(tensor):
        return tensor
    # Of another tensor of the same memory, since it would keep the indices and their base alive.
    with torch.inference_mode(False):
        plan = make(tensor.detach())
    seen.plans[key] = plan
    return plan


def cached_plan(
    index: Tensor, dim_size: int, dim: int, batch_dims: int, sights: int
) -> Tensor | GatherPlan:
    """`plan_cache`, whose plan is made when the index is seen for the ``sights``-th time."""

    def make(index: Tensor) -> GatherPlan:
        return gather_plan(index, dim_size, dim=dim, batch_dims=batch_dims)

    dim_size, dim, batch_dims = _constants(dim_size, dim, batch_dims)
    return kept_plan(index, (dim_size, dim, batch_dims), sights, make)


def plan_cache(
    index: Tensor, dim_size: int, *, dim: int | None = None, batch_dims: int = 0
) -> Tensor | GatherPlan:
    """Returns a plan of ``index`` if it was seen before, else ``index`` itself.

    Pass the result in place of the index to an op that accepts both: ``scatter(values,
    plan_cache(index, n), n)``. So a layer need not know whether its index stays the same from call
    to call: the first call with a tensor remembers it, the second makes a plan, and later calls
    find it. A tensor that was written to, or is another object, counts as a new one; views of the
    same part of a tensor, such as ``edges[0]``, count as one. (Writes that do not change
    ``index._version``, through ``.data``, by NumPy or the replay of a CUDA graph, go unnoticed:
    then the old plan is found, and sums may be wrong.)

    The last 64 tensors are remembered, with 64 parts each, without keeping them alive; a plan is
    freed with its tensor. The index itself is always returned under ``torch.compile``,
    ``torch.func`` and other kinds of tracing, inside ``torch.utils.checkpoint`` and other hooks of
    saved tensors, while a CUDA graph is captured, and for fake and inference tensors. Any number of
    threads may call. ``torch.utils.swap_tensors`` refuses a tensor that is remembered.

    Args:
        index: As for :func:`gather_plan`.
        dim_size: As for :func:`gather_plan`.
        dim: As for :func:`gather_plan`.
        batch_dims: As for :func:`gather_plan`.

    Returns:
        ``index``, or a :class:`GatherPlan` whose ``index`` is another tensor of the same memory.

    Memory:
        That of a plan, for each index that was seen twice: 8 or 16 bytes per entry.

    Raises:
        TypeError: ``index`` is not a tensor, or a number is not an int.
        IndexError, TypeError, ValueError: As for :func:`gather_plan`, if a plan is made.

    Example:
        >>> import torch, torch_ops
        >>> index = torch.tensor([2, 0, 2])
        >>> for step in range(3):
        ...     known = torch_ops.plan_cache(index, 3)
        ...     print(type(known).__name__, torch_ops.scatter_add(torch.ones(3), known, 3))
        Tensor tensor([1., 0., 2.])
        GatherPlan tensor([1., 0., 2.])
        GatherPlan tensor([1., 0., 2.])
    """
    check_dense("plan_cache", index=index)
    _check_numbers("plan_cache", dim_size, dim, batch_dims)
    return cached_plan(index, dim_size, batch_dims if dim is None else dim, batch_dims, sights=2)


def self_check(device: torch.device) -> str:
    """Makes a plan on ``device``; for ``python -m torch_ops``."""
    plan = gather_plan(torch.tensor([[2, 0, 2], [1, 1, 0]], device=device), 3, batch_dims=1)
    rows, order = plan.rows.tolist(), plan.order.tolist()
    if rows != [0, 2, 2, 3, 4, 4] or order != [1, 0, 2, 5, 3, 4]:
        raise AssertionError(f"gather_plan gave rows {rows}, order {order}")
    return "gather_plan([[2, 0, 2], [1, 1, 0]], 3).order = [1, 0, 2, 5, 3, 4]"
