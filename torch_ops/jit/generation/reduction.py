"""The source of a reduction for one form of call: dtypes, ranks, numbers of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from torch_ops.jit.building.source import Source, UserText
from torch_ops.jit.generation.elementwise import (
    STORED,
    header,
    joined,
    more_headers,
    preamble_pieces,
)
from torch_ops.jit.language.params import Param
from torch_ops.jit.language.program import C_TYPES, Pieces, Program, Types

HOST_LANES = 32  # running results of a thread, so that a loop need not wait for each sum


@dataclass(frozen=True)
class Reduction:
    """What the user wrote."""

    name: str
    inputs: tuple[Param, ...]
    output: Param
    map_expr: str
    reduce_expr: str
    post_map_expr: str
    identity: str | None
    preamble: str
    program: Program | None = None  # what map_expr stands for where it is no text of the user
    reduce_type: torch.dtype | str | None = None  # None: that of the output

    @staticmethod
    def sum_of(program: Program) -> Reduction:
        """The sum of what a program with one output computes: a broadcast input's gradient.

        A sum of 16-bit values is one of floats, and is rounded where it is stored.
        """
        output = replace(program.outputs[0], wide=False)
        return Reduction(
            program.name,
            program.inputs,
            output,
            "",
            "a + b",
            f"{output.name} = a",
            "0",
            program.snippet.preamble,
            program,
        )


@dataclass(frozen=True)
class ReductionForm:
    """What src/jit/reduction.cpp found out of a call.

    Attributes:
        stored: The dtypes in memory: the output, then inputs. None: a number.
        computed: The dtypes of the snippets' variables likewise.
        raw: Rank of each raw parameter, and whether it is contiguous.
        kept: Axes that the outputs have.
        reduced: Axes that are reduced.
        vector: 0: the reduced elements are what lies together. Else the outputs do; on CUDA, how
            many are one thread's.
        modes: How each operand lies then: see ``columns_source`` of ``reduction_cuda`` and
            ``reduction_host``.
    """

    stored: tuple[torch.dtype | None, ...]
    computed: tuple[torch.dtype, ...]
    raw: tuple[tuple[int, bool], ...]
    kept: int
    reduced: int
    vector: int = 0
    modes: str = ""


class Writer:
    """The parts of the text that both kinds of processor have."""

    def __init__(self, reduction: Reduction, form: ReductionForm) -> None:
        self.reduction, self.form = reduction, form
        params = (reduction.output, *reduction.inputs)
        self.value = {
            param.name: C_TYPES[dtype] for param, dtype in zip(params, form.computed, strict=True)
        }
        self.types = Types(
            {
                param.type: dtype
                for param, dtype in reversed(list(zip(params, form.computed, strict=True)))
            }
        )
        self.result_dtype = form.computed[0]
        if isinstance(reduction.reduce_type, torch.dtype):
            self.result_dtype = reduction.reduce_type
        elif reduction.reduce_type is not None:
            self.result_dtype = self.types.by_type[reduction.reduce_type]
        self.result = C_TYPES[self.result_dtype]
        self.numbers: list[Param] = []
        self.raws: list[tuple[Param, str, tuple[int, bool]]] = []
        self.operands: list[tuple[Param, str]] = []
        self.sizes = {
            param.name: dtype.itemsize
            for param, dtype in zip(params, form.stored, strict=True)
            if dtype is not None
        }
        ranks = iter(form.raw)
        for param, dtype in zip(params, form.stored, strict=True):
            if dtype is None:
                self.numbers.append(param)
            elif param.raw:
                self.raws.append((param, STORED[dtype], next(ranks)))
            else:
                self.operands.append((param, STORED[dtype]))
        self.count = len(self.operands)

    def head(self, headers: Sequence[str], more: str) -> Pieces:
        program = self.reduction.program
        if program is None:
            aliases = "".join(
                f"using {name} = {C_TYPES[dtype]};\n"
                for name, dtype in self.types.by_type.items()
                if isinstance(name, str)
            )
        else:
            aliases = program.type_aliases(self.types)
        numbers = "".join(f"  alignas(8) {self.value[p.name]} @{p.name};\n" for p in self.numbers)
        raws = "".join(
            f"  torch_ops::Raw<const {stored}, {self.value[p.name]}, {rank}, "
            f"{str(contiguous).lower()}> @{p.name};\n"
            for p, stored, (rank, contiguous) in self.raws
        )
        axes = "".join(
            f"  torch_ops::Axis<{self.count}> {name}[{number}];\n"
            for name, number in (("kept", self.form.kept), ("reduced", self.form.reduced))
            if number
        )
        plan = (
            "struct Plan {\n  int64_t outputs, elements, part, parts;\n"
            f"  {self.result}* partials;\n  char* data[{self.count}];\n"
            f"{numbers}{raws}{more}{axes}}};"
        )
        dtypes = (*self.form.stored, *self.form.computed, self.result_dtype)
        names = ["scalar.h", *headers, "reduce.h", *more_headers(dtypes, program is not None)]
        user = UserText("preamble", self.reduction.preamble)
        preamble = preamble_pieces(program) if program else [user] * bool(user.text.strip())
        return ["".join(header(name) for name in names) + aliases, *preamble, plan]

    def functions(self) -> Pieces:
        """The snippets as functions, and what they name."""
        lines = [
            "const torch_ops::Indexer _in_ind{@plan.outputs * @plan.elements};",
            "const torch_ops::Indexer _out_ind{@plan.outputs};",
            f"using @Result = {self.result};",
        ]
        # Copies, which no store to an output can change: the compiler need not read them again.
        lines += [f"const auto {p.name} = @plan.@{p.name};" for p in self.numbers]
        lines += [f"const auto& {p.name} = @plan.@{p.name};" for p, _, _ in self.raws]
        inputs = ", ".join(f"const {self.value[p.name]} {p.name}" for p, _ in self.operands[1:])
        output, stored = self.operands[0]
        return [
            "\n".join(lines) + f"\nconst auto @map = [&]({inputs}) -> @Result {{\n",
            *self._mapped_value(),
            "};\nconst auto @combine = [&](const @Result a, const @Result b) -> @Result {\n"
            "return static_cast<@Result>(",
            UserText("reduce_expr", self.reduction.reduce_expr),
            f");\n}};\nconst auto @store = [&](char* @to, const @Result a) {{\n"
            f"{self.value[output.name]} {output.name}{{}};",
            UserText("post_map_expr", self.reduction.post_map_expr),
            f";\ntorch_ops::store_as(*reinterpret_cast<{stored}*>(@to), {output.name});\n}};",
        ]

    def _mapped_value(self) -> Pieces:
        program = self.reduction.program
        if program is None:
            text = UserText("map_expr", self.reduction.map_expr)
            return ["return static_cast<@Result>(", text, ");"]
        output = self.reduction.output.name
        return [f"@Result {output}{{}};", *program.element(self.types), f"return {output};"]

    def identity(self) -> Pieces:
        """Of no elements."""
        if self.reduction.identity is None:
            return ["@Result @empty{};"]
        return [
            "const @Result @empty = static_cast<@Result>(",
            UserText("identity", self.reduction.identity),
            ");",
        ]

    def mapped(self, pointers: Sequence[str]) -> str:
        values = [
            f"torch_ops::load_as<{self.value[p.name]}>(*reinterpret_cast<const {stored}*>({at}))"
            for (p, stored), at in zip(self.operands[1:], pointers, strict=True)
        ]
        return f"@map({', '.join(values)})"

    def is_wide(self, pointers: str, vector: int) -> str:
        """Do words of several elements serve: are they neighbours, aligned, and none left over?"""
        if self.form.reduced == 0 or vector == 1 or self.count == 1:
            return "false"
        terms = [
            f"(@first | @last | @plan.reduced[0].size) % {vector} == 0",
        ]
        for k, (param, stored) in enumerate(self.operands):
            if k == 0:
                continue
            terms.append(f"@plan.reduced[0].strides[{k}] == sizeof({stored})")
            addresses = [f"reinterpret_cast<int64_t>({pointers}[{k}])"]
            addresses += [f"@plan.reduced[{d}].strides[{k}]" for d in range(1, self.form.reduced)]
            word = min(16, vector * self.sizes[param.name])
            terms.append(f"({' | '.join(addresses)}) % {word} == 0")
        return " && ".join(terms)

    def host_part(self) -> str:
        """On the CPU: the elements of part ``number``, and where ``output`` has its operands."""
        return f"""int64_t @first = @number * @plan.part;
  const int64_t @last =
      @first + @plan.part < @plan.elements ? @first + @plan.part : @plan.elements;
  char* @start[{self.count}];
  char* @at[{self.count}];
  for (int k = 0; k < {self.count}; ++k) @at[k] = @plan.data[k];
  {self.moved("kept", "@output")}
  for (int k = 0; k < {self.count}; ++k) @start[k] = @at[k];"""

    def moved(self, axes: str, index: str) -> str:
        number = self.form.kept if axes == "kept" else self.form.reduced
        return f"torch_ops::move<{number}>(@plan.{axes}, {index}, @at);" if number else ""


def host_source(reduction: Reduction, form: ReductionForm) -> Source:
    """C++ with ``partial`` over a range of (output, part) and ``finish`` over one of outputs."""
    writer = Writer(reduction, form)
    count = writer.count
    copy = f"for (int k = 0; k < {count}; ++k) @at[k] = "
    pointers = "\n".join(
        f"const char* const @p{k} = @at[{k}]; const int64_t @s{k} = @flat.value ? "
        f"int64_t(sizeof({stored})) : {f'@plan.reduced[0].strides[{k}]' if form.reduced else '0'};"
        for k, (_, stored) in enumerate(writer.operands)
        if k
    )
    is_flat = " && ".join(
        f"@plan.reduced[0].strides[{k}] == sizeof({stored})"
        for k, (_, stored) in enumerate(writer.operands)
        if k and form.reduced
    )
    element = writer.mapped([f"@p{k} + (@j + @k) * @s{k}" for k in range(1, count)])
    inner = "@plan.reduced[0].size" if form.reduced else "1"
    return joined(
        *writer.head(["host.h"], ""),
        'extern "C" void partial(const Plan& @plan, int64_t @begin, int64_t @end) {',
        *writer.functions(),
        *writer.identity(),
        f"""const bool @is_flat = {is_flat or "true"};
