"""The source of a reduction for one form of call: dtypes, ranks, numbers of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_ops.jit._codegen import STORED, header, joined
from torch_ops.jit._params import Param
from torch_ops.jit._program import C_TYPES, Pieces, Program, Types
from torch_ops.jit._source import Source, UserText

THREADS = 256  # a block; src/jit/reduction.cpp has it too
# Loads of a thread in flight: of single elements, and of words of up to 16 bytes.
UNROLL, WIDE_UNROLL = 16, 4
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

    @staticmethod
    def sum_of(program: Program) -> Reduction:
        """The sum of what a program with one output computes: a broadcast input's gradient."""
        output = program.outputs[0]
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
    """

    stored: tuple[torch.dtype | None, ...]
    computed: tuple[torch.dtype, ...]
    raw: tuple[tuple[int, bool], ...]
    kept: int
    reduced: int


class _Writer:
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
        self.result = self.value[reduction.output.name]
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
        names = ["scalar.h", *headers, "reduce.h", *(["dual.h"] if program else [])]
        preamble = self.reduction.preamble
        return [
            "".join(header(name) for name in names) + aliases,
            *([UserText("preamble", preamble)] if preamble.strip() else []),
            plan,
        ]

    def functions(self) -> Pieces:
        """The snippets as functions, and what they name."""
        lines = [
            "const torch_ops::Indexer _in_ind{@plan.outputs * @plan.elements};",
            "const torch_ops::Indexer _out_ind{@plan.outputs};",
            f"using @Result = {self.result};",
        ]
        lines += [f"const auto& {p.name} = @plan.@{p.name};" for p in self.numbers]
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
            "@along",
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

    def moved(self, axes: str, index: str) -> str:
        number = self.form.kept if axes == "kept" else self.form.reduced
        return f"torch_ops::move<{number}>(@plan.{axes}, {index}, @at);" if number else ""


def host_source(reduction: Reduction, form: ReductionForm) -> Source:
    """C++ with ``partial`` over a range of (output, part) and ``finish`` over one of outputs."""
    writer = _Writer(reduction, form)
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
  int64_t @first = @number * @plan.part;
  const int64_t @last =
      @first + @plan.part < @plan.elements ? @first + @plan.part : @plan.elements;
  char* @start[{count}];
  char* @at[{count}];
  {copy}@plan.data[k];
  {writer.moved("kept", "@output")}
  for (int k = 0; k < {count}; ++k) @start[k] = @at[k];
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
}}
extern "C" void finish(const Plan& @plan, int64_t @begin, int64_t @end) {{""",
        *writer.functions(),
        f"""for (; @begin < @end; ++@begin) {{
  char* @at[{count}];
  {copy}@plan.data[k];
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
    )


# The results of a group of threads, in shared memory, become that of its first one.
_TREE = """for (int @step = @lanes / 2; @step > 0; @step /= 2) {
  __syncthreads();
  if (@lane < @step && @lane + @step < @valid) {
    @shared[@slot(@lane)] = @combine(@shared[@slot(@lane)], @shared[@slot(@lane + @step)]);
  }
}
__syncthreads();
"""


def cuda_source(reduction: Reduction, form: ReductionForm) -> Source:
    """CUDA C++ with the kernels ``partial`` and ``finish``."""
    writer = _Writer(reduction, form)
    count = writer.count
    copy = f"for (int k = 0; k < {count}; ++k) @at[k] = "
    element = writer.mapped([f"@at[{k}]" for k in range(1, count)])
    read = f"""[&](int64_t @element) -> @Result {{
      char* @at[{count}];
      {copy}@start[k];
      {writer.moved("reduced", "@element")}
      return {element};
    }}"""
    inputs = list(enumerate(writer.operands))[1:]
    sizes = [writer.sizes[param.name] for _, (param, _) in inputs]
    vector = min(16 // min(sizes), 8) if sizes else 1
    holders = "\n".join(
        f"torch_ops::Vector<{stored}, {vector}> @v{k}[{WIDE_UNROLL}];" for k, (_, stored) in inputs
    )
    loads = " ".join(f"@v{k}[u].load(@at[{k}]);" for k, _ in inputs)
    wide_value = writer.mapped([f"&@v{k}[u][e]" for k, _ in inputs])
    return joined(
        *writer.head(["cuda.h"], "  int64_t lanes, along;\n"),
        f"""extern "C" __global__ void __launch_bounds__({THREADS})
