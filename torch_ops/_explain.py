"""`python -m torch_ops explain`: which kernels a gather or a sum runs on a GPU, and why.

The answers are those of the choices that calls go through (src/scatter/sum/choose.h,
src/gather/cuda/gather_path.h), for tensors that are contiguous. They need no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

import torch_ops

H200 = {
    "shared_bytes": 227 << 10,
    "l2_bytes": 60 << 20,
    "multiprocessors": 132,
    "compute_capability": 90,
}
# Which options an op takes.
_ALL = {"op", "dtype", "shape", "to", "dim", *H200}
_SUMS = _ALL | {"shared_index", "deterministic", "plan"}
_OPTIONS = {
    "scatter_add": _SUMS,
    "scatter_add_": _SUMS,
    "scatter": _SUMS | {"reduce", "positions"},
    "gather": _ALL,
    "ways": {"op"},
}
EXAMPLES = """examples:
  python -m torch_ops explain scatter_add float32 16x120000x4 30000
  python -m torch_ops explain scatter_add bfloat16 65536x64 1000000 --deterministic
  python -m torch_ops explain scatter float32 262144x64 1000 --reduce amax
  python -m torch_ops explain gather float32 16x30000x4 16x120000
  python -m torch_ops explain ways"""


def _shape(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise argparse.ArgumentTypeError(f"write a shape as 16x120000x4, not {text!r}")
    return [int(size) for size in text.split("x")]


def _limit(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,17}", text):
        raise argparse.ArgumentTypeError(f"it must be an integer above 0, not {text!r}")
    return int(text)


def _capability(text: str) -> int:
    """90, from 9.0 or from 90."""
    return _limit(re.sub(r"^(\d+)\.(\d)$", r"\1\2", text))


def _dtype(text: str) -> torch.dtype:
    dtype = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise argparse.ArgumentTypeError(f"{text!r} is not a dtype of torch")
    return dtype


def _check_dtype(op: str, dtype: torch.dtype, reduce: str) -> None:
    """Raises the TypeError of the op itself if it does not take the dtype."""
    values = torch.empty(0, dtype=dtype, device="meta")
    index = torch.empty(0, dtype=torch.int64, device="meta")
    if op == "gather":
        torch_ops.gather(values, index)
    elif op == "scatter":
        torch_ops.scatter(values, index, 1, reduce=reduce)
    else:  # scatter_add_ takes the same
        torch_ops.scatter_add(values, index, 1)


def limits_of_gpu() -> tuple[dict[str, int], str]:
    """The limits of the current GPU, or of an H200 where there is none, and whose they are."""
    if not torch.cuda.is_available():
        return H200, "an H200 (there is no GPU here)"
    gpu: Any = torch.cuda.get_device_properties()
    limits = {
        "shared_bytes": gpu.shared_memory_per_block_optin,
        "l2_bytes": gpu.L2_cache_size,
        "multiprocessors": gpu.multi_processor_count,
        "compute_capability": 10 * gpu.major + gpu.minor,
    }
    return limits, gpu.name


def plan_sum(
    shape: Sequence[int],
    dim_size: int,
    dtype: torch.dtype = torch.float32,
    dim: int | None = None,
    *,
    shared_index: bool = False,
    deterministic: bool = False,
    planned: bool = False,
    in_place: bool = False,
    reduce: str = "sum",
    positions: bool = False,
    limits: dict[str, int] | None = None,
) -> dict[str, Any]:
    """What a sum of values of this shape does. Axes before dim are batches of the index."""
    ext: Any = importlib.import_module("torch_ops._ext.scatter")
    dim = max(len(shape) - 2, 0) if dim is None else dim
    before = math.prod(shape[:dim])
    real = dtype.to_real()
    sizes = {
        "axis_size": dim_size,
        "entries": shape[dim],
        "inner": math.prod(shape[dim + 1 :]) * (2 if dtype.is_complex else 1),
        "outer" if shared_index else "batch": before,
        "value_bytes": real.itemsize,
        "planned": planned,
    }
    limits = limits or H200
    if reduce in ("amax", "amin"):
        return dict(ext.plan_best(**sizes, positions=positions, **limits))
    # scatter_add_ adds the sums of scatter_add where these must be rounded, or repeatable.
    alone = in_place and real.itemsize >= 4 and not deterministic
    options = {"floats": real.is_floating_point, "repeatable": deterministic, "in_place": alone}
    return dict(ext.plan(**sizes, **options, **limits))


def plan_gather(
    shape: Sequence[int],
    index: Sequence[int],
    dtype: torch.dtype = torch.float32,
    dim: int | None = None,
    *,
    limits: dict[str, int] | None = None,
) -> dict[str, Any]:
    """What a gather does; without dim the axes of the index before its last are batches."""
    ext: Any = importlib.import_module("torch_ops._ext.gather")
    batch_dims = len(index) - 1 if dim is None else 0
    dim = batch_dims if dim is None else dim
    plan = ext.plan(
        axis_size=shape[dim],
        entries=math.prod(index[batch_dims:]),
        inner=math.prod(shape[dim + 1 :]),
        element_bytes=dtype.itemsize,
        batch=math.prod(shape[:batch_dims]),
        outer=math.prod(shape[batch_dims:dim]),
        **(limits or H200),
    )
    return dict(plan)


def ways_table() -> str:
    """The table of ways in Markdown, as docs/internals/kernels/README.md has it."""
    ext: Any = importlib.import_module("torch_ops._ext.scatter")
    lines = ["| sums | way | when |", "| --- | --- | --- |"]
    asked = {True: "floats, the same bits on every run", False: "floats by default; integers"}
    for repeatable, way, why in ext.ways():
        first = f"{asked.pop(repeatable, '')} ".lstrip()
        lines.append(f"| {first}| {way} | {why} |")
    return "\n".join(lines) + "\n"


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10**4 else f"{count / 1e6:.2f} MB"


def _report(plan: dict[str, Any]) -> str:
    lines = [
        f"way        {plan['way']}",
        f"why        {plan['why']}",
        f"guarantee  {plan['guarantee']}",
        f"scratch    {_size(plan['scratch'])}",
        f"kernels    {', '.join(plan['kernels'])}",
    ]
    if plan.get("cut"):
        lines.append("cut        " + ", ".join(f"{k} {v}" for k, v in plan["cut"].items()))
    if "word_bytes" in plan:
        lines.append(f"words      of {plan['word_bytes']} bytes")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Prints the answer. Returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m torch_ops explain",
        description="Which kernels a call runs on a GPU, and why; for contiguous tensors.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("op", choices=_OPTIONS)
    parser.add_argument("dtype", type=_dtype, nargs="?")
    parser.add_argument("shape", type=_shape, nargs="?", help="of the values, or of the source")
    parser.add_argument(
        "to", type=_shape, nargs="?", help="the length of the result's axis, or gather's index"
    )
    parser.add_argument(
        "--dim", type=int, help="of the axis; the axis before the last, or the first that remains"
    )
    parser.add_argument(
        "--shared-index", action="store_true", help="one index for all axes before dim"
    )
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--plan", action="store_true", help="with a gather_plan")
    parser.add_argument("--reduce", choices=["sum", "amax", "amin"], default="sum")
    parser.add_argument(
        "--positions", action="store_true", help="of amax and amin: a gradient needs them"
    )
    for name in H200:
        kind, form = (_capability, ", as 9.0") if name == "compute_capability" else (_limit, "")
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, help=f"of another GPU{form}")
    asked = parser.parse_args(arguments)
    for name, value in vars(asked).items():
        if value != parser.get_default(name) and name not in _OPTIONS[asked.op]:
            word = name if name in ("dtype", "shape", "to") else f"--{name.replace('_', '-')}"
            parser.error(f"{asked.op} takes no {word}")
    if asked.positions and asked.reduce == "sum":
        parser.error("--positions is for --reduce amax and --reduce amin")
    if asked.op == "ways":
        print(ways_table(), end="")
        return 0
    if asked.to is None:
        parser.error("give a dtype, a shape, and the axis's length or the index's shape")
    if asked.op != "gather" and len(asked.to) > 1:
        parser.error("give the length of the result's axis as one number")
    if 0 in (*asked.shape, *asked.to):
        parser.error("nothing is launched for empty tensors")
    if max(math.prod(asked.shape), math.prod(asked.to)) >= 2**40:
        parser.error("no GPU's memory holds such tensors")
    given = {name: value for name in H200 if (value := getattr(asked, name)) is not None}
    limits, whose = limits_of_gpu()
    limits = limits | given
    if not -1 < (asked.dim or 0) < len(asked.shape):
        parser.error(f"--dim must be between 0 and {len(asked.shape) - 1}, but it is {asked.dim}")
    try:
        _check_dtype(asked.op, asked.dtype, asked.reduce)
    except TypeError as error:
        parser.error(str(error))
    if asked.op == "gather" and asked.dim is None:
        batch = asked.to[:-1]
        if asked.shape[: len(batch)] != batch or len(asked.shape) == len(batch):
            parser.error("the index's axes before its last must be the source's; or give --dim")
    if asked.op == "gather":
        plan = plan_gather(asked.shape, asked.to, asked.dtype, asked.dim, limits=limits)
    else:
        plan = plan_sum(
            asked.shape,
            asked.to[0],
            asked.dtype,
            asked.dim,
            shared_index=asked.shared_index,
            deterministic=asked.deterministic,
            planned=asked.plan,
            in_place=asked.op == "scatter_add_",
            reduce=asked.reduce,
            positions=asked.positions,
            limits=limits,
        )
    print(_report(plan))
    if "compute_capability" in given:
        given["compute_capability"] /= 10  # as users write it
    but = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())
    print(f"gpu        {whose}" + (f", but {but}" if but else ""))
    return 0
