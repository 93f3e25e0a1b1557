"""The source of an elementwise kernel for one form of call: dtypes, ranks and memory.

Its loops are templates: headers/elementwise/cuda.h and headers/elementwise/cpu.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_ops.jit.building.source import Source, UserText
from torch_ops.jit.generation.text import Arguments, cpp_bool, headers, joined, preamble_pieces
from torch_ops.jit.language.program import Pieces, Program, Types

# A block's threads, and the vectors or elements of each, whose loads are in flight together.
VECTOR_THREADS, VECTOR_UNROLL = 256, 1
STRIDED_THREADS, STRIDED_UNROLL = 128, 4


@dataclass(frozen=True)
class Form:
    """What src/jit/elementwise/ found out of a call; its code serves all calls of one form.

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


class _Writer:
    """The parts of the text that both kinds of processor have."""

    def __init__(self, program: Program, form: Form) -> None:
        self.program, self.form = program, form
        params = (*program.outputs, *program.inputs)
        self.types = Types.of(params, form.computed)
        self.arguments = Arguments(
            params,
            form.stored,
            form.raw,
            self.types,
            {param.name: self.types.name(param, program.depth) for param in params},
            len(program.outputs),
        )
        walked = len(self.arguments.operands)
        modes = form.modes or "c" * walked
        operands = [self.arguments.operand(n, modes[n]) for n in range(walked)]
        first = sum(not param.raw for param in program.outputs)
        self.outputs, self.inputs = operands[:first], operands[first:]
        # An operand more: on CUDA its addresses are the indices, on the CPU it has them.
        self.counter = walked if form.index == "o" else -1
        self.count = walked + (form.index == "o")

    def head(self, processor: str, more: str) -> Pieces:
        """What stands before the kernel, such as the struct that src/jit/elementwise/ fills."""
        dtypes = (*self.form.stored, *self.form.computed)
        loop = f"{processor}.h", f"elementwise/{processor}.h"
        plan = (
            "struct Plan {\n  int64_t size, total;\n"
            f"  char* data[{self.count}];\n{self.arguments.fields}{more}}};"
        )
        return [
            headers(*loop, dtypes, self.program.depth > 0) + self.program.type_aliases(self.types),
            plan,
            *preamble_pieces(self.program),
            ";",
        ]

    def body(self, loop: str, *more: str) -> Pieces:
        """The kernel's body: the snippet as a function of an element, and the loop over these."""
        arguments = self.arguments
        variables = [(p.name, arguments.values[p.name]) for p, _ in arguments.operands]
        first = len(self.outputs)
        params = [f"const {value} {name}" for name, value in variables[first:]]
        params += [f"{value}& {name}" for name, value in variables[:first]]
        params += ["const ptrdiff_t" if self.form.index == "n" else "const ptrdiff_t i"]
        call = [*more, "@element", _operands(self.inputs), _operands(self.outputs)]
        return [
            "\n".join(arguments.locals("total")),
            *_statement(self.program.loop_prep()),
            f"const auto @element = [&]({', '.join(params)}) TORCH_OPS_INLINE {{",
            *self.program.element(self.types),
            f"}};\n{loop}({', '.join(call)});",
            *_statement(self.program.after_loop()),
            "}",
        ]


def _operands(operands: Sequence[str]) -> str:
    return f"\n    torch_ops::Operands<{', '.join(operands)}>()"


def _statement(text: UserText) -> Pieces:
    return [text._replace(end=";")] if text.text.strip() else []


def host_source(program: Program, form: Form) -> Source:
    """C++ with a function ``run(plan, begin, end)`` over a range of a plan's elements."""
    writer = _Writer(program, form)
    # No element reads what another has written; state between elements is loop_prep's alone.
    independent = not program.snippet.loop_prep and not any(p.raw for p in program.outputs)
    loop = (
        f"torch_ops::for_each_element<{cpp_bool(form.load_outputs)}, {cpp_bool(independent)}, "
        f"{writer.counter}>"
    )
    return joined(
        *writer.head("cpu", ""),
        'extern "C" void run(const Plan& @plan, int64_t @begin, int64_t @end) {',
        *writer.body(loop, "@plan", "@begin", "@end"),
    )


def cuda_source(program: Program, form: Form) -> tuple[Source, int, int]:
    """CUDA C++ with a kernel named ``kernel``; threads of a block, and vectors of a thread."""
    writer = _Writer(program, form)
    flat = form.dims == 1 and "s" not in form.modes
    threads, unroll = (
        (VECTOR_THREADS, VECTOR_UNROLL)
        if flat or form.vector > 1
        else (STRIDED_THREADS, STRIDED_UNROLL)
    )
    walk = f"torch_ops::Walk<{0 if flat else form.dims}, {writer.count}>"
    loop = (
        f"torch_ops::for_each_element<{threads}, {unroll}, {form.vector}, "
        f"{cpp_bool(form.load_outputs)}, {writer.counter}>"
    )
    source = joined(
        *writer.head("cuda", "" if flat else f"  {walk} walk;\n"),
        f"""extern "C" __global__ void __launch_bounds__({threads})
kernel(const __grid_constant__ Plan @plan) {{""",
        *writer.body(loop, "@plan", f"{walk}()" if flat else "@plan.walk"),
    )
    return source, threads, unroll
