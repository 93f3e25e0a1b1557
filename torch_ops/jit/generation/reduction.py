"""The source of a reduction for one form of call: dtypes, ranks, numbers of axes.

Its loops are templates: headers/reduce/cuda.h and headers/reduce/cpu.h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from torch_ops.jit.building.source import Source, UserText
from torch_ops.jit.generation.text import Arguments, headers, joined, preamble_pieces
from torch_ops.jit.language.params import Param
from torch_ops.jit.language.program import C_TYPES, Pieces, Program, Types


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
    """What src/jit/reduction/ found out of a call.

    Attributes:
        stored: The dtypes in memory: the output, then inputs. None: a number.
        computed: The dtypes of the snippets' variables likewise.
        raw: Rank of each raw parameter, and whether it is contiguous.
        kept: Axes that the outputs have.
        reduced: Axes that are reduced.
        vector: 0: the reduced elements are what lies together. Else the outputs do; on CUDA, how
            many are one thread's.
        modes: How each operand lies then (headers/operands.h); on the CPU, each input. On CUDA the
            output is ``c`` if its elements can be stored as a vector, an input if a vector of it
            lies together. Without a vector, on CUDA: empty if elements are read one by one, else in
            words, of inputs that are ``c``; then the output is ``c`` if all rows are whole words.
    """

    stored: tuple[torch.dtype | None, ...]
    computed: tuple[torch.dtype, ...]
    raw: tuple[tuple[int, bool], ...]
    kept: int
    reduced: int
    vector: int = 0
    modes: str = ""


class _Writer:
    """The parts of the text that both kinds of processor have."""

    def __init__(self, reduction: Reduction, form: ReductionForm) -> None:
        self.reduction, self.form = reduction, form
        params = (reduction.output, *reduction.inputs)
        pairs = list(zip(params, form.computed, strict=True))
        values = {param.name: C_TYPES[dtype] for param, dtype in pairs}
        self.types = Types({param.type: dtype for param, dtype in reversed(pairs)})
        self.result_dtype = result_dtype(reduction, form)
        # Bools that are combined as they are vectorise only if they are read as such.
        bool_as = torch.bool if self.result_dtype == torch.bool else torch.uint8
        self.arguments = Arguments(params, form.stored, form.raw, self.types, values, 1, bool_as)
        self.result = C_TYPES[self.result_dtype]

    def source(self, processor: str, loops: str, modes: str, more: str, kernels: str) -> Source:
        """The plan that src/jit/reduction/ fills, the user's functions, and the kernels."""
        form, arguments, program = self.form, self.arguments, self.reduction.program
        aliases = "".join(
            f"using {letter} = {C_TYPES[dtype]};\n"
            for letter, dtype in self.types.by_type.items()
            if isinstance(letter, str)
        )
        preamble: Pieces = [UserText("preamble", self.reduction.preamble), ";"]
        if program is not None:
            aliases, preamble = program.type_aliases(self.types), preamble_pieces(program)
        count = len(arguments.operands)
        dtypes = (*form.stored, *form.computed, self.result_dtype)
        operands = [arguments.operand(n, mode) for n, mode in enumerate(modes or "c" * count)]
        loop = f"{processor}.h", f"reduce/{processor}.h"
        return joined(
            headers(*loop, dtypes, program is not None) + aliases,
            f"""struct Plan {{
  int64_t outputs, elements, part, parts;
  {self.result}* partials;
  char* data[{count}];
{arguments.fields}{more}
  torch_ops::Axis<{count}> kept[{max(form.kept, 1)}], reduced[{max(form.reduced, 1)}];
}};""",
            *preamble,
            f"""struct @Functions {{
using @Result = {self.result};
const Plan& @plan;
const torch_ops::Indexer _in_ind{{@plan.outputs * @plan.elements}};
const torch_ops::Indexer _out_ind{{@plan.outputs}};""",
            *self._functions(),
            f"""using @Loops = torch_ops::{loops}@Functions, {form.kept}, {form.reduced},
    {", ".join(operands)}>;
{kernels}""",
        )

    def _functions(self) -> Pieces:
        """What the snippets name, and the snippets as functions: see headers/reduce/reduce.h.

        Their bodies stand outside of the struct: in there compilers read them only at its end, and
        then report some errors at other lines.
        """
        reduction, arguments, result = self.reduction, self.arguments, self.result
        # Copies, which no store to an output can change: the compiler need not read them again.
        fields = [
            f"const {arguments.values[p.name]} {p.name} = @plan.@{p.name};"
            for p in arguments.numbers
        ]
        fields += [
            f"const decltype(Plan::@{p.name})& {p.name} = @plan.@{p.name};" for p in arguments.raws
        ]
        (output, _), *inputs = arguments.operands
        values = ", ".join(f"const {arguments.values[p.name]} {p.name}" for p, _ in inputs)
        mapped = _returned(UserText("map_expr", reduction.map_expr))
        if reduction.program is not None:
            element = reduction.program.element(self.types)
            mapped = [f"{result} {output.name}{{}};", *element, f"return {output.name};"]
        empty: Pieces = [f"{result} any;\nreturn any;"]
        if reduction.identity is not None:
            empty = _returned(UserText("identity", reduction.identity))
        stored = f"{arguments.values[output.name]}& {output.name}, const {result} a"
        functions: list[tuple[str, str, Pieces]] = [
            (result, f"@map({values})", mapped),
            (
                result,
                f"@combine(const {result} a, const {result} b)",
                _returned(UserText("reduce_expr", reduction.reduce_expr)),
            ),
            (
                "void",
                f"@post_map({stored})",
                [UserText("post_map_expr", reduction.post_map_expr, end=";")],
            ),
            (result, "@empty()", empty),
        ]
        fields += [f"TORCH_OPS_FUNCTION {type} {name} const;" for type, name, _ in functions]
        pieces: Pieces = ["\n".join(fields) + "\n};"]
        for type, name, body in functions:
            pieces += [f"TORCH_OPS_FUNCTION {type} @Functions::{name} const {{", *body, "}"]
        return pieces


