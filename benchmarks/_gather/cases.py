"""The cases of benchmarks/gather.py: sizes, dtypes and distributions for CUDA and the CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "u8": torch.uint8,
    "int64": torch.int64,
    "int32": torch.int32,
}


@dataclass(frozen=True)
class Case:
    """source [batch, rows, width], index [batch, picks]; width None: source [batch, rows].

    Backward, the gradient is [batch, picks, width] and what it is summed into has the source's
    shape.
    """

    group: str
    dtype: str
    batch: int
    rows: int
    picks: int
    width: int | None = None
    index: str = "int64"
    distribution: str = "uniform"
    quick: bool = False
    of_copy: float | None = None  # bars that hold for this case alone
    over_eager: float = 1.0

    @property
    def sizes(self) -> str:
        sizes = (self.batch, self.rows, self.picks, *([self.width] if self.width else []))
        return "x".join(map(str, sizes))

    @property
    def name(self) -> str:
        last = self.index if self.group in ("rows", "odd rows", "elements") else self.distribution
        if self.group.startswith("random"):
            last = f"{self.index} {self.distribution}"
        return f"{self.group} {self.dtype} {self.sizes} {last}"

    @property
    def tail(self) -> tuple[int, ...]:
        return () if self.width is None else (self.width,)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.tail) * DTYPES[self.dtype].itemsize

    @property
    def index_bytes(self) -> int:
        return DTYPES[self.index].itemsize

    @property
    def source_bytes(self) -> int:
        return self.batch * self.rows * self.row_bytes

    @property
    def bytes(self) -> int:
        """What has to be moved at least, where nothing is found in a cache by luck."""
        picks = self.batch * self.picks
        if self.group in ("backward", "deterministic", "random sum"):
            return picks * (self.index_bytes + self.row_bytes) + self.source_bytes
        # Elements of a batch row that fits on chip are read once, all others once a pick.
        elements = self.group in ("elements", "random gather") and self.width is None
        if elements and self.rows * self.row_bytes <= 128 * 1024:
            return picks * (self.index_bytes + self.row_bytes) + self.source_bytes
        return picks * (self.index_bytes + 2 * self.row_bytes)

    @property
    def sector_ceiling(self) -> float:
        """The fraction of the copy that is left when whole sectors of 32 bytes are read.

        A row of r bytes that begins at any multiple of a touches r + 32 - a bytes of sectors, on
        average over all places it may begin at.
        """
        aligned = math.gcd(self.row_bytes, 32)
        moved = self.index_bytes + 2 * self.row_bytes
        return moved / (moved + 32 - aligned)

    def scaled(self, scale: float) -> Case:
        if scale == 1:
            return self
        rows, picks = (max(2, round(size * scale)) for size in (self.rows, self.picks))
        return replace(self, batch=min(self.batch, 3), rows=rows, picks=picks)


ROWS = [
    Case("rows", "f32", 8, 131072, 131072, 64, quick=True),
    Case("rows", "f32", 1, 1048576, 1048576, 256),
    Case("rows", "bf16", 64, 4096, 16384, 128, quick=True),
    Case("rows", "bf16", 1, 50304, 131072, 1024, quick=True),
    Case("rows", "bf16", 8, 131072, 131072, 64),
    Case("rows", "f32", 512, 300, 4000, 64),
    Case("rows", "bf16", 1, 32000, 16384, 4096),
    Case("rows", "f32", 1, 65536, 4096, 64, quick=True),
]

ODD = [
    Case("odd rows", "f32", 8, 131072, 131072, 3, quick=True),
    Case("odd rows", "f32", 8, 131072, 131072, 25, quick=True),
    Case("odd rows", "bf16", 8, 131072, 131072, 33, quick=True),
    Case("odd rows", "bf16", 8, 131072, 131072, 7),
    Case("odd rows", "bf16", 8, 131072, 131072, 50),
    Case("odd rows", "f32", 1, 4 * 1048576, 4 * 1048576, 3),
    Case("odd rows", "u8", 4, 262144, 262144, 100),
]

ELEMENTS = [
    Case("elements", "f32", 2, 134217728, 1048576),
    Case("elements", "f32", 2, 134217728, 1048576, index="int32", over_eager=1.08),
    Case("elements", "f32", 2, 134217728, 33554432),
    Case("elements", "f32", 2, 134217728, 33554432, index="int32"),
    Case("elements", "f32", 64, 65536, 1048576, over_eager=1.08, quick=True),
    Case("elements", "f32", 64, 65536, 1048576, index="int32", over_eager=1.08, quick=True),
    Case("elements", "f32", 4096, 1024, 16384, of_copy=0.83, quick=True),
    Case("elements", "f32", 4096, 1024, 16384, index="int32", of_copy=0.85, quick=True),
    Case("elements", "bf16", 64, 65536, 1048576),
    Case("elements", "bf16", 64, 65536, 1048576, index="int32"),
]

# What most entries name comes from one place in a cache, for all multiprocessors.
SKEWED = [
    Case("skewed", "f32", 8, 131072, 131072, 64, distribution="hot"),
    Case("skewed", "f32", 8, 131072, 131072, 25, distribution="hot", quick=True),
    Case("skewed", "bf16", 8, 131072, 131072, 33, distribution="zipf"),
    Case("skewed", "bf16", 8, 131072, 131072, 33, distribution="hot", quick=True),
    Case("skewed", "bf16", 8, 131072, 131072, 33, distribution="one"),
    Case("skewed", "bf16", 8, 131072, 131072, 7, distribution="hot"),
    Case("skewed", "u8", 4, 262144, 262144, 100, distribution="hot"),
    Case("skewed", "f32", 2, 134217728, 1048576, distribution="zipf"),
    Case("skewed", "f32", 2, 134217728, 1048576, distribution="hot"),
    Case("skewed", "f32", 64, 65536, 1048576, distribution="zipf"),
    Case("skewed", "f32", 64, 65536, 1048576, distribution="hot", quick=True),
]

GRADIENTS = [
    Case("backward", "f32", 8, 131072, 131072, 64, quick=True),
    Case("backward", "bf16", 8, 131072, 131072, 64, quick=True),
    Case("backward", "f16", 8, 131072, 131072, 64),
    Case("backward", "f32", 1, 1048576, 1048576, 256),
    Case("backward", "bf16", 1, 1048576, 1048576, 256),
    Case("backward", "f32", 64, 4096, 16384, 128),
    Case("backward", "bf16", 64, 4096, 16384, 128),
    Case("backward", "f32", 1, 50304, 131072, 1024),
    Case("backward", "bf16", 1, 50304, 131072, 1024),
    Case("backward", "f32", 1, 1048576, 65536, 64),
    Case("backward", "bf16", 1, 1048576, 65536, 64),
    Case("backward", "bf16", 4, 1048576, 4096, 5),
    Case("backward", "f32", 8, 16384, 131072, 33),
    Case("backward", "f32", 16, 30000, 120000, 4, quick=True),
    Case("backward", "f32", 16, 30000, 120000, 5),
    Case("backward", "f32", 64, 65536, 1048576, quick=True),
    Case("backward", "bf16", 64, 65536, 1048576),
    Case("backward", "f32", 4096, 1024, 16384),
    Case("backward", "bf16", 4096, 1024, 16384),
    # Few rows, at which atomics would wait for each other.
    Case("backward", "f32", 1, 64, 262144, 64),
    Case("backward", "f32", 1, 32, 1048576, 33, quick=True),
    Case("backward", "f32", 1, 8, 262144, 7),
    Case("backward", "bf16", 16, 16, 65536, 16),
    Case("backward", "bf16", 1, 128, 262144, 33),
]

# From few to many entries on one row: what is slow on one of these is no faster on those after it.
DISTRIBUTIONS = ("uniform", "permutation", "sorted", "zipf", "hot", "one")
QUICK_DISTRIBUTIONS = ("uniform", "zipf", "hot")


def in_distributions(gradients: list[Case]) -> list[Case]:
    return [
        replace(case, distribution=name, quick=case.quick and name in QUICK_DISTRIBUTIONS)
        for case in gradients
        for name in DISTRIBUTIONS
        if name != "permutation" or case.rows == case.picks
    ]


BACKWARD = in_distributions(GRADIENTS)

DETERMINISTIC = [
    Case("deterministic", "f32", 32, 4096, 16384, 256, quick=True),
    Case("deterministic", "f32", 8, 131072, 131072, 64),
    *in_distributions(
        [
            Case("deterministic", "f32", 64, 65536, 1048576),
            Case("deterministic", "bf16", 64, 65536, 1048576),
            Case("deterministic", "f32", 16, 30000, 120000, 4),
        ]
    ),
    Case("deterministic", "f32", 4096, 1024, 16384),
    Case("deterministic", "f32", 1, 64, 262144, 64),
    Case("deterministic", "f32", 1, 32, 1048576, 33),
    Case("deterministic", "f32", 1, 2000, 4000, 64),
    Case("deterministic", "f32", 1, 50304, 1024, 64),
    Case("deterministic", "f32", 128, 64, 1000, 64),
    Case("deterministic", "bf16", 1, 200000, 4096, 16),
]

CASES = ROWS + ODD + ELEMENTS + SKEWED + BACKWARD + DETERMINISTIC

# Of a size for some CPU cores: a call takes some milliseconds.
CPU_FORWARD = [
    Case("rows", "f32", 1, 131072, 131072, 64, quick=True),
    Case("rows", "bf16", 1, 131072, 131072, 64),
    Case("rows", "u8", 1, 131072, 131072, 64),
    Case("rows", "int64", 4, 4096, 16384, 64),
    Case("rows", "bf16", 4, 4096, 16384, 128, quick=True),
    Case("rows", "bf16", 1, 50304, 4096, 1024),
    Case("rows", "f32", 1, 65536, 4096, 64),
    Case("odd rows", "f32", 1, 131072, 131072, 3, quick=True),
    Case("odd rows", "bf16", 1, 131072, 131072, 3),
    Case("odd rows", "u8", 1, 131072, 131072, 3),
    Case("odd rows", "int64", 1, 131072, 131072, 3),
    Case("odd rows", "f32", 4, 16384, 16384, 25),
    Case("odd rows", "bf16", 1, 131072, 131072, 33, quick=True),
    Case("elements", "f32", 1, 65536, 1048576, quick=True),
    Case("elements", "bf16", 1, 65536, 1048576),
    Case("elements", "u8", 8, 65536, 131072),
    Case("elements", "int64", 8, 65536, 131072),
    Case("elements", "f32", 256, 1024, 4096, quick=True),
    Case("elements", "f32", 1, 4194304, 1048576),
]

CPU_GRADIENTS = [
    Case("backward", "f32", 1, 65536, 1048576, quick=True),
    Case("backward", "bf16", 1, 65536, 1048576),
    Case("backward", "f64", 1, 65536, 1048576),
    Case("backward", "f32", 4, 65536, 262144),
    Case("backward", "f32", 1, 4194304, 1048576),
    Case("backward", "f32", 64, 4096, 16384),
    Case("backward", "f32", 1, 30000, 120000, 4, quick=True),
    Case("backward", "f32", 8, 30000, 120000, 4),
    Case("backward", "bf16", 8, 30000, 120000, 4),
    Case("backward", "f32", 1, 100, 65536, 64),
    Case("backward", "f32", 1, 65536, 65536, 64, quick=True),
    Case("backward", "bf16", 1, 131072, 131072, 64, quick=True),
    Case("backward", "f16", 1, 131072, 131072, 64),
    Case("backward", "f32", 4, 4096, 16384, 128),
    Case("backward", "f32", 1, 50304, 16384, 256),
    Case("backward", "bf16", 1, 50304, 16384, 256),
    Case("backward", "f32", 1, 32000, 8192, 1024),
]

CPU_CASES = CPU_FORWARD + in_distributions(CPU_GRADIENTS)
FORWARD_GROUPS = ("rows", "odd rows", "elements", "skewed")