partial(const __grid_constant__ Plan @plan) {{""",
        *writer.functions(),
        *writer.identity(),
        f"""__shared__ @Result @shared[{THREADS}];
const int @lanes = static_cast<int>(@plan.lanes), @thread = threadIdx.x;
const int @per_block = {THREADS} / @lanes;
const bool @along = @plan.along != 0;
const int @lane = @along ? @thread % @lanes : @thread / @per_block;
const int @own = @along ? @thread / @lanes : @thread % @per_block;
const auto @slot = [&](int lane) {{
  return @along ? @own * @lanes + lane : lane * @per_block + @own;
}};
const int64_t @first = int64_t(blockIdx.y) * @plan.part;
const int64_t @last = @first + @plan.part < @plan.elements ? @first + @plan.part : @plan.elements;
for (int64_t @block = int64_t(blockIdx.x) * @per_block; @block < @plan.outputs;
     @block += int64_t(gridDim.x) * @per_block) {{
  const int64_t @output = @block + @own;
  int64_t @valid = @last - @first;
  char* @start[{count}];
  @Result @sum{{}};
  if (@output < @plan.outputs) {{
    char* @at[{count}];
    {copy}@plan.data[k];
    {writer.moved("kept", "@output")}
    for (int k = 0; k < {count}; ++k) @start[k] = @at[k];
    const auto @read = {read};
    int64_t @element = @first + @lane;
    if ({writer.is_wide("@start", vector)}) {{
      // Neighbouring elements in words of up to 16 bytes, {WIDE_UNROLL} words in flight.
      @element = @first / {vector} + @lane;
      const int64_t @end = @last / {vector};
      @valid = @end - @first / {vector};
      bool @begun = false;
      for (; @element < @end; @element += {WIDE_UNROLL} * @lanes) {{
        {holders}
#pragma unroll
        for (int u = 0; u < {WIDE_UNROLL}; ++u) {{
          const int64_t @word = @element + u * @lanes;
          if (@word < @end) {{
            char* @at[{count}];
            {copy}@start[k];
            {writer.moved("reduced", f"@word * {vector}")}
            {loads}
          }}
        }}
#pragma unroll
        for (int u = 0; u < {WIDE_UNROLL}; ++u) {{
          if (@element + u * @lanes < @end) {{
#pragma unroll
            for (int e = 0; e < {vector}; ++e) {{
              const @Result @value = {wide_value};
              @sum = @begun ? @combine(@sum, @value) : @value;
              @begun = true;
            }}
          }}
        }}
      }}
      if (!@begun) @sum = @empty;
    }} else {{
      if (@element < @last) {{
        @sum = @read(@element);
        @element += @lanes;
      }} else {{
        @sum = @empty;
      }}
      for (; @element + {UNROLL - 1} * @lanes < @last; @element += {UNROLL} * @lanes) {{
        @Result @several[{UNROLL}];
#pragma unroll
        for (int k = 0; k < {UNROLL}; ++k) @several[k] = @read(@element + k * @lanes);
#pragma unroll
        for (int k = 0; k < {UNROLL}; ++k) @sum = @combine(@sum, @several[k]);
      }}
      for (; @element < @last; @element += @lanes) @sum = @combine(@sum, @read(@element));
    }}
  }}
  @shared[@thread] = @sum;
  {_TREE}  if (@lane == 0 && @output < @plan.outputs) {{
    if (@plan.parts == 1) @store(@start[0], @shared[@slot(0)]);
    else @plan.partials[@output * @plan.parts + blockIdx.y] = @shared[@slot(0)];
  }}
  __syncthreads();
}}
}}
extern "C" __global__ void __launch_bounds__({THREADS})
finish(const __grid_constant__ Plan @plan) {{""",
        *writer.functions(),
        f"""__shared__ @Result @shared[{THREADS}];
constexpr int @lanes = {THREADS};
const int @lane = threadIdx.x;
const int64_t @valid = @plan.parts;
const auto @slot = [](int lane) {{ return lane; }};
for (int64_t @output = blockIdx.x; @output < @plan.outputs; @output += gridDim.x) {{
  const @Result* const @parts = @plan.partials + @output * @plan.parts;
  @Result @sum{{}};
  if (@lane < @valid) @sum = @parts[@lane];
  for (int64_t k = @lane + @lanes; k < @valid; k += @lanes) @sum = @combine(@sum, @parts[k]);
  @shared[@lane] = @sum;
  {_TREE}  if (@lane == 0) {{
    char* @at[{count}];
    {copy}@plan.data[k];
    {writer.moved("kept", "@output")}
    @store(@at[0], @shared[0]);
  }}
  __syncthreads();
}}
}}""",
    )
