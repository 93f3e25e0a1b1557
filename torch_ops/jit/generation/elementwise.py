"""The source of an elementwise kernel for one form of call: dtypes, ranks and memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from torch_ops.jit.building.source import Source, UserText
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

# A block's threads, and the vectors or elements of each, whose loads are in flight together.
VECTOR_THREADS, VECTOR_UNROLL = 256, 1
STRIDED_THREADS, STRIDED_UNROLL = 128, 4


@dataclass(frozen=True)
class Form:
    """What src/jit/elementwise.cpp found out of a call; its code serves all calls of one form.

    Attributes:
        stored: The dtypes in memory: outputs, then inputs. None: a number.
        computed: The dtypes of the snippet's variables likewise.
        raw: Rank of each raw parameter, outputs first, and whether it is contiguous.
        modes: Of each operand on CUDA: contiguous, broadcast or strided along the inner axis.
        dims: Axes that the plan walks; 0 on the CPU, where code serves any number.
        vector: Elements that a thread moves as one.
        index: Where ``i`` comes from: not used, linear, or an operand of its own.
        load_outputs: Outputs start as what their tensors hold.
    """

    stored: tuple[torch.dtype | None, ...]
    computed: tuple[torch.dtype, ...]
    raw: tuple[tuple[int, bool], ...]
    modes: str
    dims: int
    vector: int
    index: str
    load_outputs: bool


@dataclass(frozen=True)
class _Operand:
    """A tensor that the plan walks. ``param`` is None for the one that counts elements."""

    number: int
    param: Param | None
    stored: str
    value: str
    is_output: bool
    mode: str

    @property
    def size(self) -> str:
        return "1" if self.param is None else f"int64_t(sizeof({self.stored}))"


class _Writer:
    """The parts of the text that both kinds of processor have."""

    def __init__(self, program: Program, form: Form) -> None:
        self.program, self.form = program, form
        params = (*program.outputs, *program.inputs)
        by_type = {
            param.type: dtype
            for param, dtype in zip(params, form.computed, strict=True)
            if not param.wide
        }
        for param, dtype in zip(params, form.computed, strict=True):
            by_type.setdefault(param.type, dtype)
        self.types = Types(by_type)
        self.level = program.depth
        self._dtypes = (*form.stored, *form.computed)
        self.operands: list[_Operand] = []
        self.numbers: list[Param] = []
        self.raws: list[tuple[Param, str, tuple[int, bool]]] = []
        ranks = iter(form.raw)
        for number, (param, stored) in enumerate(zip(params, form.stored, strict=True)):
            is_output = number < len(program.outputs)
            if param.raw:
                assert stored is not None
                name = STORED[stored] if is_output else f"const {STORED[stored]}"
                self.raws.append((param, name, next(ranks)))
            elif stored is None:
                self.numbers.append(param)
            else:
                self._add(param, STORED[stored], self.value_type(param), is_output)
        if form.index == "o":
            self._add(None, "", "", False)
        self.inputs = [o for o in self.operands if o.param is not None and not o.is_output]
        self.outputs = [o for o in self.operands if o.is_output]

    def _add(self, param: Param | None, stored: str, value: str, is_output: bool) -> None:
        number = len(self.operands)
        mode = self.form.modes[number] if self.form.modes else "s"
        self.operands.append(_Operand(number, param, stored, value, is_output, mode))

    def value_type(self, param: Param) -> str:
        return self.types.name(param, self.level)

    def plan(self, more: str) -> str:
        """The struct whose words src/jit/elementwise.cpp fills."""
        numbers = "".join(f"  alignas(8) {self.value_type(p)} @{p.name};\n" for p in self.numbers)
        # A raw array is read and written as plain values, also below derivatives.
        raws = "".join(
            f"  torch_ops::Raw<{stored}, {C_TYPES[self.types.dtype(p)]}, {rank}, "
            f"{str(contiguous).lower()}> @{p.name};\n"
            for p, stored, (rank, contiguous) in self.raws
        )
        return (
            "struct Plan {\n  int64_t size, total;\n"
            f"  char* data[{len(self.operands)}];\n{numbers}{raws}{more}}};"
        )

    def prologue(self) -> Pieces:
        """What stands before a thread's elements: what plan and snippet name."""
        lines = ["const torch_ops::Indexer _ind{@plan.total};"]
        # Copies, which no store to an output can change: the compiler need not read them again.
        lines += [f"const auto {p.name} = @plan.@{p.name};" for p in self.numbers]
        lines += [f"const auto& {p.name} = @plan.@{p.name};" for p, _, _ in self.raws]
        return ["\n".join(lines), *_statement(self.program.loop_prep())]

    def epilogue(self) -> Pieces:
        return _statement(self.program.after_loop())

    def head(self, headers: Sequence[str]) -> Pieces:
        names = ["scalar.h", *headers, *more_headers(self._dtypes, self.level > 0)]
        return [
            "".join(header(name) for name in names) + self.program.type_aliases(self.types),
            *preamble_pieces(self.program),
            ";",
        ]


