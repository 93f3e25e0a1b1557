"""A table whose rows each rank reads from where they are, and sums that are sent to the owners.

A rank receives sums in an inbox, which has room for some rows per sender. A sender adds up what it
has for a row, and puts distinct rows, in order, into the owners' inboxes. When all have done so, an
owner adds its own sums and those in its inbox in the order of the ranks. Rows for which there is no
room go in further rounds. There are two inboxes, used in turn: a rank that fills one knows from the
meeting before it that its owner has emptied that one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from torch_ops.distributed import _parts
from torch_ops.distributed.peers._meetings import is_of_meeting, meetings_of
from torch_ops.distributed.peers._memory import allocate
from torch_ops.ops._arguments import Number, mode_arguments

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


def _view(memory: Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    # Not view() alone, which does not take a tensor of no elements.
    return memory[offset : offset + nbytes].view(dtype).view(shape)


def has_gradient(weight: Tensor) -> bool:
    """Whether a lookup in it has one. In the ``forward`` of a Function none seems to have."""
    return torch.is_grad_enabled() and weight.requires_grad


@dataclass(eq=False)
class _Round:
    """A round of sums, after the meeting in which all ranks have sent theirs."""

    call: Any
    sent: tuple[Tensor, Tensor, Tensor]  # as _distinct_sums() has it
    memory: Tensor  # of the inbox
    first: int  # of the rows for each rank
    said: Callable[[], Any]  # before the next round is sent

    @functools.cached_property
    def header(self) -> Sequence[tuple[int, int]]:
        """What the ranks said; on CUDA the host waits for it. See ``PeerSums`` in C++."""
        header: Sequence[tuple[int, int]] = self.said()
        return header


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
        others = self._world - 1
        room = inbox_bytes // (2 * max(others, 1) * (row_bytes + 8))
        self.capacity = max(min(room, self._length, 2**31 - 1), 1)
        slots = others * self.capacity
        self._rows_offset = _aligned(2 * self._world * 8)
        self._values_offset = self._rows_offset + _aligned(slots * 8)
        self._room = (self.capacity, self._rows_offset, self._values_offset)
        inbox = self._values_offset + _aligned(slots * row_bytes)
        has_sums = self._world > 1 and (dtype.is_floating_point or dtype.is_complex)

        self._meetings = meetings_of(group, device)
        self._memory = allocate(part_bytes + 2 * inbox * has_sums, device, group)
        memory, addresses = self._memory.own, self._memory.addresses
        self.part = _view(memory, 0, dtype, (count, *row_shape))
        self._inboxes = [
            (memory[first : first + inbox], addresses + first)
            for first in (part_bytes, part_bytes + inbox)
            if has_sums
        ]
        self._cuda = device.type == "cuda"
        self._turn = 0
        self._all_sent = False  # by the backward pass that runs
        self._reader = _ext.Reader(
            self.part, addresses, rows, self.number, self._meetings.on_device
        )
        self._weight: weakref.ref[Tensor] | None = None
        self._meetings.tables.add(self)

    # ---- Who sees what was written ---------------------------------------------------------------

    def watch(self, weights: Sequence[Tensor]) -> None:
        """Names the tensors by which the part is written."""
        self._weight = weakref.ref(weights[0])
        self._reader.watch(weights)

    def refresh(self) -> None:
        self._reader.refresh()

    def mark_written(self) -> None:
        self._reader.written = True

    def _freshen(self) -> None:
        """Waits until all ranks have written what they wrote since the last meeting.

        All ranks must come to the same answer. What all of them do alike is a backward pass, which
        an optimizer's step follows, and a write that torch counts on a tensor that they share.
        """
        if self._reader.is_fresh():
            return
        if self._cuda and torch.cuda.is_current_stream_capturing():
            self._reader.captured = True  # a replay is seen by nobody here
        self._meetings.meet()
        if not self._reader.captured:  # else the meeting is one of the graph
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
            output = _ops.gather(self.part, index, 0, mode=mode, fill_value=fill_value, name=name)
            return output
        self._freshen()
        try:
            output = self._reader.gather(index, mode, fill_value, name)
            return output
        except Exception:
            if with_gradient:
                self._meetings.fail()
            raise

    @property
    def weight(self) -> Tensor:
        """The table as a DTensor."""
        weight = None if self._weight is None else self._weight()
        assert weight is not None, "it has this table"
        return weight

    def look_up(
        self, weight: Tensor, index: Tensor, mode: str, fill_value: Number | None, name: str
    ) -> Tensor:
        """The same with a gradient of ``weight``, by a node in C++, which costs the host little.

        ``name``: the function's, for its errors.
        """
        must_be_fresh = self._world > 1
        while True:
            try:
                if mode != "raise" or fill_value is not None:
                    mode_arguments(name, mode, fill_value)
                output: Tensor | None = self._reader.look_up(
                    weight, index, mode, fill_value, name, must_be_fresh
                )
            except Exception:
                self.tell_of_error(weight)
                raise
            if output is not None:
                return output
            self._freshen()
            must_be_fresh = False

    def tell_of_error(self, weight: Tensor) -> None:
        """Tells the others of an error of a lookup in ``weight``, if they come to its gradient."""
        if self._world > 1 and has_gradient(weight):
            self._meetings.fail()

    # ---- Sums ------------------------------------------------------------------------------------

    def _distinct_sums(
        self, values: Tensor, index: Tensor, mode: str, narrow: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """This rank's sums for rows of the table, these rows in order, and where a rank's begin.

        On CUDA there are as many as entries, which needs no wait for the device; and sums of the
        first round are sent as they are made. ``narrow``: in the dtype of the table where they are
        of one value.
        """
        if self._cuda:
            inboxes = self._inboxes[self._turn][1]
            found: tuple[Tensor, Tensor, Tensor] = _ext.sum_to_peers(
                values,
                index,
                mode,
                self._rows,
                narrow,
                inboxes,
                self._rank,
                self._length,
                *self._room,
            )
            return found
        entries = _parts.entries_of_part(index, self._rows, 0, self._rows, mode)
        rows, place = torch.unique(entries, return_inverse=True)
        sums = _ops._scatter_sum(
            values, place, rows.numel(), 0, deterministic=True, mode="unchecked"
        )
        return sums, rows, torch.searchsorted(rows, self._ends)

    def _send(self, sent: tuple[Tensor, Tensor, Tensor], number: int) -> _Round:
        """Sends what this rank has for the others' rows, as far as there is room in this round."""
        memory, addresses = self._inboxes[self._turn]
        first = number * self.capacity
        call = _ext.Round(*sent, addresses, self._rank, self._length, first, *self._room)
        call.put()
        if self._cuda:
            is_read = not torch.cuda.is_current_stream_capturing()
            self._meetings.meet(memory if is_read else None)
            return _Round(call, sent, memory, first, self._meetings.on_device.said)
        self._meetings.meet()
        said = _view(memory, 0, torch.int64, (self._world, 2))
        return _Round(call, sent, memory, first, said.tolist)

    def _is_last(self, round: _Round) -> bool:
        """Whether all have sent all that they have. Raises an error of which a rank has told."""
        end = round.first + self.capacity
        if self._cuda and torch.cuda.is_current_stream_capturing():
            # The host cannot know how much comes.
            most = min(round.sent[1].numel(), self._length)
        else:
            said = [each for _, each in round.header]
            self._meetings.check()
            if _ext.HAS_ERROR in said:
                self._turn, self._all_sent = 1 - self._turn, True
                if said[self._rank] == _ext.HAS_ERROR:
                    _parts.raise_recorded(round.memory.device)
                self._meetings.refuse(said.index(_ext.HAS_ERROR))
            most = max(said)
        self._turn = 1 - self._turn  # here, so that a meeting that failed leaves it
        self._all_sent = end >= most
        return self._all_sent

    def _parts_of(self, round: _Round) -> Iterator[tuple[Tensor, Tensor]]:
        """What came from each rank in turn: rows of this rank's part, distinct, and their sums."""
        slots = (self._world - 1, self.capacity)
        rows_came = _view(round.memory, self._rows_offset, torch.int64, slots)
        shape = (*slots, *self._row_shape)
        sums_came = _view(round.memory, self._values_offset, self._dtype, shape)
        for rank, (all_rows, _) in enumerate(round.header):
            count = min(max(all_rows - round.first, 0), self.capacity)
            if rank == self._rank:
                sums, rows, bounds = round.sent
                begin = int(bounds[rank]) + round.first
                here = slice(begin, begin + count)
                yield rows[here] - rank * self._length, sums[here]
            else:
                slot = rank - (rank > self._rank)
                yield rows_came[slot, :count], sums_came[slot, :count]

    def _add(self, own: Tensor, round: _Round) -> None:
        """Adds what came in a round; the first of all overwrites what is there."""
        if self._cuda:
            round.call.add_to(own, self.part, round.first > 0)
            return
        if round.first == 0:
            own.zero_()
        for rows, sums in self._parts_of(round):
            _ops.scatter_add_(own, sums, rows, 0, mode="unchecked")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._all_sent = False
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
            sent = self._distinct_sums(values, index, mode, narrow=True)
            # On CUDA a row is rounded once per round: right if there is but one.
            dtype = values.dtype if self._cuda else self._dtype
            own = values.new_empty((count, *self._row_shape), dtype=dtype)
            for number in itertools.count():
                round = self._send(sent, number)
                try:
                    self._add(own, round)  # by the device, while the host waits
                finally:
                    is_last = self._is_last(round)
                if is_last:
                    break
                if own.dtype != self._dtype:
                    own = own.new_empty(own.shape, dtype=self._dtype)
                    self._add(own, round)
        return own.to(values.dtype)

    def sparse_sums(self, values: Tensor, index: Tensor, mode: str) -> Tensor:
        """The same as a sparse tensor of distinct rows."""
        if self._world == 1:
            rows = _parts.entries_of_part(index, self._rows, 0, self._rows, mode).flatten()
            sums = values.reshape(rows.numel(), *self._row_shape)
            return sparse_rows(rows, sums, self.part.shape, values.dtype)
        received: list[tuple[Tensor, Tensor]] = []
        with self._writing():
            sent = self._distinct_sums(values, index, mode, narrow=False)
            for number in itertools.count():
                round = self._send(sent, number)
                is_last = self._is_last(round)
                received += [(rows.clone(), sums.clone()) for rows, sums in self._parts_of(round)]
                if is_last:
                    break
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
