"""The source of a pass of an indexed kernel over its entries.

Its loops are templates: headers/indexed/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from torch_ops.jit.building.source import Source
from torch_ops.jit.generation.indexed_tuning import H200, IndexedTuning
from torch_ops.jit.generation.text import (
    STORED,
    Arguments,
    cpp_bool,
    headers,
    joined,
    preamble_pieces,
)
from torch_ops.jit.language.program import Pieces, Program, Types

# Of what an output's kind is in headers/indexed/operands.h: those that are reduced to rows.
_ROW_KINDS, _BEST_KINDS = "smxn", "xn"


@dataclass(frozen=True)
class PassForm:
    """What src/jit/indexed/run.cpp found out of a pass; its code serves all passes of one form.

    Attributes:
        stored: The dtypes in memory: outputs, then inputs. None: a number.
        computed: The dtypes of the snippet's variables likewise.
        raw: Rank of each raw input, and whether it is contiguous.
        modes: Of each input that is walked: contiguous, broadcast or strided along a vector.
        by: Which row of it belongs to an entry: an index, or one of headers/indexed/operands.h.
        kinds: What becomes of each output there.
        sources: Where each index is read there.
        walk: Entries of rows by an order, ``r``, or of equal ones, ``u``; or each by
            itself, ``e``.
        is_wide: The order is of int64.
        is_large: So are entries and rows.
        is_ordered: There is an order.
        is_batched: Entries are counted over several batches.
        kept: Axes of the features that the outputs have.
        summed: Axes that they are summed over.
        vector: Features that lie together, of a worker.
        lanes: Rows have so few vectors that lanes share their entries.
        is_full: Vectors divide the features.
        sums_inner: Vectors lie along a summed axis.
        together: Neighbours in a warp that sum an output for each entry; 0: none do.
    """

    stored: tuple[torch.dtype | None, ...]
    computed: tuple[torch.dtype, ...]
    raw: tuple[tuple[int, bool], ...]
    modes: str
    by: tuple[int, ...]
    kinds: str
    sources: str
    walk: str
    is_wide: bool
    is_large: bool
    is_ordered: bool
    is_batched: bool
    kept: int
    summed: int
    vector: int
    is_full: bool
    sums_inner: bool
    lanes: bool = False
    together: int = 0


class _Writer:
    """The parts of the text that both kinds of processor have."""

    def __init__(self, program: Program, form: PassForm, unroll: int) -> None:
        self.program, self.form = program, form
        params = (*program.outputs, *program.inputs)
        self.types = Types.of(params, form.computed)
        values = {param.name: self.types.name(param, program.depth) for param in params}
        count = len(program.outputs)
        # Outputs are never raw, and are counted apart.
        self.arguments = Arguments(
            program.inputs, form.stored[count:], form.raw, self.types, values, 0
        )
        self.values = values
        inputs = [
            f"torch_ops::Input<{number}, {stored}, {values[param.name]}, '{mode}', {by}>"
            for number, ((param, stored), mode, by) in enumerate(
                zip(self.arguments.operands, form.modes, form.by, strict=True)
            )
        ]
        outputs = [
            f"torch_ops::Output<{number}, {STORED[_known(dtype)]}, {values[param.name]}, '{kind}'>"
            for number, (param, dtype, kind) in enumerate(
                zip(program.outputs, form.stored[:count], form.kinds, strict=True)
            )
        ]
        indices = [
            f"torch_ops::Index<{number}, '{source}'>" for number, source in enumerate(form.sources)
        ]
        self.inputs = len(inputs)
        flags = [form.vector, unroll, cpp_bool(form.is_full), cpp_bool(form.sums_inner)]
        flags += [f"'{form.walk}'", cpp_bool(form.is_ordered)]
        flags += [cpp_bool(form.lanes or form.sums_inner), cpp_bool(form.is_batched)]
        flags += [form.kept, form.summed, form.together]
        flags += [f"int{64 if wide else 32}_t" for wide in (form.is_wide, form.is_large)]
        self.template = (
            f"torch_ops::IndexedPass<{', '.join(map(str, flags))},\n"
            f"    torch_ops::Operands<{', '.join(inputs)}>,\n"
            f"    torch_ops::Operands<{', '.join(outputs)}>,\n"
            f"    torch_ops::Indices<{', '.join(indices)}>>"
        )

    def head(self, processor: str, partial_bytes: int, more: str) -> Pieces:
        """What stands before the kernels, such as the struct that src/jit/indexed/run.cpp fills."""
        form = self.form
        dtypes = (*form.stored, *form.computed)
        loops = headers(f"indexed/{processor}.h", "indexed/pass.h", dtypes, self.program.depth > 0)
        some, outs, ids = max(self.inputs, 1), len(self.program.outputs), len(form.sources)
        id_type = f"const int{64 if form.is_wide else 32}_t*"
        axis = f"torch_ops::FeatureAxis<{self.inputs}>"
        plan = f"""struct Plan {{
  static constexpr int64_t partial_bytes = {partial_bytes};
  int64_t rows, positions, batch_entries, items, slots, most, words, lanes;
  int64_t row_length, row_step, entry_step, kept_size, summed_size;
  {id_type} order;
  {id_type} offsets;
  {id_type} row_of;
  char* partials;
  int64_t* bad;
  const void* index[{ids}];
  int64_t sizes[{ids}];
  char* outs[{outs}];
  char* winners[{outs}];
  char* data[{some}];
  int64_t row_strides[{some}];
  {axis} kept[{max(form.kept, 1)}], summed[{max(form.summed, 1)}];
{self.arguments.fields}{more}}};
using @Pass = {self.template};"""
        return [
            loops + self.program.type_aliases(self.types),
            plan,
            *preamble_pieces(self.program),
            ";",
        ]

    def element(self) -> Pieces:
        """The snippet as a function of an entry's values at one place of the features."""
        arguments = self.arguments
        params = [f"const {self.values[p.name]} {p.name}" for p, _ in arguments.operands]
        params += [f"{self.values[p.name]}& {p.name}" for p in self.program.outputs]
        params.append("const ptrdiff_t i")
        return [
            "\n".join([*arguments.locals("positions"), "(void)_ind;"]),
            f"const auto @element = [&]({', '.join(params)}) TORCH_OPS_INLINE {{\n(void)i;",
            *self.program.element(self.types),
            "};",
        ]


