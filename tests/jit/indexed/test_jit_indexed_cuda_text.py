"""The CUDA text of indexed kernels, compiled by NVRTC; no GPU is needed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from jit_tools import needs_cuda_core

from torch_ops.jit.building.compilation import compile_cuda
from torch_ops.jit.generation.indexed import PassForm, cuda_source, partial_bytes
from torch_ops.jit.generation.text import CUDA_OPTIONS
from torch_ops.jit.language.indices import read_indices, read_reductions
from torch_ops.jit.language.params import parse_params
from torch_ops.jit.language.program import Program, Snippet

pytestmark = needs_cuda_core

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64


def program(inputs: str, outputs: str, operation: str, **more: Any) -> Program:
    declared = parse_params(inputs, "in_params", indexed=True)
    results = parse_params(outputs, "out_params", indexed=True)
    indices = read_indices(declared, results)
    results = read_reductions(results, more.get("reduce", "sum"), more.get("features"))
    return Program("kernel", declared, results, Snippet(operation), indices=indices)


def form(kernel: Program, dtype: torch.dtype, by: tuple[int, ...], **facts: Any) -> PassForm:
    """Of a pass by rows in order, whose inputs lie together."""
    params = (*kernel.outputs, *kernel.inputs)
    dtypes = tuple(dtype if isinstance(p.type, str) else p.type for p in params)
    defaults = {
        "raw": (), "modes": "c" * len(kernel.inputs), "kinds": "s" * len(kernel.outputs),
        "sources": "p-", "walk": "r", "is_wide": False, "is_large": False, "is_ordered": True,
        "is_batched": False, "kept": 1, "summed": 0, "vector": 16 // dtype.itemsize,
        "is_full": True, "sums_inner": False,
    }  # fmt: skip
    return PassForm(stored=dtypes, computed=dtypes, by=by, **{**defaults, **facts})


def compiled(kernel: Program, call: PassForm, arch: str = "sm_90", target: str = "ptx") -> str:
    source, unroll = cuda_source(kernel, call)
    assert unroll in (2, 4, 8)
    code = compile_cuda("kernel", source, arch=arch, options=CUDA_OPTIONS, target=target)
    return code.data.decode(errors="replace")


WEIGHTED = program("T x[src], T w", "T out[dst]", "out = w * x")
DIFFERENCE = program("T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y)")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_architectures(arch: str) -> None:
    for dtype in (BF16, F32, F64)[: 3 if arch == "sm_75" else 1]:
        call = form(WEIGHTED, dtype, (0, -1), modes="cb")
        assert len(compiled(WEIGHTED, call, arch, "cubin")) > 1000


def text_of_run(ptx: str) -> str:
    return ptx[ptx.index(".entry run") : ptx.index(".entry join")]


@pytest.mark.parametrize("dtype", [BF16, F32, F64], ids=str)
def test_rows_are_read_in_words_several_in_flight(dtype: torch.dtype) -> None:
    """16 bytes a load, as many loads as entries in flight before the first sum; no local memory."""
    ptx = compiled(WEIGHTED, form(WEIGHTED, dtype, (0, -1), modes="cb"))
    kernel = text_of_run(ptx)
    words = re.findall(r"ld\.global\.v(\d)\.[a-z](\d+)", kernel)
    assert [int(width) * int(bits) for width, bits in words] == [128] * 4
    assert ".local" not in kernel


def test_a_row_of_the_destination_is_read_once() -> None:
    """y[dst] is the row's: one load, outside of the loop over entries."""
    ptx = compiled(DIFFERENCE, form(DIFFERENCE, F32, (0, -2, -1), modes="ccb"))
    kernel = text_of_run(ptx)
    assert len(re.findall(r"ld\.global\.v4", kernel)) == 4 + 1


