"""Samples for elementwise ops."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import torch
from op_checks import Sample
from torch import Tensor

# Around the widths of a vector of 16 bytes in each dtype (2 to 8 values), a warp, a block of
# threads, and a block's words.
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 257, 1023, 1025, 2049, 4099]
SHAPES = [(), (0, 3), (3, 5), (2, 3, 4), (2, 3, 4, 5), (1, 1, 1, 1, 7)]


def random(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(device, dtype)


def special(device: torch.device, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    values = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, info.max, info.min]
    values += [info.tiny, -info.tiny, info.smallest_normal / 4, -info.smallest_normal / 4]
    return torch.tensor(values, dtype=torch.float64).to(device, dtype)


def unary_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for size in SIZES:
        yield Sample((random((size,), device, dtype),))
    for shape in SHAPES:
        yield Sample((random(shape, device, dtype),))
    yield Sample((special(device, dtype),))


TORCHS_ERROR = {
    "errors_when_compiled": "a dtype that only torch's kernel refuses, which tracing does not run"
}


def sized_unary(device: torch.device, size: int) -> Sample:
    return Sample((random((size, 3), device, torch.float32),))


def sized_binary(device: torch.device, size: int) -> Sample:
    x = random((size, 3), device, torch.float32)
    return Sample((x.flip(0), x))


def layer_inputs(device: torch.device) -> tuple[Tensor]:
    return (random((4, 3), device, torch.float32),)


def bad_unary(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.bool, torch.complex64):
        yield Sample((torch.ones(3, dtype=dtype, device=device),))


def bad_binary(device: torch.device) -> Iterator[Sample]:
    x = torch.ones(3, device=device)
    yield Sample((torch.ones(2, device=device), x))
    yield Sample((x.double(), x))


def every_16_bit_value(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(device)


def memory_layouts(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor of rank 4, and others of its memory: dense ones first, then with gaps."""
    yield "contiguous", x
    yield "transposed", x.transpose(0, -1)
    yield "channels last", x.to(memory_format=torch.channels_last)
    yield "every second row", x[:, :, ::2]
    yield "every second element", x[..., ::2]
    yield "unaligned rows", x[..., 1:]
    yield "transposed, with gaps", x[:, 1:].transpose(1, 3)


# Of several tiles and pieces of the CPU's, and parts of them; the last one of several threads.
CROSSED_SHAPES = [
    (70, 1200), (1200, 70), (33, 520), (40, 513), (3, 70, 1032), (3, 1032, 70), (600, 517),
]  # fmt: skip


def crossed(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Contiguous but for its last two axes, which have changed places in memory."""
    return random((*shape[:-2], shape[-1], shape[-2]), device, dtype).mT


def away_from_zero(device: torch.device) -> Iterator[Sample]:
    for shape in [(), (5,), (2, 3), (0,)]:
        x = random(shape, device, torch.float64)
        yield Sample((x + 0.1 * x.sign(),))


def run_tests_with(capability: str, path: str, tests: str) -> None:
    """Runs tests of a file in a process whose CPU has no more than this (default, avx2)."""
    # A run of its own, which must not take itself for a worker of the run that it is started by.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k", tests, path],
        env={**environment, "ATEN_CPU_CAPABILITY": capability},
        check=True,
    )
