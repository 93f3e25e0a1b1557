"""Gathers: the ways that torch has of picking rows or elements, and what ours must reach."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops
from benchmarks._gather.cases import Case
from benchmarks._gather.inputs import flattened, make_index, make_source
from benchmarks._measure import Bar, Benchmark, Check, Implementation, Result, must_equal


def torch_gather(source: Tensor, index: Tensor) -> Tensor:
    if source.dim() == 3:
        index = index.unsqueeze(2).expand(-1, -1, source.shape[2])
    return torch.gather(source, 1, index)


@cache
def gathers_int32() -> bool:
    """Whether this torch's gather takes an int32 index."""
    zeros = torch.zeros(1, dtype=torch.int32)
    try:
        torch.gather(zeros, 0, zeros)
    except RuntimeError:
        return False
    return True


def indexed(source: Tensor, index: Tensor) -> Tensor:
    batch = torch.arange(source.shape[0], device=source.device).unsqueeze(1)
    return source[batch, index.long()]


def implementations(case: Case, index: Tensor, with_compile: bool) -> Iterator[Implementation]:
    yield Implementation("torch_ops", "ours", lambda source: torch_ops.batch_gather(source, index))
    if index.dtype == torch.int64 or gathers_int32():
        yield Implementation("torch.gather", "eager", lambda source: torch_gather(source, index))
    else:  # a caller holds such an index
        wide = index.long()
        name = "torch.gather, int64 index"
        yield Implementation(name, "eager", lambda source: torch_gather(source, wide))
    if case.width is not None:
        # What a caller computes once for many calls is computed here, once.
        flat = flattened(case, index)
        batch = torch.arange(case.batch, device=index.device).unsqueeze(1)
        picked = (case.batch, case.picks, case.width)
        yield Implementation(
            "index_select, flattened",
            "eager",
            lambda source: source.flatten(0, 1).index_select(0, flat).view(picked),
        )
        yield Implementation(
            "F.embedding, flattened",
            "eager",
            lambda source: F.embedding(flat, source.flatten(0, 1)).view(picked),
        )
        yield Implementation("source[b, index]", "eager", lambda source: source[batch, index])
    if with_compile:
        torch._dynamo.reset()  # else the second shape is compiled for all shapes
        compiled = torch.compile(torch_gather, dynamic=False)
        yield Implementation("torch.compile", "compiled", lambda source: compiled(source, index))


def run(case: Case, result: Result, bench: Benchmark, with_compile: bool) -> None:
    source, index = make_source(case, bench.device), make_index(case, bench.device)
    check = Check(source, must_equal(indexed(source, index)))
    bench.measure(result, implementations(case, index, with_compile), {"": check})


def bars(case: Case, result: Result, bench: Benchmark) -> list[Bar]:
    rate = result.bytes_per_second("ours")
    fraction = rate / bench.copy["start"] if rate else None
    required = [Bar("over fastest eager", result.ratio("eager"), case.over_eager)]
    if result.timed("compiled"):
        required.append(Bar("over torch.compile", result.ratio("compiled"), 0.97))
    if bench.device.type == "cpu":  # caches and cores: a copy of memory is no ceiling there
        return required
    if case.group == "rows" and case.row_bytes >= 128 and case.bytes > 512e6:
        required.append(Bar("of copy", fraction, 0.95))
    if case.group == "odd rows":
        if result.facts["source_exceeds_l2"]:
            required.append(Bar("of copy", fraction, 0.9 * case.sector_ceiling))
        else:
            required.append(Bar("of copy", fraction, 0.8))
    if case.of_copy is not None:
        required.append(Bar("of copy", fraction, case.of_copy))
    return required
