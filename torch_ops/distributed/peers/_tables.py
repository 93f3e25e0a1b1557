"""A table whose rows each rank reads from where they are, and sums that are sent to the owners.

For its sums a rank has an inbox, with room for some rows of each sender. A sender adds up what it
has for a row, and puts distinct rows, in order, into the owners' inboxes. When all have done so, an
owner adds its inbox in the order of the senders. Rows for which there is no room go in further
rounds. There are two inboxes, used in turn: a rank that fills one knows from the meeting before it
that its owner has emptied that one.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from torch_ops.distributed import _parts
from torch_ops.distributed.peers._meetings import is_of_meeting, meetings_of
from torch_ops.distributed.peers._memory import allocate
from torch_ops.ops._arguments import Number

_ext: Any = importlib.import_module("torch_ops._ext.peers")
_ops = torch.ops.torch_ops
_numbers = itertools.count()
_ALIGNMENT = 256  # of the parts of the memory of a rank, in bytes


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of this dtype are taken in."""
    narrow = dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if narrow else dtype


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def distinct_rows(rows: Tensor, size: int, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct rows in order, where each of ``rows`` is there, and where those of a rank begin.

    ``ends`` are the ranks' first rows, and ``size``. A row that is ``size`` is none. On CUDA there
    are as many as ``rows``, which needs no wait for the device: the last are ``size``.
    """
    if rows.device.type == "cpu":
        distinct, place = torch.unique(rows, return_inverse=True)
    else:
        ordered, order = rows.flatten().sort(stable=True)
        is_new = torch.ones_like(ordered)
        is_new[1:] = ordered[1:] != ordered[:-1]
        number = is_new.cumsum(0) - 1
        distinct = torch.full_like(ordered, size).scatter_(0, number, ordered)
        place = torch.empty_like(order).scatter_(0, order, number).view(rows.shape)
    return distinct, place, torch.searchsorted(distinct, ends)


class PeerTable:
    """A table of ``rows`` rows, of which rank r has those from ``r * length`` on."""

    def __init__(
        self,
        rows: int,
        row_shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device,
        group: ProcessGroup,
        inbox_bytes: int,
    ) -> None:
        """All ranks of the group make it; raises ``CannotMap`` on all or on none."""
        self.number = next(_numbers)  # of this process
        self._rows, self._dtype = rows, sum_dtype(dtype)
        self._rank, self._world = group.rank(), group.size()
        self._length = max(-(-rows // self._world), 1)
        ends = torch.arange(self._world + 1, device=device) * self._length
        self._ends = ends.clamp(max=rows)
        count = int(self._ends[self._rank + 1] - self._ends[self._rank])
        width = math.prod(row_shape)
        self._row_shape, row_bytes = row_shape, width * self._dtype.itemsize

        # A rank's memory: its rows, and two inboxes.
        part_bytes = _aligned(self._length * width * dtype.itemsize)
        room = inbox_bytes // (2 * self._world * (row_bytes + 8))
        self.capacity = max(min(room, self._length), 1)
        slots = self._world * self.capacity
        self._rows_offset = _aligned(2 * self._world * 8)
        self._values_offset = self._rows_offset + _aligned(slots * 8)
        inbox = self._values_offset + _aligned(slots * row_bytes)
        has_sums = self._world > 1 and (dtype.is_floating_point or dtype.is_complex)

        self._meetings = meetings_of(group, device)
        self._memory = allocate(part_bytes + 2 * inbox * has_sums, device, group)
        memory, addresses = self._memory.own, self._memory.addresses
        self.part = self._view(memory, 0, dtype, (count, *row_shape))
        self._inboxes = [
            (memory[first : first + inbox], addresses + first)
            for first in (part_bytes, part_bytes + inbox)
            if has_sums
        ]
        self._cuda = device.type == "cuda"
        self._turn = 0
        self._all_sent = False  # by the backward pass that runs
        self._written = True
        self._captured = False
        self._versions: tuple[int, ...] = ()
        self._weights: list[weakref.ref[Tensor]] = []
        self._meetings.tables.add(self)

    @staticmethod
    def _view(memory: Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        nbytes = math.prod(shape) * dtype.itemsize
        # Not view() alone, which does not take a tensor of no elements.
        return memory[offset : offset + nbytes].view(dtype).view(shape)

    # ---- Who sees what was written ---------------------------------------------------------------

    def watch(self, weights: Sequence[Tensor]) -> None:
        """Names the tensors by which the part is written."""
        self._weights = [weakref.ref(weight) for weight in weights]

    def _current_versions(self) -> tuple[int, ...]:
        weights = (weight() for weight in self._weights)
        return tuple([weight._version for weight in weights if weight is not None])

    def refresh(self) -> None:
        self._written = False
        self._versions = self._current_versions()

    def mark_written(self) -> None:
        self._written = True

    def _freshen(self) -> None:
        """Waits until all ranks have written what they wrote since the last meeting.

        All ranks must come to the same answer. What all of them do alike is a backward pass, which
        an optimizer's step follows, and a write that torch counts on a tensor that they share.
        """
        if self._cuda:
            self._meetings.check()
            if torch.cuda.is_current_stream_capturing():
                # A replay is seen by nobody here.
                self._captured = self._written = True
        if self._written or self._captured or self._versions != self._current_versions():
            self._meetings.meet()
            if not self._captured:  # else the meeting is one of the graph
                for table in self._meetings.tables:
                    table.refresh()

    # ---- Rows ------------------------------------------------------------------------------------

    def gather(
        self,
        index: Tensor,
        mode: str,
        fill_value: Number | None,
        name: str | None,
        with_gradient: bool,
    ) -> Tensor:
        """The rows that an index of this rank's own names.

        ``with_gradient``: whether all ranks are to come to ``sums`` after it.
        """
        if self._world == 1:
            output: Tensor = _ops.gather(
                self.part, index, 0, mode=mode, fill_value=fill_value, name=name
            )
            return output
        self._freshen()
        try:
            return _ext.gather(
                self.part, self._memory.addresses, self._rows, index, mode, fill_value, name
            )
        except Exception:
            if with_gradient:
                self._meetings.fail()
            raise

    @property
    def weight(self) -> Tensor:
        """The table as a DTensor."""
        weight = self._weights[0]()
        assert weight is not None, "it has this table"
        return weight

    def look_up(
        self, weight: Tensor, index: Tensor, mode: str, fill_value: Number | None
    ) -> Tensor:
        """The same with a gradient of ``weight``, by a node in C++, which costs the host little."""
        if self._world > 1:
            self._freshen()
        try:
            output: Tensor = _ext.look_up(
                weight,
                self.part,
                self._memory.addresses,
                self._rows,
                index,
                mode,
                fill_value,
                self.number,
            )
        except Exception:
            if weight.requires_grad and torch.is_grad_enabled():
                self._meetings.fail()
            raise
        return output

    # ---- Sums ------------------------------------------------------------------------------------

    def _send(self, values: Tensor, index: Tensor, mode: str) -> Iterator[tuple[Tensor, Tensor]]:
        """What comes from each rank in turn: rows of this rank's part, distinct, and their sums."""
        capturing = values.is_cuda and torch.cuda.is_current_stream_capturing()
        self._all_sent = False
        rows = _parts.entries_of_part(index, self._rows, 0, self._rows, mode)
        distinct, place, bounds = distinct_rows(rows, self._rows, self._ends)
        sums = _ops._scatter_sum(
            values, place, distinct.numel(), 0, deterministic=True, mode="unchecked"
        )
        for round in itertools.count():
            memory, addresses = self._inboxes[self._turn]
            first = round * self.capacity
            layout = (first, self.capacity, self._rows_offset, self._values_offset)
            _ext.put(sums, distinct, bounds, addresses, self._rank, self._length, *layout)
            self._meetings.meet()
            slots = (self._world, self.capacity)
            came = self._view(memory, self._rows_offset, torch.int64, slots)
            with_sums = (*slots, *self._row_shape)
            values_came = self._view(memory, self._values_offset, self._dtype, with_sums)
            header = self._view(memory, 0, torch.int64, (self._world, 2))
            if not capturing:
                # On CUDA the host waits here.
                counts, most = zip(*header.tolist(), strict=True)
                self._meetings.check()
            self._turn = 1 - self._turn  # here, so that a meeting that failed leaves it
            if not capturing and _ext.HAS_ERROR in most:
                self._all_sent = True
                if most[self._rank] == _ext.HAS_ERROR:
                    _parts.raise_recorded(values.device)
                self._meetings.refuse(most.index(_ext.HAS_ERROR))
            if capturing:
                # The host cannot know how many there are: the rest are rows of none.
                nth = torch.arange(first, first + self.capacity, device=memory.device)
                came = torch.where(nth < header[:, :1], came, self.part.shape[0])
                self._all_sent = first + self.capacity >= min(distinct.numel(), self._length)
                yield from zip(came, values_came, strict=True)
                if self._all_sent:
                    return
                continue
            self._all_sent = first + self.capacity >= max(most)
            for rank, count in enumerate(counts):
                if (here := min(max(count - first, 0), self.capacity)) > 0:
                    yield came[rank, :here], values_came[rank, :here]
            if self._all_sent:
                return

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Else the others would take what was sent before for this. After the last round they
            # wait for nothing more.
            if not is_of_meeting(error) and not self._all_sent:
                self._meetings.fail()
            raise
        finally:
            self.mark_written()  # a step follows

    def sums(self, values: Tensor, index: Tensor, mode: str) -> Tensor:
        """This rank's rows of ``scatter_add(values, index, rows)``, summed over all ranks."""
        count = self.part.shape[0]
        if self._world == 1:
            whole: Tensor = _ops.scatter_add(
                values, index, count, 0, deterministic=True, mode=_checked(mode)
            )
            return whole
        with self._writing():
            own = values.new_zeros((count, *self._row_shape), dtype=self._dtype)
            for rows, sums in self._send(values, index, mode):
                _ops.scatter_add_(own, sums, rows, 0, mode="fill")
        return own.to(values.dtype)

    def sparse_sums(self, values: Tensor, index: Tensor, mode: str) -> Tensor:
        """The same as a sparse tensor of distinct rows."""
        if self._world == 1:
            rows = _parts.entries_of_part(index, self._rows, 0, self._rows, mode).flatten()
            sums = values.reshape(-1, *self._row_shape)
            return sparse_rows(rows, sums, self.part.shape, values.dtype)
        received: list[tuple[Tensor, Tensor]] = []
        with self._writing():
            for rows, sums in self._send(values, index, mode):
                received.append((rows.clone(), sums.clone()))
        rows = torch.cat([index.new_empty(0, dtype=torch.int64)] + [each for each, _ in received])
        empty = values.new_empty((0, *self._row_shape), dtype=self._dtype)
        sums = torch.cat([empty] + [each for _, each in received])
        return sparse_rows(rows, sums, self.part.shape, values.dtype)


def _checked(mode: str) -> str:
    """The mode of the sum that is the gradient of a gather whose entries were checked."""
    return "fill" if mode == "from_end" else mode


def sparse_rows(rows: Tensor, sums: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A sparse tensor of distinct rows; ``rows`` that are ``shape[0]`` are none."""
    distinct, place = torch.unique(rows, return_inverse=True)
    count = distinct.numel()
    added = _ops._scatter_sum(sums, place, count, 0, deterministic=True, mode="unchecked")
    if count > 0 and int(distinct[-1]) == shape[0]:
        distinct, added = distinct[:-1], added[:-1]
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # says that it is meant
        return torch.sparse_coo_tensor(distinct[None], added.to(dtype), shape, is_coalesced=True)