def _statement(text: UserText) -> Pieces:
    return [text, ";"] if text.text.strip() else []


def shared_options(options: Sequence[str]) -> list[str]:
    """Of the user's options those that the host's compiler gets, each with its value."""
    shared = []
    rest = iter(options)
    for option in rest:
        found = _SHARED_OPTION.match(option)
        if found is None:
            continue
        value = option[found.end() :].strip()
        if found[0] not in ("-D", "-U", "-I") or value.startswith("="):
            value = value.removeprefix("=")
        value = value or next(rest, "")
        name = str(found.lastgroup)
        shared.append(f"-{name}={value}" if name == "std" else f"-{name}{value}")
    return shared


def more_headers(dtypes: Iterable[torch.dtype | None], is_derivative: bool) -> list[str]:
    """What not every kernel needs: compilation takes longer with it."""
    is_complex = any(dtype is not None and dtype.is_complex for dtype in dtypes)
    dual = ["dual.h", "dual_functions.h"] if is_derivative else []
    return [*(["complex.h"] if is_complex else []), *dual]


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


def _traits(namespace: str, folder: str) -> str:
    return (
        f"#include <{folder}limits>\n#include <{folder}type_traits>\n"
        f"#define TORCH_OPS_LIBRARY {namespace}\n{header('dual_traits.h')}"
    )


@cache
def header(name: str) -> str:
    """The text of a header of ours."""
    return (Path(__file__).parents[1] / "headers" / name).read_text(encoding="utf-8")


def joined(*pieces: str | UserText) -> Source:
    """The source, with names of ours, which begin with @, made such as no user has."""
    return Source.of(
        *(piece.replace("@", OUR_PREFIX) if isinstance(piece, str) else piece for piece in pieces)
    )


def host_source(program: Program, form: Form) -> Source:
    """C++ with a function ``run(plan, begin, end)`` over a range of a plan's elements."""
    writer = _Writer(program, form)
    count = len(writer.operands)
    plan = writer.plan("  int64_t dims;\n  const int64_t* sizes;\n  const int64_t* strides;\n")
    loads, stores = [], []
    for operand in writer.operands:
        n = operand.number
        if operand.param is None:
            loads.append(f"const ptrdiff_t i = reinterpret_cast<ptrdiff_t>(@a{n} + @j * @s{n});")
            continue
        at = f"reinterpret_cast<{operand.stored}*>(@a{n} + @j * @s{n})"
        value = f"torch_ops::load_as<{operand.value}>(*{at})"
        if not operand.is_output:
            loads.append(f"const {operand.value} {operand.param.name} = {value};")
        else:
            start = value if form.load_outputs else f"{operand.value}()"
            loads.append(f"{operand.value} {operand.param.name} = {start};")
            stores.append(f"torch_ops::store_as(*{at}, {operand.param.name});")
    if form.index == "l":
        loads.append("const ptrdiff_t i = @first + @j;")
    pointers = "\n".join(
        f"char* const @a{o.number} = @at[{o.number}]; "
        f"const int64_t @s{o.number} = @flat.value ? {o.size} : @plan.strides[{o.number}];"
        for o in writer.operands
    )
    # No element reads what another has written; state between elements is loop_prep's alone.
    independent = not program.snippet.loop_prep and not any(p.raw for p in program.outputs)
    pragma = "\n#ifndef __clang__\n#pragma GCC ivdep\n#endif\n" if independent else "\n"
    is_flat = " && ".join(f"@plan.strides[{o.number}] == {o.size}" for o in writer.operands)
    return joined(
        *writer.head(["host.h"]),
        f"""{plan}
template <bool is_flat> struct Flat {{ static constexpr bool value = is_flat; }};
extern "C" void run(const Plan& @plan, int64_t @begin, int64_t @end) {{""",
        *writer.prologue(),
        f"""const auto @row = [&](auto @flat, char* const* @at, int64_t @first, int64_t @count) {{
{pointers}{pragma}for (int64_t @j = 0; @j < @count; ++@j) {{
"""
        + "\n".join(loads),
        *program.element(writer.types),
        "\n".join(stores)
        + f"""
}}
}};
const bool @is_flat = {is_flat};
int64_t @place[64];
for (int64_t d = 0, rest = @begin; d < @plan.dims; ++d) {{
  @place[d] = rest % @plan.sizes[d];
  rest /= @plan.sizes[d];
}}
while (@begin < @end) {{
  char* at[{count}];
  for (int k = 0; k < {count}; ++k) {{
    at[k] = @plan.data[k];
    for (int64_t d = 0; d < @plan.dims; ++d) at[k] += @place[d] * @plan.strides[d * {count} + k];
  }}
  const int64_t left = @plan.sizes[0] - @place[0];
  const int64_t length = left < @end - @begin ? left : @end - @begin;
  if (@is_flat) @row(Flat<true>(), at, @begin, length);
  else @row(Flat<false>(), at, @begin, length);
  @begin += length;
  @place[0] = 0;
  for (int64_t d = 1; d < @plan.dims && ++@place[d] == @plan.sizes[d]; ++d) @place[d] = 0;
}}
""",
        *writer.epilogue(),
        "}",
    )