def _known(dtype: torch.dtype | None) -> torch.dtype:
    assert dtype is not None
    return dtype


def partial_bytes(form: PassForm) -> int:
    """Bytes at most of what is made of a part of a row: AllReduced in the headers."""
    total = 0
    for kind, dtype in zip(form.kinds, form.computed, strict=False):
        if kind in _ROW_KINDS:
            size = 4 if dtype.is_floating_point and dtype.itemsize == 2 else dtype.itemsize
            total += _up(form.vector * size) + (_up(8 * form.vector) if kind in _BEST_KINDS else 0)
    return max(total, 8)


def _up(size: int) -> int:
    return (size + 7) // 8 * 8


def host_source(program: Program, form: PassForm) -> Source:
    """C++ with a function ``run(plan, what, begin, end)`` over a range of items."""
    # Lanes are a GPU's: with them, few features and many would be two kernels.
    writer = _Writer(program, replace(form, lanes=False), 1)
    body = (
        "torch_ops::HostPass<@Pass>::entries(@plan, @begin, @end, @element);"
        if form.walk == "e"
        else """if (@what == 0) torch_ops::HostPass<@Pass>::reduce(@plan, @begin, @end, @element);
  if (@what == 1) torch_ops::HostPass<@Pass>::join(@plan, @begin, @end);"""
    )
    return joined(
        # g++ does not vectorise a loop that it has unrolled, which pays for very short ones alone.
        "#define TORCH_OPS_NO_UNROLLING\n" if form.is_full and form.vector % 4 == 0 else "",
        *writer.head("cpu", partial_bytes(form), ""),
        'extern "C" void run(const Plan& @plan, int64_t @what, int64_t @begin, int64_t @end) {\n'
        "(void)@what;",
        *writer.element(),
        f"{body}\n}}",
    )


def cuda_source(
    program: Program, form: PassForm, numbers: IndexedTuning = H200
) -> tuple[Source, int]:
    """CUDA C++ with the kernels ``run`` and ``join``; entries that a worker has in flight."""
    unroll = _unroll(program, form, numbers)
    bounds = f"{numbers.threads}, {numbers.blocks}" if numbers.blocks else numbers.threads
    writer = _Writer(program, form, unroll)
    loop = "entries" if form.walk == "e" else "reduce"
    join = (
        ""
        if form.walk == "e"
        else """extern "C" __global__ void __launch_bounds__(256)
join(const __grid_constant__ Plan @plan) { torch_ops::CudaPass<@Pass>::join(@plan); }"""
    )
    sites = f"  torch_ops::IndexErrorSite sites[{len(form.sources)}];\n"
    source = joined(
        *writer.head("cuda", partial_bytes(form), sites),
        f"""extern "C" __global__ void __launch_bounds__({bounds})
run(const __grid_constant__ Plan @plan) {{""",
        *writer.element(),
        f"torch_ops::CudaPass<@Pass>::{loop}(@plan, @element);\n}}\n{join}",
    )
    return source, unroll


def _unroll(program: Program, form: PassForm, numbers: IndexedTuning) -> int:
    """So many entries in flight that memory is kept busy, and not more than registers hold."""
    operands = [
        dtype
        for param, dtype in zip(program.inputs, form.stored[len(program.outputs) :], strict=True)
        if dtype is not None and not param.raw
    ]
    moved = sum(
        dtype.itemsize * (1 if mode == "b" else form.vector)
        for dtype, mode, by in zip(operands, form.modes, form.by, strict=True)
        if by not in (-2, -3)
    )
    # What takes registers of its own: dual numbers of dual numbers, and the entries of extremes.
    more = max(program.depth - 1, 0) + any(kind in _BEST_KINDS for kind in form.kinds)
    entries = min(numbers.flight // max(moved, 1), numbers.few if form.lanes else numbers.entries)
    return max(entries >> more, 1)
