"""A table whose rows the ranks of a group share out."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from torch_ops.distributed import _exchange, _hosts
from torch_ops.distributed._lookup import SparseRows, look_up, peer_tables, tell_of_error
from torch_ops.distributed.peers._memory import CannotMap, agree, host
from torch_ops.distributed.peers._tables import PeerTable, has_gradient
from torch_ops.distributed.rules._frame import part_of, wrap
from torch_ops.distributed.table import PEERS, ROUTE, check_call
from torch_ops.ops._arguments import Number, check_kinds, given

_ROUTES = ("auto", "direct", "exchange", "hierarchical")
_BLOCK = 1 << 18  # elements that are drawn from one seed


def _fill(part: Tensor, first: int, init: Callable[[Tensor], Any], seed: int) -> None:
    """Fills rows from ``first`` on with values that depend on the row's number and the seed."""
    block = max(_BLOCK // max(math.prod(part.shape[1:]), 1), 1)
    end = first + part.shape[0]
    index = part.device.index
    cuda = part.device.type == "cuda"
    generator = torch.cuda.default_generators[index] if cuda else torch.default_generator
    state = generator.get_state()
    try:
        for start in range(first - first % block, end, block):
            # Whole even where a part of it is wanted: what is drawn may depend on the size.
            values = part.new_empty((block, *part.shape[1:]))
            generator.manual_seed((seed + start // block) % 2**63)
            init(values)
            here = slice(max(first, start) - start, min(end, start + block) - start)
            part[max(first, start) - first : min(end, start + block) - first] = values[here]
    finally:
        generator.set_state(state)


def _mark_stepped(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            peers = getattr(weight, PEERS, None)
            if peers is not None:
                peers.mark_written()


@functools.cache
def _watch_optimizers() -> None:
    """Has a step mark its tables as written: torch counts no writes of foreach and fused ones."""
    register_optimizer_step_post_hook(_mark_stepped)


class ShardedTable(nn.Module):
    """A table of rows that the ranks of a group share out, to look up and to train.

    ``output[i..., d...] = weight[index[i...], d...]``. Every rank has an index of its own, in data
    parallel training that of its part of the batch, and gets its rows. Gradients are summed over
    the ranks. Rank r of W has rows ``r * ceil(rows / W)`` to ``(r + 1) * ceil(rows / W) - 1``, as
    DTensor's ``Shard(0)`` has it, so that the last ranks may have fewer or none.

    A row is found by one of three routes. The direct one reads it from its owner's memory, which
    all ranks of a host map: shared memory on the CPU, symmetric memory on CUDA. Another exchanges
    rows over the process group, as :func:`torch_ops.distributed.gather` does, and serves several
    hosts too. The hierarchical one does so in two steps, so that a row crosses the network once for
    each host that wants it. All give the same rows.

    All ranks of the group make the table, and all take part in each backward pass. By the exchange
    they take part in each lookup too.

    Args:
        rows: The number of rows, M.
        dim: The length of a row.
        dtype: A floating or complex dtype; torch's default where it is None.
        device: "cpu" or a CUDA device; that of the mesh, or torch's default, where it is None.
        group: A process group or a DeviceMesh of one dimension; all ranks where it is None.
        init: A function that fills a tensor ``[n, dim]`` of rows in place, by torch's default
            generator; ``torch.nn.init.normal_``, as ``torch.nn.Embedding`` has it, where it is
            None. It is called on blocks of rows. The values depend on the generator of the group's
            first rank, and not on the number of ranks.
        route: "direct", "exchange", "hierarchical", or "auto", which is the direct one if all ranks
            are on one host and can map each other's memory, and else the exchange. If they are and
            cannot, it warns. "hierarchical" is the exchange in two steps, first between the ranks
            of each host, then between hosts; all hosts must have the same number of ranks.
        sparse: Whether the gradient is a sparse tensor of distinct rows. A DTensor has none:
            then ``local_weight``, a plain parameter that shares the memory of this rank's rows, has
            it, and ``weight`` requires no gradient. Give ``local_weight`` to the optimizer.
        inbox_bytes: The most memory of a rank in which it receives gradients by the direct route.
            What does not fit is sent in further rounds.

    Attributes:
        weight: A parameter, a DTensor ``[rows, dim]`` with ``Shard(0)``, for any optimizer, for
            ``state_dict`` and for ``torch.distributed.checkpoint``, which also loads what another
            number of ranks has saved.
        local_weight: With ``sparse=True``, this rank's rows, ``[n, dim]``; else None. Not
            registered as a parameter, since ``weight`` has the same memory. So ``zero_grad`` and
            ``requires_grad_`` of the table reach it, but those of a module around it do not: call
            ``zero_grad`` of the optimizer, or gradients of all steps add up.

    Gradient:
        That of ``weight`` is a DTensor with ``Shard(0)``: each rank has that of its own rows. Each
        rank adds up its duplicates, and an owner adds what comes from the ranks in their order.
        Sums of 16-bit floats are taken in float32 and rounded once. Differentiable any number of
        times; once where it is sparse.

    Memory:
        Per rank its rows, and for the direct route ``inbox_bytes`` at most, and no more than a rank
        can fill. A lookup makes its output alone by the direct route. The backward pass makes the
        gradient of the rank's own rows, and in float32 the sums of its distinct rows: on CUDA as
        many rows as the index has entries, which the host need not wait for. A gradient of 16-bit
        floats that comes in several rounds, and each on the CPU, is made in float32 first.

    Deterministic, the gradient too. A lookup by the direct route never waits for the device. A
    backward pass waits once, to know how much came; while a CUDA graph is captured it does not, and
    then the index must have the same length on all ranks.

    A lookup sees what all ranks wrote before it: after a backward pass, a step of a
    ``torch.optim.Optimizer``, and a write to ``weight`` or ``local_weight`` that torch counts, as
    ``load_state_dict`` is, the next lookup waits until all ranks have come to it. Call
    :meth:`mark_written` on all ranks after another write, one through ``.data`` or by a
    ``torch._foreach_`` function say. Where no backward pass is between a lookup and the next write,
    a slow rank may read what a fast one writes already: call ``torch.distributed.barrier`` there.

    Raises:
        IndexError: In a lookup, an entry is out of range: on its rank with its position. By the
            exchange the others raise it with the number of that rank. By the direct route they get
            their rows, and raise it in the backward pass, if there is one. On CUDA the direct
            route's error comes with a later call, as those of :func:`torch_ops.gather`.
            docs/distributed.md says what the others hear of then.
        RuntimeError: The route is "direct" and the ranks cannot map each other's memory. In a
            lookup or a backward pass: a rank did not come within the group's timeout. Or a lookup
            is to be transformed by ``torch.vmap`` or ``torch.func``. Or the module was moved or
            converted, which would part ``weight`` from the memory that others read.
        TypeError: An argument is of the wrong type.
        ValueError: An argument has a wrong value, or ranks were given different ones. Or the route
            is "hierarchical", and hosts have different numbers of ranks, or the ranks of a subgroup
            are members of different numbers of groups.

    Example:
        >>> import torch, torch.distributed as dist, torch_ops
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> table = torch_ops.distributed.ShardedTable(3, 2, init=torch.nn.init.ones_)
        >>> table(torch.tensor([2, 0, 2])).sum().backward()
        >>> table.weight.grad.to_local()
        tensor([[1., 1.],
                [0., 0.],
                [2., 2.]])
        >>> dist.destroy_process_group()
    """

    weight: nn.Parameter
    local_weight: nn.Parameter | None

    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        group: ProcessGroup | DeviceMesh | None = None,
        init: Callable[[Tensor], Any] | None = None,
        route: str = "auto",
        sparse: bool = False,
        inbox_bytes: int = 1 << 28,
    ) -> None:
        super().__init__()
        check_kinds("ShardedTable", rows=(rows, "an int"), dim=(dim, "an int"))
        for name, value in {"rows": rows, "dim": dim}.items():
            if value < 0:
                raise ValueError(f"ShardedTable: {name} must not be negative, but it is {value}.")
        if init is not None and not callable(init):
            raise TypeError(
                f"ShardedTable: init must be a function or None, but {given(init)} was given."
            )
        mesh = _mesh_of(group, device)
        where = torch.device(mesh.device_type if device is None else device)
        if where.type == "cuda" and where.index is None:
            where = torch.device("cuda", torch.cuda.current_device())
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self._set_up((rows, dim), dtype, where, mesh, route, sparse, inbox_bytes)
        seed = int(torch.randint(2**62, (), device="cpu"))
        seed = agree(mesh.get_group(), seed)[0]
        first, _ = part_of(rows, mesh, (Shard(0),), 0)
        _fill(self._part(), first, init or nn.init.normal_, seed)

    @classmethod
    def from_dtensor(
        cls,
        weight: DTensor,
        *,
        route: str = "auto",
        sparse: bool = False,
        inbox_bytes: int = 1 << 28,
    ) -> ShardedTable:
        """Makes a table of a DTensor ``[M, d...]`` with ``Shard(0)`` on a mesh of one dimension.

        Its values are copied. The other arguments are those of the class.
        """
        if not isinstance(weight, DTensor):
            raise TypeError(
                "ShardedTable.from_dtensor: weight must be a DTensor, but it is a "
                f"{type(weight).__name__}."
            )
        mesh = weight.device_mesh
        if weight.dim() == 0 or weight.placements != (Shard(0),):
            raise ValueError(
                "ShardedTable.from_dtensor: weight must be Shard(0) on a mesh of one dimension, "
                f"but its placements are {weight.placements}."
            )
        table = cls.__new__(cls)
        nn.Module.__init__(table)
        part = weight.to_local().detach()
        table._set_up(weight.shape, weight.dtype, part.device, mesh, route, sparse, inbox_bytes)
        table._part().copy_(part)
        return table

    def _set_up(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        mesh: DeviceMesh,
        route: str,
        sparse: bool,
        inbox_bytes: int,
    ) -> None:
        """Makes the parameters, whose values are undefined yet."""
        if route not in _ROUTES:
            raise ValueError(
                'ShardedTable: route must be "auto", "direct", "exchange" or "hierarchical", but '
                f"it is {route!r}."
            )
        check_kinds("ShardedTable", sparse=(sparse, "a bool"), inbox_bytes=(inbox_bytes, "an int"))
        if not isinstance(dtype, torch.dtype):
            raise TypeError(
                f"ShardedTable: dtype must be a torch.dtype or None, but {given(dtype)} was given."
            )
        if not (dtype.is_floating_point or dtype.is_complex) or dtype.itemsize < 2:
            raise TypeError(
                "ShardedTable: dtype must be a floating or complex dtype of 16 bits or more, but "
                f"it is {dtype}."
            )
        if device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"ShardedTable: device must be the CPU or a CUDA device, but it is {device}."
            )
        if inbox_bytes < 0:
            raise ValueError(
                f"ShardedTable: inbox_bytes must not be negative, but it is {inbox_bytes}."
            )
        group = mesh.get_group()
        own = (tuple(shape), dtype, device.type, route, sparse, inbox_bytes)
        answers = agree(group, (own, host()))
        for rank, (other, _) in enumerate(answers):
            if other != own:
                raise ValueError(
                    "ShardedTable: all ranks must be given the same shape, dtype, kind of device, "
                    f"route, sparse and inbox_bytes, but this one has {own} and rank {rank} has "
                    f"{other}."
                )
        self._peers: PeerTable | None = None
        self._hosts: _hosts.Hosts | None = None
        if route == "hierarchical":
            self._hosts = _hosts.set_up(group, device, [where for _, where in answers])
        elif route != "exchange":
            hosts = {where for _, where in answers}
            self._peers = _peers(shape, dtype, device, group, route, inbox_bytes, len(hosts))
        placements = (Shard(0),)
        _, count = part_of(shape[0], mesh, placements, 0)
        if self._peers is not None:
            part = self._peers.part
        else:
            part = torch.empty(count, *shape[1:], dtype=dtype, device=device)
        self.weight = nn.Parameter(wrap(part, mesh, placements, shape), requires_grad=not sparse)
        weights: list[Tensor] = [self.weight]
        # Past the module's registration: the memory is that of a parameter already.
        local = nn.Parameter(self._part()) if sparse else None
        object.__setattr__(self, "local_weight", local)
        if local is not None:
            weights.append(local)
        self._route = "" if self._hosts is None else self._hosts.name
        if self._peers is not None:
            self._route = f"table {self._peers.number}"
            self._peers.watch(weights)
            peer_tables[self._route] = self._peers
            for weight in weights:
                setattr(weight, PEERS, self._peers)  # a graph that has the one has the other
            _watch_optimizers()
        setattr(self.weight, ROUTE, self._route)
        self._prefetched: tuple[Tensor, int, str, _exchange.Asked] | None = None
        # What shares its memory with others; a list, which the module does not register.
        self._known = weights if sparse or self._peers is not None else []
        self._direct = None if sparse else self._peers  # to which a call in eager mode goes

    def _part(self) -> Tensor:
        """This rank's rows."""
        with torch.no_grad():
            weight: Any = self.weight
            part: Tensor = weight.detach().to_local()
            return part

    @property
    def route(self) -> str:
        """How rows are found, ``"direct"``, ``"exchange"`` or ``"hierarchical"``."""
        if self._peers is not None:
            return "direct"
        return "exchange" if self._hosts is None else "hierarchical"

    def forward(
        self, index: Tensor, *, mode: str = "raise", fill_value: Number | None = None
    ) -> Tensor:
        """Returns ``weight[index]``, of the shape ``index.shape + (dim,)``.

        Args:
            index: A tensor of any shape on the table's device; uint8, int8, int16, int32 or int64.
            mode: What an entry out of range is, as for :func:`torch_ops.gather`.
            fill_value: As for :func:`torch_ops.gather`.
        """
        weight: Any = self._parameters["weight"]  # a third of a microsecond less than self.weight
        compiling = is_compiling()
        is_known = compiling or not self._known or weight is self._known[0]
        direct = self._direct
        if direct is not None and is_known and type(index) is Tensor and not compiling:
            return direct.look_up(weight, index, mode, fill_value, "ShardedTable")
        local = self.local_weight
        try:
            if not is_known:
                self._refuse("its weight was replaced")
            check_call("ShardedTable", weight, index, mode, fill_value)
        except Exception as error:
            if self._peers is not None:
                self._peers.tell_of_error(weight if local is None else local)
            elif not compiling:
                tell_of_error(weight, self._route, "ShardedTable", error)
            raise
        asked = self._take_prefetched(index, mode)
        if local is None:
            return look_up(weight, index, mode, fill_value, self._route, "ShardedTable", asked)
        group, size = weight.device_mesh.get_group(), weight.shape[0]
        output: Tensor = SparseRows.apply(
            *(local, index, size, group, mode, fill_value, self._route, asked),
            has_gradient(local),
            "ShardedTable",
        )
        return output

    def prefetch(self, index: Tensor, *, mode: str = "raise") -> None:
        """Begins a lookup of the next batch's index, while this batch is computed.

        By the exchange, ranks have to know how many rows to send before they send them, and the
        host waits for that. This asks for it beforehand. Rows are read when they are looked up, so
        they are those of then. An entry out of range is an error then, too; any other error is
        raised here, and the others raise theirs in the lookup. By the direct route there is nothing
        to ask for.

        All ranks call it, and look this very tensor up next, in the same ``mode``; what was asked
        for is dropped where another is looked up.
        """
        weight: Any = self.weight
        try:
            check_call("ShardedTable.prefetch", weight, index, mode, None)
        except Exception as error:
            if self._peers is None:
                tell_of_error(weight, self._route, "ShardedTable.prefetch", error)
            raise
        if self._peers is not None:
            return
        group = weight.device_mesh.get_group()

        def ask() -> _exchange.Asked:
            size = weight.shape[0]  # errors are raised by the lookup
            return _exchange.ask("ShardedTable", index, size, mode, True, group, self._route)

        if index.is_cuda:
            # The main stream may be busy with this batch for long.
            stream = torch.cuda.Stream(index.device)
            stream.wait_stream(torch.cuda.current_stream(index.device))
            index.record_stream(stream)
            with torch.cuda.stream(stream):
                asked = ask()
        else:
            asked = ask()
        self._prefetched = (index, index._version, mode, asked)

    def _take_prefetched(self, index: Tensor, mode: str) -> _exchange.Asked | None:
        if self._prefetched is None:
            return None
        of, version, in_mode, asked = self._prefetched
        self._prefetched = None
        if of is not index or version != index._version or in_mode != mode:
            return None
        if index.is_cuda:
            current = torch.cuda.current_stream(index.device)
            current.wait_event(asked.works[0])
            for made in (asked.distinct, asked.place):
                made.record_stream(current)
        return asked

    def mark_written(self) -> None:
        """Says that ``weight`` was written to in a way that torch does not count; on all ranks.

        The next lookup waits for all of them, then. The step of a ``torch.optim.Optimizer``, ops in
        place and ``load_state_dict`` need it not. Writes through ``.data`` or ``_local_tensor`` do,
        and those of ``torch._foreach_`` functions, by which moving averages are often taken.
        """
        if self._peers is not None:
            self._peers.mark_written()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As that of a module; of ``local_weight`` too."""
        super().zero_grad(set_to_none)
        local = self.local_weight
        if local is not None and local.grad is not None:
            local.grad = None if set_to_none else torch.zeros_like(local.grad)

    def requires_grad_(self, requires_grad: bool = True) -> ShardedTable:
        """As that of a module; of ``local_weight`` alone, if there is one."""
        trained = self.weight if self.local_weight is None else self.local_weight
        trained.requires_grad_(requires_grad)
        return self

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.weight.shape))}, route={self.route!r}"

    # ---- What would part the weight from its memory ----------------------------------------------

    def _refuse(self, what: str) -> NoReturn:
        shares = "other ranks read" if self._peers is not None else "local_weight shares"
        raise RuntimeError(
            f"ShardedTable: {what}, but {shares} the memory that it was made with. Make the table "
            "with the dtype and the device that it is to have, and load values by load_state_dict "
            "without assign."
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ShardedTable:
        if self._peers is None and self.local_weight is None:
            super()._apply(fn, recurse)
            return self
        before: Any = self.weight.detach()
        after: Any = fn(before)
        same = after.to_local().data_ptr() == before.to_local().data_ptr()
        if not same or (after.dtype, after.device) != (before.dtype, before.device):
            self._refuse("it was to be moved or converted")
        return self

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "ShardedTable: a table cannot be copied or pickled. Save its state_dict(), or make "
            "another by ShardedTable.from_dtensor(table.weight)."
        )


def _mesh_of(
    group: ProcessGroup | DeviceMesh | None, device: torch.device | str | None
) -> DeviceMesh:
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                "ShardedTable: group must be a process group or a mesh of one dimension, but it "
                f"is a mesh of {group.ndim}."
            )
        if device is not None and torch.device(device).type != group.device_type:
            raise ValueError(
                f"ShardedTable: device must be of the mesh's kind, {group.device_type}, but it is "
                f"{device}."
            )
        return group
    if group is None:
        if not dist.is_initialized():
            raise RuntimeError(
                "ShardedTable: there is no process group. Call "
                "torch.distributed.init_process_group first."
            )
        group = dist.group.WORLD
    no_member: Any = dist.GroupMember.NON_GROUP_MEMBER  # what new_group gives the other ranks
    if group == no_member:
        raise ValueError(
            "ShardedTable: this rank is not a member of the group. Make the table on its members "
            "alone."
        )
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            "ShardedTable: group must be a process group or a DeviceMesh of which this rank is a "
            f"member, but it is {given(group)}."
        )
    kind = torch.get_default_device() if device is None else torch.device(device)
    return DeviceMesh.from_group(group, kind.type)


def _peers(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    group: ProcessGroup,
    route: str,
    inbox_bytes: int,
    hosts: int,
) -> PeerTable | None:
    if hosts > 1:
        if route == "direct":
            raise RuntimeError(
                f'ShardedTable: route="direct" is for ranks of one host, but they are on {hosts}. '
                'Use route="exchange".'
            )
        return None
    try:
        return PeerTable(shape[0], torch.Size(shape[1:]), dtype, device, group, inbox_bytes)
    except CannotMap as error:
        if route == "direct":
            raise RuntimeError(
                "ShardedTable: the ranks cannot map each other's memory, which "
                f'route="direct" needs: {error}. Use route="exchange".'
            ) from error
        warnings.warn(
            "ShardedTable: the ranks cannot map each other's memory, so that rows are exchanged, "
            f'which is slower: {error}. route="exchange" does so without this warning.',
            stacklevel=4,
        )
        return None