def cuda_source(program: Program, form: Form) -> tuple[Source, int, int]:
    """CUDA C++ with a kernel named ``kernel``; threads of a block, and vectors of a thread."""
    writer = _Writer(program, form)
    count = len(writer.operands)
    flat = form.dims == 1 and "s" not in form.modes
    vector = form.vector
    threads, unroll = (
        (VECTOR_THREADS, VECTOR_UNROLL) if flat or vector > 1 else (STRIDED_THREADS, STRIDED_UNROLL)
    )
    strided = (
        ""
        if flat
        else f"  int64_t dims;\n  torch_ops::Divisor sizes[{form.dims}];\n"
        f"  alignas(8) uint32_t strides[{form.dims}][{count}];\n"
    )
    loaded = [o for o in writer.operands if o.param is not None]
    if not form.load_outputs:
        loaded = writer.inputs

    def holder(operand: _Operand) -> str:
        if operand.mode == "b":
            return f"torch_ops::Splat<{operand.stored}>"
        return f"torch_ops::Vector<{operand.stored}, {vector}>"

    def address(operand: _Operand, word: str) -> str:
        if not flat:
            return f"@plan.data[{operand.number}] + @offset{operand.number}[@u]"
        if operand.mode == "b":
            return f"@plan.data[{operand.number}]"
        return f"@plan.data[{operand.number}] + {word} * {vector} * {operand.size}"

    holders = "".join(f"{holder(o)} @v{o.number}[{unroll}];\n" for o in loaded)
    load = "".join(f"@v{o.number}[@u].load({address(o, '@word')});\n" for o in loaded)
    offsets, walk = "", ""
    if not flat:
        offsets = "".join(f"uint32_t @offset{o.number}[{unroll}];\n" for o in writer.operands)
        walk = _walk(writer, form.dims)
    parameters = [f"const {o.value} {o.param.name}" for o in writer.inputs if o.param]
    parameters += [f"{o.value}& {o.param.name}" for o in writer.outputs if o.param]
    parameters += [] if form.index == "n" else ["const ptrdiff_t i"]
    if form.index == "l":
        index = f"@word * {vector} + @e"
    elif form.index == "o":
        index = "reinterpret_cast<ptrdiff_t>(" + address(writer.operands[-1], "@word") + ") + @e"
    else:
        index = ""
    values = [f"torch_ops::load_as<{o.value}>(@v{o.number}[@u][@e])" for o in writer.inputs]
    values += [f"@r{o.number}" for o in writer.outputs] + [index] * bool(index)
    results = "".join(
        f"torch_ops::Vector<{o.stored}, {vector}> @w{o.number};\n" for o in writer.outputs
    )
    starts = "".join(
        f"{o.value} @r{o.number} = "
        + (
            f"torch_ops::load_as<{o.value}>(@v{o.number}[@u][@e])"
            if form.load_outputs
            else f"{o.value}()"
        )
        + ";\n"
        for o in writer.outputs
    )
    keep = "".join(
        f"torch_ops::store_as(@w{o.number}[@e], @r{o.number});\n" for o in writer.outputs
    )
    store = "".join(f"@w{o.number}.store({address(o, '@word')});\n" for o in writer.outputs)
    tail = ""
    if flat and vector > 1:
        tail = _tail(writer, form)
    source = joined(
        *writer.head(["cuda.h"]),
        f"""{writer.plan(strided)}
extern "C" __global__ void __launch_bounds__({threads})
kernel(const __grid_constant__ Plan @plan) {{""",
        *writer.prologue(),
        f"const auto @element = [&]({', '.join(parameters)}) {{",
        *program.element(writer.types),
        f"""}};
const int64_t @words = @plan.size / {vector};
const int64_t @begin = int64_t(blockIdx.x) * {threads * unroll} + threadIdx.x;
{holders}{offsets}
#pragma unroll
for (int @u = 0; @u < {unroll}; ++@u) {{
  const int64_t @word = @begin + @u * {threads};
  if (@word < @words) {{
{walk}{load}  }}
}}
#pragma unroll
for (int @u = 0; @u < {unroll}; ++@u) {{
  const int64_t @word = @begin + @u * {threads};
  if (@word < @words) {{
    {results}
#pragma unroll
    for (int @e = 0; @e < {vector}; ++@e) {{
      {starts}@element({", ".join(values)});
      {keep}}}
    {store}}}
}}
{tail}""",
        *writer.epilogue(),
        "}",
    )
    return source, threads, unroll


