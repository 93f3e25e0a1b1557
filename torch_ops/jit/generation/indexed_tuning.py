"""Every fitted number that decides how a pass of an indexed kernel is cut on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class IndexedTuning:
    """The set of one kind of GPU. So far all have that of an H200.

    Attributes:
        threads: Of a block.
        blocks: That a multiprocessor must have registers for; 0: as many as the compiler likes.
        flight: Bytes that a lane has in flight...
        entries: ... of so many entries at most...
        few: ... or so many, where lanes share the entries of a row.
        group: Lanes that a row has at least, if it has entries for them: its words', or several for
            each word.
        tile: Entries beyond which a row is cut.
    """

    threads: int = 64
    blocks: int = 0
    flight: int = 256
    entries: int = 4
    few: int = 4
    group: int = 8
    tile: int = 256


H200 = IndexedTuning()
_tried: IndexedTuning | None = None


def tuning(_arch: str) -> IndexedTuning:
    """The set for a GPU, by its compute capability: ``"sm_90"``."""
    return _tried or H200


@contextlib.contextmanager
def trying(numbers: IndexedTuning) -> Iterator[None]:
    """Kernels that are compiled meanwhile have these numbers: for benchmarks that fit them."""
    global _tried
    before, _tried = _tried, numbers
    try:
        yield
    finally:
        _tried = before