for (; @begin < @end; ++@begin) {{
  const int64_t @output = @begin / @plan.parts, @number = @begin % @plan.parts;
  {writer.host_part()}
  @Result @running[{HOST_LANES}];
  int @filled = 0;
  const auto @row = [&](auto @flat, int64_t @length) {{
    {pointers}
    int64_t @j = 0;
    constexpr int @k0 = 0;
    for (; @filled < {HOST_LANES} && @j < @length; ++@j) {{
      constexpr int @k = @k0;
      @running[@filled++] = {element};
    }}
    for (; @j + {HOST_LANES} <= @length; @j += {HOST_LANES}) {{
      for (int @k = 0; @k < {HOST_LANES}; ++@k) {{
        @running[@k] = @combine(@running[@k], {element});
      }}
    }}
    for (int @k = 0; @j + @k < @length; ++@k) {{
      @running[@k] = @combine(@running[@k], {element});
    }}
  }};
  while (@first < @last) {{
    {copy}@start[k];
    {writer.moved("reduced", "@first")}
    const int64_t @left = {inner} - @first % {inner};
    const int64_t @length = @left < @last - @first ? @left : @last - @first;
    if (@is_flat) @row(torch_ops::Flat<true>(), @length);
    else @row(torch_ops::Flat<false>(), @length);
    @first += @length;
  }}
  @Result @sum = @filled ? @running[0] : @empty;
  for (int k = 1; k < @filled; ++k) @sum = @combine(@sum, @running[k]);
  if (@plan.parts == 1) @store(@start[0], @sum);
  else @plan.partials[@begin] = @sum;
}}
}}""",
        *host_finish(writer),
    )


def host_finish(writer: Writer) -> Pieces:
    """The function that combines the parts of each output."""
    return [
        'extern "C" void finish(const Plan& @plan, int64_t @begin, int64_t @end) {',
        *writer.functions(),
        f"""for (; @begin < @end; ++@begin) {{
  char* @at[{writer.count}];
  for (int k = 0; k < {writer.count}; ++k) @at[k] = @plan.data[k];
  {writer.moved("kept", "@begin")}
  // Two and two: the error of a sum grows with the logarithm of the number of parts.
  @Result* const @parts = @plan.partials + @begin * @plan.parts;
  for (int64_t step = 1; step < @plan.parts; step *= 2) {{
    for (int64_t k = 0; k + step < @plan.parts; k += 2 * step) {{
      @parts[k] = @combine(@parts[k], @parts[k + step]);
    }}
  }}
  @store(@at[0], @parts[0]);
}}
}}""",
    ]