def _walk(writer: _Writer, dims: int) -> str:
    """The offsets of a vector's operands, by its place on each axis."""
    lines = [f"@offset{o.number}[@u] = 0;" for o in writer.operands]
    lines.append("uint32_t rest = static_cast<uint32_t>(@word);")
    exact = dims <= 4
    lines.append("#pragma unroll" if exact else "#pragma unroll 1")
    bound = str(dims) if exact else "@plan.dims"
    last = f"d == {bound} - 1"
    lines += [
        f"for (int d = 0; d < {bound}; ++d) {{",
        f"  const uint32_t quotient = {last} ? 0 : @plan.sizes[d].divide(rest);",
        "  const uint32_t at = rest - quotient * @plan.sizes[d].divisor;",
        "  rest = quotient;",
    ]
    lines += [
        f"  @offset{o.number}[@u] += at * @plan.strides[d][{o.number}];" for o in writer.operands
    ]
    return "\n".join([*lines, "}\n"])


def _tail(writer: _Writer, form: Form) -> str:
    """The elements behind the last whole vector, one a thread."""
    at = f"(@words * {form.vector} + @begin)"
    lines = []
    values = []
    for o in (*writer.inputs, *writer.outputs):
        place = "" if o.mode == "b" else f" + {at} * {o.size}"
        pointer = f"reinterpret_cast<{o.stored}*>(@plan.data[{o.number}]{place})"
        if o.is_output:
            start = (
                f"torch_ops::load_as<{o.value}>(*{pointer})"
                if form.load_outputs
                else f"{o.value}()"
            )
            lines.append(f"  {o.value} @r{o.number} = {start};")
            values.append(f"@r{o.number}")
        else:
            values.append(f"torch_ops::load_as<{o.value}>(*{pointer})")
    if form.index == "l":
        values.append(at)
    elif form.index == "o":
        values.append(f"reinterpret_cast<ptrdiff_t>(@plan.data[{len(writer.operands) - 1}] + {at})")
    lines.append(f"  @element({', '.join(values)});")
    lines += [
        f"  torch_ops::store_as(*reinterpret_cast<{o.stored}*>(@plan.data[{o.number}] + {at} * "
        f"{o.size}), @r{o.number});"
        for o in writer.outputs
    ]
    body = "\n".join(lines)
    return f"if (@begin < @plan.size - @words * {form.vector}) {{\n{body}\n}}\n"