def test_what_a_gradient_does_not_need_is_not_read() -> None:
    """The gradient of w (x - y) by x is w g: neither x nor y."""
    gradient = DIFFERENCE.vjp([True, False, False], [False] * 3)
    call = form(gradient, F32, (1, -2, 1, -1), modes="cccb", sources="-p")
    kernel = compiled(gradient, call)
    kernel = text_of_run(kernel)
    assert len(re.findall(r"ld\.global\.v4", kernel)) == 4  # the gradient's rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "dtypes"),
    [
        ("sm_75", [F32]),
        ("sm_90", [BF16, F32, F64]),
        ("sm_120", [BF16]),
        ("sm_75", [BF16, F64]),
        ("sm_120", [F32, F64]),
    ],
    ids=str,
)
def test_an_entry_is_summed_over_words_by_shuffles(arch: str, dtypes: list[torch.dtype]) -> None:
    """The gradients by w, and by x or y, in one pass; no local memory, and no more row loads."""
    weighted, difference = (
        WEIGHTED.vjp([True] * 2, [False] * 2),
        DIFFERENCE.vjp([True] * 3, [False] * 3),
    )
    for dtype in dtypes:
        for lanes in (False, True):
            for kernel, by, facts, rows in (
                (weighted, (1, -2, -1), {"kinds": "sf", "modes": "ccb", "sources": "-p"}, 5),
                (difference, (-2, 0, -2, -1), {"kinds": "-sf", "modes": "cccb"}, 6),
            ):
                call = form(kernel, dtype, by, lanes=lanes, together=16, **facts)
                ptx = compiled(kernel, call, arch)
                run = text_of_run(ptx)
                shuffles = 5 * max(dtype.itemsize // 4, 1)  # of four values; one takes four
                assert run.count("shfl.sync.bfly") == shuffles
                assert ".local" not in run
                words = re.findall(r"ld\.global\.v(\d)\.[a-z](\d+)", run)
                assert [int(width) * int(bits) for width, bits in words] == [128] * rows
                assert len(compiled(kernel, call, arch, "cubin")) > 1000


@pytest.mark.parametrize(
    "facts",
    [
        {"sources": "l-"},
        {"sources": "i-", "is_batched": True},
        {"is_wide": True, "is_large": True},
        {"modes": "ss", "vector": 1},
        {"kept": 3, "vector": 2},
        {"kept": 2, "summed": 2, "vector": 1, "modes": "ss"},
        {"kept": 0, "summed": 1, "sums_inner": True},
        {"walk": "u", "is_ordered": False, "sources": "l-"},
        {"walk": "e", "kinds": "e", "sources": "pp"},
        {"walk": "e", "kinds": "e", "sources": "ll", "is_ordered": False},
        {"walk": "e", "kinds": "e", "kept": 0, "summed": 1, "sums_inner": True, "together": 8},
        {"walk": "e", "kinds": "-", "sources": "-l", "is_ordered": False},  # looks at an index
        {"kinds": "m"},
        {"kinds": "x"},
        {"kinds": "n", "modes": "ss", "vector": 1},
    ],
    ids=str,
)
def test_forms(facts: dict[str, Any]) -> None:
    by = (0, -2, -1)
    if facts.get("walk") in ("e", "u"):
        by = (0, 1, -4) if facts.get("is_batched") else (0, -3, -1)
    call = form(DIFFERENCE, F32, by, **{**facts, "modes": (facts.get("modes", "cc") + "c")[:3]})
    assert "run" in compiled(DIFFERENCE, call)


@pytest.mark.parametrize("dtype", ["int8", "bool", "uint64", "complex64", "complex128"])
def test_other_dtypes(dtype: str) -> None:
    kernel = program(f"{dtype} x[src]", f"{dtype} out[dst], {dtype} e", "out = e = x")
    kinds = "xe" if dtype == "bool" else "me"
    call = form(kernel, F32, (0,), vector=1, kinds=kinds)
    assert "run" in compiled(kernel, call)
    assert partial_bytes(call) >= 8


def test_derivatives_of_derivatives() -> None:
    """Of sums and of extremes, forward over backward too."""
    best = program("T x[src], T w", "T out[dst]", "out = exp(x) * w", reduce="amax")
    for kernel in (DIFFERENCE, best):
        gradient = kernel.vjp([True] * len(kernel.inputs), [False] * len(kernel.inputs))
        for second in (
            gradient.vjp([p.type == "T" for p in gradient.inputs], [False] * len(gradient.inputs)),
            gradient.jvp([p.type == "T" for p in gradient.inputs]),
        ):
            count = len(second.inputs)
            kinds = "s" + "-" * (len(second.outputs) - 1)
            by = tuple((p.index == "src" and 0) or ((p.index == "dst" and -2) or -1)
                       for p in second.inputs)  # fmt: skip
            call = form(second, F32, by, kinds=kinds, modes="c" * count)
            assert "run" in compiled(second, call)


def test_the_record_of_errors_has_the_layout_of_compiled_kernels() -> None:
    """Field by field, as src/common/indexing/index_error.h declares it."""
    from programs import ROOT

    own = (ROOT / "torch_ops/jit/headers/indexed/index_error.h").read_text("utf-8")
    theirs = (ROOT / "src/common/indexing/index_error.h").read_text("utf-8")

    def fields(text: str, struct: str) -> list[str]:
        body = re.search(rf"struct {struct} {{(.*?)\n}};", text, re.DOTALL)
        assert body is not None
        lines = re.sub(r"//[^\n]*| = [^;]*", "", body[1]).split(";")
        names = []
        for line in lines:
            words = re.sub(r"[*]", " ", line).split()
            if words:
                kind = [w for w in words[:-1] if not w.endswith(",")][
                    0 if words[0] != "const" else 1
                ]
                names += [f"{kind} {n}" for n in re.findall(r"\w+(?:\[\w+\])?", line)
                          if n.rstrip("]0123456789[") not in (kind, "const")]  # fmt: skip
        return [name.replace("kMaxNamedRank", "8") for name in names]

    for struct in ("IndexErrorSite", "IndexErrorRecord", "IndexErrorSlot"):
        assert fields(own, struct) == fields(theirs, struct)