def _returned(text: UserText) -> Pieces:
    return ["return static_cast<@Result>(", text._replace(end=");")]


def result_dtype(reduction: Reduction, form: ReductionForm) -> torch.dtype:
    """The dtype of what is combined."""
    if isinstance(reduction.reduce_type, torch.dtype):
        return reduction.reduce_type
    params = (reduction.output, *reduction.inputs)
    kinds = [reduction.reduce_type is None or p.type == reduction.reduce_type for p in params]
    return form.computed[kinds.index(True)]


def host_source(reduction: Reduction, form: ReductionForm) -> Source:
    """C++ with ``partial`` over a range of (output, part) and ``finish`` over one of outputs."""
    loop, modes, more = ("columns", f"c{form.modes}", "int64_t width;")
    if form.vector == 0:
        loop, modes, more = ("rows", "", "")
    kernels = "\n".join(
        f"""extern "C" void {name}(const Plan& @plan, int64_t @begin, int64_t @end) {{
  @Loops::{name_of_loop}(@plan, @begin, @end, @Functions{{@plan}});
}}"""
        for name, name_of_loop in (("partial", loop), ("finish", "finish"))
    )
    return _Writer(reduction, form).source("cpu", "HostReduction<", modes, more, kernels)


_ROWS = {"": "rows", "c": "word_rows", "s": "ragged_rows"}


def cuda_source(reduction: Reduction, form: ReductionForm) -> Source:
    """CUDA C++ with the kernels ``partial`` and ``finish``."""
    loop, vector, more = ("columns", form.vector, "int64_t across, lanes, half, finish_lanes;")
    if form.vector == 0:
        params = zip(form.stored[1:], reduction.inputs, strict=True)
        walked = [dtype for dtype, p in params if dtype is not None and not p.raw]
        modes = form.modes[1:] or "s" * len(walked)
        sizes = [d.itemsize for d, mode in zip(walked, modes, strict=True) if mode != "b"]
        loop, vector, more = ("rows", min(16 // min(sizes, default=16), 8), "int64_t lanes;")
    partial = loop if form.vector else _ROWS[form.modes[:1]]
    kernels = "\n".join(
        f"""extern "C" __global__ void __launch_bounds__(256)
{name}(const __grid_constant__ Plan @plan) {{
  @Loops::{name_of_loop}(@plan, @Functions{{@plan}});
}}"""
        for name, name_of_loop in (("partial", partial), ("finish", f"finish_{loop}"))
    )
    loops = f"CudaReduction<{vector}, "
    return _Writer(reduction, form).source("cuda", loops, form.modes, more, kernels)
