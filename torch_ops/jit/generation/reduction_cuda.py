"""The CUDA source of a reduction: of rows, whose elements lie together, and of columns."""

from __future__ import annotations

from torch_ops.jit.building.source import Source
from torch_ops.jit.generation.elementwise import joined
from torch_ops.jit.generation.reduction import Reduction, ReductionForm, Writer

THREADS = 256  # a block at most; src/jit/reduction.cpp has it too
# Loads of a thread in flight: of single elements, and of words of up to 16 bytes.
UNROLL, WIDE_UNROLL = 16, 4
# The same of columns: rows of a thread, whose loads are single elements, or vectors.
COLUMN_UNROLL, VECTOR_UNROLL = 8, 4

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
    return columns_source(reduction, form) if form.vector else rows_source(reduction, form)


def rows_source(reduction: Reduction, form: ReductionForm) -> Source:
    """Of outputs whose elements lie together: the lanes of an output walk along them."""
    writer = Writer(reduction, form)
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
        *writer.head(["cuda.h"], "  int64_t lanes;\n"),
        f"""extern "C" __global__ void __launch_bounds__({THREADS})
partial(const __grid_constant__ Plan @plan) {{""",
        *writer.functions(),
        *writer.identity(),
        f"""__shared__ @Result @shared[{THREADS}];
const int @lanes = static_cast<int>(@plan.lanes), @thread = threadIdx.x;
const int @per_block = {THREADS} / @lanes;
const int @lane = @thread % @lanes, @own = @thread / @lanes;
const auto @slot = [&](int lane) {{ return @own * @lanes + lane; }};
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


# The results of threads that have the same outputs become those of the first of them, for any
# number of threads: @half is the largest power of two below it.
_COLUMN_TREE = """for (int @step = @half; @step > 0; @step /= 2) {{
  __syncthreads();
  if (@lane < @step && @lane + @step < @valid) {{
#pragma unroll
    for (int e = 0; e < {vector}; ++e) {{
      @Result& @mine = @shared[e][threadIdx.x];
      @mine = @combine(@mine, @shared[e][threadIdx.x + @step * @across]);
    }}
  }}
}}
"""


def columns_source(reduction: Reduction, form: ReductionForm) -> Source:
    """Of outputs that lie together as their elements do: the sum over the rows of a matrix.

    A thread has ``vector`` neighbouring outputs, loads a vector of each of its rows, several rows
    in flight, and combines in registers. ``across`` threads of a block stand side by side, so that
    they read a row's memory as it lies, and ``lanes`` of them one below the other, each with every
    ``lanes``-th row; these are combined through shared memory. Blocks one below the other have a
    part of the rows each; their results, rows of a matrix as well, ``finish`` combines.

    Modes, one letter an operand. The output: ``c``, its elements can be stored as a vector, or
    ``s``. Inputs: ``c``, a vector lies together; ``b``, all of it is one element. Upper case: the
    same one for all rows, so that it is loaded once.
    """
    writer = Writer(reduction, form)
    count, vector, modes = writer.count, form.vector, form.modes
    inputs = list(enumerate(writer.operands))[1:]
    moving = [k for k, _ in inputs if modes[k].islower()]
    unroll = COLUMN_UNROLL if vector == 1 else VECTOR_UNROLL

    def holder(k: int, stored: str) -> str:
        return (
            f"torch_ops::Splat<{stored}>"
            if modes[k] in "bB"
            else f"torch_ops::Vector<{stored}, {vector}>"
        )

    def rows_of(number: int) -> str:
        """Loads rows from @row on, and maps and combines each output's."""
        holders = "".join(
            f"{holder(k, stored)} @v{k}[{number}];\n" for k, (_, stored) in inputs if k in moving
        )
        loads = "".join(f"@v{k}[u].load(@at[{k}]);\n" for k in moving)
        value = writer.mapped([f"&@v{k}[{'u' if k in moving else '0'}][e]" for k, _ in inputs])
        return f"""{holders}#pragma unroll
      for (int u = 0; u < {number}; ++u) {{
        {advance("@row + u * @lanes")}
        {loads}  {step}
      }}
#pragma unroll
      for (int e = 0; e < {vector}; ++e) {{
        @Result @several[{number}];
#pragma unroll
        for (int u = 0; u < {number}; ++u) @several[u] = {value};
#pragma unroll
        for (int s = 1; s < {number}; s *= 2) {{
#pragma unroll
          for (int u = 0; u + s < {number}; u += 2 * s) {{
            @several[u] = @combine(@several[u], @several[u + s]);
          }}
        }}
        @sums[e] = @begun ? @combine(@sums[e], @several[0]) : @several[0];
      }}
      @begun = true;"""

    # Along one axis pointers step; along several each row's place is computed.
    if form.reduced == 1:
        first = "\n".join(
            f"@at[{k}] += (@first + @lane) * @plan.reduced[0].strides[{k}];\n"
            f"const int64_t @step{k} = @lanes * @plan.reduced[0].strides[{k}];"
            for k in moving
        )
        step = " ".join(f"@at[{k}] += @step{k};" for k in moving)

        def advance(row: str) -> str:
            return ""
    else:
        first = f"char* const @start[{count}] = {{{', '.join(f'@at[{k}]' for k in range(count))}}};"
        step = ""

        def advance(row: str) -> str:
            reset = " ".join(f"@at[{k}] = @start[{k}];" for k in range(count))
            return f"{reset} {writer.moved('reduced', row)}"

    fixed = "".join(
        f"{holder(k, stored)} @v{k}[1];\n@v{k}[0].load(@at[{k}]);\n"
        for k, (_, stored) in inputs
        if k not in moving
    )
    stored = writer.operands[0][1]
    if modes[0] == "c":
        keep = f"""torch_ops::Vector<{stored}, {vector}> @w;
#pragma unroll
      for (int e = 0; e < {vector}; ++e) {{
        @store(reinterpret_cast<char*>(&@w[e]), @shared[e][threadIdx.x]);
      }}
      @w.store(@to);"""
    else:
        keep = f"""for (int e = 0; e < {vector}; ++e) {{
        @store(@to + e * @plan.kept[0].strides[0], @shared[e][threadIdx.x]);
      }}"""
    return joined(
        *writer.head(["cuda.h"], "  int64_t across, lanes, half, finish_lanes;\n"),
        f"""extern "C" __global__ void __launch_bounds__({THREADS})
partial(const __grid_constant__ Plan @plan) {{""",
        *writer.functions(),
        *writer.identity(),
        f"""__shared__ @Result @shared[{vector}][{THREADS}];
const int @across = static_cast<int>(@plan.across), @lanes = static_cast<int>(@plan.lanes);
const int @half = static_cast<int>(@plan.half);
const int @lane = threadIdx.x / @across, @own = threadIdx.x % @across;
const int64_t @first = int64_t(blockIdx.y) * @plan.part;
const int64_t @last = @first + @plan.part < @plan.elements ? @first + @plan.part : @plan.elements;
const int64_t @valid = @last - @first < @lanes ? @last - @first : @lanes;
const int64_t @words = @plan.outputs / {vector};
for (int64_t @block = int64_t(blockIdx.x) * @across; @block < @words;
     @block += int64_t(gridDim.x) * @across) {{
  const int64_t @word = @block + @own;
  const bool @active = @lane < @lanes && @word < @words;
  char* @to = nullptr;
  @Result @sums[{vector}];
  bool @begun = false;
  if (@active) {{
    char* @at[{count}] = {{{", ".join(f"@plan.data[{k}]" for k in range(count))}}};
    {writer.moved("kept", f"@word * {vector}")}
    @to = @at[0];
    {fixed}{first}
    int64_t @row = @first + @lane;
    for (; @row + {unroll - 1} * @lanes < @last; @row += {unroll} * @lanes) {{
      {rows_of(unroll)}
    }}
    for (; @row < @last; @row += @lanes) {{
      {rows_of(1)}
    }}
  }}
#pragma unroll
  for (int e = 0; e < {vector}; ++e) @shared[e][threadIdx.x] = @begun ? @sums[e] : @empty;
  {_COLUMN_TREE.format(vector=vector)}  if (@lane == 0 && @active) {{
    if (@plan.parts == 1) {{
      {keep}
    }} else {{
      torch_ops::Vector<@Result, {vector}> @part;
#pragma unroll
      for (int e = 0; e < {vector}; ++e) @part[e] = @shared[e][threadIdx.x];
      @part.store(reinterpret_cast<char*>(
          @plan.partials + blockIdx.y * @plan.outputs + @word * {vector}));
    }}
  }}
  __syncthreads();
}}
}}
extern "C" __global__ void __launch_bounds__({THREADS})
finish(const __grid_constant__ Plan @plan) {{""",
        *writer.functions(),
        f"""__shared__ @Result @shared[1][{THREADS}];
const int @lanes = static_cast<int>(@plan.finish_lanes), @across = {THREADS} / @lanes;
const int @half = @lanes / 2;  // a power of two here
const int @lane = threadIdx.x / @across, @own = threadIdx.x % @across;
const int64_t @valid = @plan.parts < @lanes ? @plan.parts : @lanes;
for (int64_t @block = int64_t(blockIdx.x) * @across; @block < @plan.outputs;
     @block += int64_t(gridDim.x) * @across) {{
  const int64_t @output = @block + @own;
  const bool @active = @lane < @valid && @output < @plan.outputs;
  @Result @sum{{}};
  if (@active) {{
    const @Result* const @parts = @plan.partials + @output;
    @sum = @parts[@lane * @plan.outputs];
#pragma unroll 8
    for (int64_t k = @lane + @lanes; k < @plan.parts; k += @lanes) {{
      @sum = @combine(@sum, @parts[k * @plan.outputs]);
    }}
  }}
  @shared[0][threadIdx.x] = @sum;
  {_COLUMN_TREE.format(vector=1)}  if (@lane == 0 && @active) {{
    char* @at[{count}] = {{{", ".join(f"@plan.data[{k}]" for k in range(count))}}};
    {writer.moved("kept", "@output")}
    @store(@at[0], @shared[0][threadIdx.x]);
  }}
  __syncthreads();
}}
}}""",
    )
