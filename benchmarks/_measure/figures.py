"""What a benchmark says of its cases: checks, measurements, bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks._measure.timing import Timing

# ---- checks -------------------------------------------------------------------------------------


class Wrong(Exception):
    """An output is not what it must be."""


@dataclass(frozen=True)
class Check:
    """An input, and what tells of the output for it: raises Wrong, or returns the error."""

    input: Tensor
    judge: Callable[[Tensor], float]


def must_equal(expected: Tensor) -> Callable[[Tensor], float]:
    """A judge that allows no bit to differ."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def judge(output: Tensor) -> float:
        for what in ("shape", "dtype"):
            found, wanted = getattr(output, what), getattr(expected, what)
            if found != wanted:
                raise Wrong(f"the {what} is {found}, not {wanted}")
        bits = same_size[expected.element_size()]
        if not torch.equal(output.view(bits), expected.view(bits)):
            count = (output.view(bits) != expected.view(bits)).sum().item()
            raise Wrong(f"{count} of {expected.numel()} elements differ")
        return 0.0

    return judge


def relative_error(reference: Tensor) -> Callable[[Tensor], float]:
    """A judge that returns ‖output - reference‖ / ‖reference‖, all in the reference's float64.

    Infinity is right where the reference is beyond the output's dtype. Where all of the reference
    is zero, ‖output‖.
    """

    def judge(output: Tensor) -> float:
        if output.shape != reference.shape:
            raise Wrong(f"the shape is {tuple(output.shape)}, not {tuple(reference.shape)}")
        # In slices, for a float64 copy of the whole may be too large.
        flat, expected = output.reshape(-1), reference.reshape(-1)
        error = norm = 0.0
        for part, wanted in zip(flat.split(2**27), expected.split(2**27), strict=True):
            rounded = wanted.to(part.dtype)
            overflows = rounded.isinf() & (part == rounded)
            error += (part.double() - wanted).masked_fill_(overflows, 0).square_().sum().item()
            norm += wanted.square().sum().item()
        return math.sqrt(error / norm) if norm else math.sqrt(error)

    return judge


# ---- figures ------------------------------------------------------------------------------------

Kind = Literal["ours", "own", "eager", "compiled"]


@dataclass(frozen=True)
class Implementation:
    """A way to compute the output from the checks' input.

    Kinds: ours, what is judged; own, another setting of ours; eager and compiled, the rivals.
    """

    name: str
    kind: Kind
    call: Callable[[Tensor], Tensor]


@dataclass
class Measurement:
    name: str
    kind: Kind
    timing: Timing | None = None
    errors: dict[str, float] = field(default_factory=dict)
    scratch_bytes: int | None = None
    note: str = ""
    failed: bool = False  # raised, or gave something wrong; left out on purpose is no failure


@dataclass(frozen=True)
class Bar:
    """What a case should reach; value None when it was not measured."""

    what: str
    value: float | None
    required: float
    sense: Literal[">=", "<="] = ">="

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.required if self.sense == ">=" else self.value <= self.required

    @property
    def margin(self) -> float:
        """Below 1 where it is missed: how much of what is required was reached."""
        if self.value is None or self.required <= 0:
            return 0.0
        if self.sense == ">=":
            return self.value / self.required
        return self.required / self.value if self.value else math.inf

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{self.what}: {value}, bar {self.sense} {self.required:.4g}"


@dataclass
class Result:
    """One case. `labels` names the summaries it counts in; in the plot it is `tag` in `panel`.

    `reads_only`: the calls write next to nothing, as sums do.
    """

    group: str
    name: str
    panel: str
    tag: str
    labels: tuple[str, ...]
    parameters: dict[str, Any]
    bytes: int
    facts: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    error: str = ""
    reads_only: bool = False

    def find(self, name: str) -> Measurement | None:
        return next((each for each in self.measurements if each.name == name), None)

    def timed(self, *kinds: Kind) -> list[Measurement]:
        return [each for each in self.measurements if each.kind in kinds and each.timing]

    def seconds(self, *kinds: Kind) -> float | None:
        """The median of the fastest of these kinds."""
        return min((each.timing.median for each in self.timed(*kinds) if each.timing), default=None)

    def ratio(self, *kinds: Kind) -> float | None:
        """How many times faster ours is than the fastest of these kinds."""
        ours, others = self.seconds("ours"), self.seconds(*kinds)
        return others / ours if ours and others else None

    def fastest_eager(self) -> str:
        fastest = self.seconds("eager")
        rivals = [each for each in self.timed("eager") if each.timing]
        return next((each.name for each in rivals if each.timing.median == fastest), "")

    def bytes_per_second(self, kind: Kind) -> float | None:
        seconds = self.seconds(kind)
        return self.bytes / seconds if seconds else None


def geometric_mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(list(values))
