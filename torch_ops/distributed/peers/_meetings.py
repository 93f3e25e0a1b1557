"""How the ranks that read each other's memory wait for each other.

A meeting is a barrier: what a rank wrote before it, others read after it. A rank that has an error
in place of the next meeting says so and does not wait; the others raise an error that names it.
"""

from __future__ import annotations

import importlib
import time
import weakref
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from torch_ops.distributed.peers._memory import allocate

_ext: Any = importlib.import_module("torch_ops._ext.peers")
_MARK = "_torch_ops_of_meeting"  # attribute of an error
_SLICE = 200  # milliseconds, after which an interrupt from the keyboard is noticed


class Table(Protocol):
    """What is read after meetings."""

    def refresh(self) -> None:
        """All that was written to it before now is there for all ranks."""

    def mark_written(self) -> None:
        """It may be written to before the next meeting."""


def timeout_of(group: ProcessGroup, device: torch.device) -> timedelta:
    """How long the ranks of a group wait for each other."""
    # torch has no public name for it.
    options = getattr(group._get_backend(device), "options", None)
    found = getattr(options, "_timeout", distributed_c10d.default_pg_timeout)
    assert isinstance(found, timedelta)
    return found


def explain(found: int, timeout: timedelta) -> Exception:
    """The error for what a meeting has found."""
    error: Exception
    if found >= 0:
        error = IndexError(
            f"torch_ops.distributed: rank {found} of the group has an entry out of range in its "
            "index, or another error, and says itself which."
        )
    else:
        error = RuntimeError(
            f"torch_ops.distributed: rank {_ext.ALL_MET - 1 - found} of the group did not come "
            f"within the group's timeout of {timeout.total_seconds():g} s. It has failed, or it "
            "does not look rows up and compute gradients as often as this rank."
        )
    setattr(error, _MARK, True)
    return error


def is_of_meeting(error: BaseException) -> bool:
    """Whether all ranks have come to the meeting in which this error was found."""
    return getattr(error, _MARK, False)


class Meetings:
    """The meetings of a group, of all its tables on one kind of device."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self._rank = group.rank()
        self._memory = allocate(8 * 3 * group.size(), device, group)
        self._timeout = timeout_of(group, device)
        self.tables: weakref.WeakSet[Table] = weakref.WeakSet()
        self._count = 0  # on CUDA the device counts
        # Who did not come. Then the ranks do not agree on what is next, and nothing more is shared.
        self._lost: int | None = None
        milliseconds = int(self._timeout.total_seconds() * 1000)
        self.on_device: Any = None  # on CUDA, those of the stream
        if device.type == "cuda":
            self.on_device = _ext.Meetings(self._memory.addresses, self._rank, milliseconds)

    def check(self) -> None:
        """Raises the error of an earlier meeting that the device has come to."""
        if self._lost is not None:
            raise explain(self._lost, self._timeout)
        if self.on_device is not None and (found := self.on_device.outcome) != _ext.ALL_MET:
            self.on_device.forget()
            self.refuse(found)

    def meet(self, inbox: Tensor | None = None) -> None:
        """Waits for the others: on CUDA the stream does.

        ``inbox``: on CUDA, the one of which ``on_device.said()`` is to tell.
        """
        self.check()
        if self.on_device is not None:
            self.on_device.meet(False, inbox)
        else:
            self._count += 1
            _ext.arrive(self._memory.addresses, self._rank, self._count, False)
            if (found := self._wait(self._count, True)) != _ext.ALL_MET:
                self.refuse(found)

    def fail(self) -> None:
        """Comes to the next meeting with an error, without waiting for it."""
        if self._lost is not None:
            return
        if self.on_device is not None:
            self.on_device.meet(True, None)
        else:
            # A mark of the meeting before the last may be looked for until all came to the last.
            self._wait(self._count, False)
            self._count += 1
            _ext.arrive(self._memory.addresses, self._rank, self._count, True)
        self._give_up()

    def refuse(self, found: int) -> NoReturn:
        """Raises the error that a meeting has found, or of a rank that has told all the others."""
        self._give_up()
        if found < _ext.ALL_MET:
            self._lost = found
        raise explain(found, self._timeout)

    def _give_up(self) -> None:
        for table in self.tables:  # so that all ranks meet when they next look rows up
            table.mark_written()

    def _wait(self, meeting: int, with_errors: bool) -> int:
        end = time.monotonic() + self._timeout.total_seconds()
        while True:
            left = min(_SLICE, max(int((end - time.monotonic()) * 1000), 0))
            found: int = _ext.await_peers(
                self._memory.addresses, self._rank, meeting, with_errors, left
            )
            if found >= _ext.ALL_MET or left == 0:
                return found


_meetings: weakref.WeakKeyDictionary[ProcessGroup, dict[str, Meetings]] = (
    weakref.WeakKeyDictionary()
)


def meetings_of(group: ProcessGroup, device: torch.device) -> Meetings:
    """Those of a group. All its ranks call it.

    Raises:
        CannotMap: The ranks cannot map each other's memory.
    """
    of_group = _meetings.setdefault(group, {})
    if device.type not in of_group:
        of_group[device.type] = Meetings(group, device)
    return of_group[device.type]
