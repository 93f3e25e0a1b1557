"""What all generated sources are made of: headers, the user's preamble, operands, options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch

from torch_ops.jit.building.source import OURS, Source, UserText
from torch_ops.jit.language.params import OUR_PREFIX, Param
from torch_ops.jit.language.program import C_TYPES, Pieces, Program, Types

STORED = {**C_TYPES, torch.float16: "torch_ops::Half", torch.bfloat16: "torch_ops::BFloat16"}

# Sums and products are rounded one by one, so that values are the same on CPU and GPU, in the
# kernel and in its derivatives. What moves memory loses nothing by it.
CUDA_OPTIONS = ("--std=c++17", "--fmad=false", "--diag-suppress=177")
HOST_OPTIONS = (
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-unknown-pragmas",
)
# Of the user's options, those that mean the same to the host's compiler, by all their names.
_SHARED_OPTION = re.compile(
    r"(?P<D>-D|--define-macro\b)|(?P<U>-U|--undefine-macro\b)|(?P<I>-I|--include-path\b)"
    r"|(?P<std>--?std\b)"
)


def _named(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option: the short name and the value of a shared one, or no name and the option."""
    rest = iter(options)
    for option in rest:
        found = _SHARED_OPTION.match(option)
        if found is None:
            yield "", option
            continue
        value = option[found.end() :].strip()
        if found[0] not in ("-D", "-U", "-I") or value.startswith("="):
            value = value.removeprefix("=")
        yield str(found.lastgroup), value or next(rest, "")


def shared_options(options: Sequence[str]) -> list[str]:
    """Of the user's options those that the host's compiler gets, each with its value."""
    return [
        f"-std={value}" if name == "std" else f"-{name}{value}"
        for name, value in _named(options)
        if name
    ]


def with_macros(source: Source, options: Sequence[str]) -> tuple[Source, list[str]]:
    """The source with the macros of -D and -U as lines before the preamble, and the other options.

    As options they would be in force in our headers too, where a T or an N is something else.
    """
    lines, others = [], []
    for name, value in _named(options):
        if name == "D":
            macro, sign, body = value.partition("=")
            lines.append(f"#define {macro} {body if sign else 1}")
        elif name == "U":
            lines.append(f"#undef {value}")
        else:
            others.append(f"-{name}{'=' * (name == 'std')}{value}" if name else value)
    at = [isinstance(p, UserText) and p.name == "preamble" for p in source.pieces].index(True)
    macros = [UserText("options", "\n".join(lines))] if lines else []
    return Source.of(*source.pieces[:at], *macros, *source.pieces[at:]), others


# ---- headers ------------------------------------------------------------------------------------

_FOLDER = Path(__file__).parents[1] / "headers"
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


@cache
def _header(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def headers(
    first: str, loop: str, dtypes: Iterable[torch.dtype | None], is_derivative: bool
) -> str:
    """The text of headers and of those that they include, each once: no compiler looks for one.

    Between the two stands what not every kernel needs: compilation takes longer with it.
    """
    is_complex = any(dtype is not None and dtype.is_complex for dtype in dtypes)
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in texts:
            text = _header(name)
            for included in _INCLUDE.findall(text):
                add(included)
            text = _INCLUDE.sub("", text).replace("#pragma once", "")
            texts[name] = f'#line 1 "{OURS}/jit/headers/{name}"\n{text}'

    for name in (first, *["complex.h"] * is_complex, *["dual/functions.h"] * is_derivative, loop):
        add(name)
    return "".join(texts.values()) + f'#line 1 "{OURS}"\n'


def _traits(namespace: str, folder: str) -> str:
    return (
        f"#include <{folder}limits>\n#include <{folder}type_traits>\n"
        f"#define TORCH_OPS_LIBRARY {namespace}\n{_header('dual/traits.h')}"
    )


def preamble_pieces(program: Program) -> Pieces:
    """The preamble. Of a derivative also what standard libraries are to say of dual numbers."""
    preamble = program.preamble()
    if program.depth == 0:
        return [preamble]
    # The host's is there already. NVRTC has none but CUDA's, whose headers are hundreds of files.
    host = f"#ifndef __CUDACC_RTC__\n{_traits('std', '')}#endif"
    if not re.search(r"include|import", preamble.text):
        return [host, preamble]
    return [host, preamble, f"#ifdef CCCL_VERSION\n{_traits('cuda::std', 'cuda/std/')}#endif"]


# ---- operands -----------------------------------------------------------------------------------


class Arguments:
    """The arguments of one form of call, sorted: tensors that are walked, numbers, raw arrays.

    Attributes:
        operands: Tensors that are walked: each parameter and its type in memory.
        values: The C++ type of each parameter's variable.
        fields: The numbers and raw arrays as fields of the plan.
    """

    def __init__(
        self,
        params: Sequence[Param],
        stored: Sequence[torch.dtype | None],
        raw: Sequence[tuple[int, bool]],
        types: Types,
        values: dict[str, str],
        outputs: int,
        bool_as: torch.dtype = torch.uint8,
    ) -> None:
        """``bool_as``: what a bool of a walked tensor is read as.

        GCC does not vectorise a loop in which a value that is read as bool chooses between two.
        """
        self.values = values
        self.operands: list[tuple[Param, str]] = []
        self.numbers: list[Param] = []
        self.raws: list[Param] = []
        numbers, raws = "", ""
        ranks = iter(raw)
        for number, (param, dtype) in enumerate(zip(params, stored, strict=True)):
            if dtype is None:
                self.numbers.append(param)
                numbers += f"  alignas(8) {values[param.name]} @{param.name};\n"
            elif param.raw:
                rank, contiguous = next(ranks)
                # A raw array is read and written as plain values, also below derivatives.
                element = "" if number < outputs else "const "
                self.raws.append(param)
                raws += (
                    f"  torch_ops::Raw<{element}{STORED[dtype]}, {C_TYPES[types.dtype(param)]}, "
                    f"{rank}, {cpp_bool(contiguous)}> @{param.name};\n"
                )
            else:
                walked = bool_as if dtype == torch.bool else dtype
                self.operands.append((param, STORED[walked]))
        self.fields = numbers + raws

    def locals(self, size: str) -> list[str]:
        """What a snippet sees beside its operands; ``size``: the field that ``_ind.size()`` is.

        Numbers are copies, which no store to an output can change: the compiler need not read them
        again.
        """
        return [
            f"const torch_ops::Indexer _ind{{@plan.{size}}};",
            *(f"const auto {param.name} = @plan.@{param.name};" for param in self.numbers),
            *(f"const auto& {param.name} = @plan.@{param.name};" for param in self.raws),
        ]

    def operand(self, number: int, mode: str = "c") -> str:
        """The C++ type that stands for an operand: see headers/operands.h."""
        param, stored = self.operands[number]
        return f"torch_ops::Operand<{number}, {stored}, {self.values[param.name]}, '{mode}'>"


def cpp_bool(value: bool) -> str:
    """``true`` or ``false``."""
    return str(value).lower()


def joined(*pieces: str | UserText) -> Source:
    """The source, with names of ours, which begin with @, made such as no user has."""
    return Source.of(
        *(piece.replace("@", OUR_PREFIX) if isinstance(piece, str) else piece for piece in pieces)
    )
