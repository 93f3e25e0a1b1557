"""The source of a reduction on the CPU where outputs lie together, as sums over columns do."""

from __future__ import annotations

from torch_ops.jit.building.source import Source
from torch_ops.jit.generation.elementwise import joined
from torch_ops.jit.generation.reduction import Reduction, ReductionForm, Writer, host_finish

WIDTH = 8192
ROWS = 64  # of which one result is made before it is combined with others: sums round less


def columns_source(reduction: Reduction, form: ReductionForm) -> Source:
    """``partial`` over a range of (strip, part), a strip being up to WIDTH neighbouring outputs.

    So whole lines of memory are used, and a row is combined with the results so far in one loop
    that the compiler vectorises. ``form.modes`` has a letter for each input, which says how it
    lies along a row: ``c``, its elements are neighbours; ``b``, it has one for all; ``s``, they are
    apart.
    """
    writer = Writer(reduction, form)
    count = writer.count
    copy = f"for (int k = 0; k < {count}; ++k) @at[k] = "
    places = {
        "c": "@p{k} + @c * int64_t(sizeof({stored}))",
        "b": "@p{k}",
        "s": "@p{k} + @c * @s{k}",
    }
    element = writer.mapped(
        [
            places[mode].format(k=k, stored=stored)
            for k, ((_, stored), mode) in enumerate(
                zip(writer.operands[1:], form.modes, strict=True), start=1
            )
        ]
    )
    pointers = " ".join(
        f"const char* const @p{k} = @at[{k}] + @j * @plan.reduced[0].strides[{k}];"
        for k in range(1, count)
    )
    strides = " ".join(
        f"const int64_t @s{k} = @plan.kept[0].strides[{k}];"
        for k, mode in enumerate(form.modes, start=1)
        if mode == "s"
    )

    def each_column(statement: str) -> str:
        return f"for (int64_t @c = 0; @c < @columns; ++@c) {statement}"

    return joined(
        *writer.head(["host.h"], "  int64_t width;\n"),
        'extern "C" void partial(const Plan& @plan, int64_t @begin, int64_t @end) {',
        *writer.functions(),
        f"""const int64_t @row_size = @plan.kept[0].size;
const int64_t @strips = (@row_size + @plan.width - 1) / @plan.width;  // of a row
{strides}
for (; @begin < @end; ++@begin) {{
  const int64_t @strip = @begin / @plan.parts, @number = @begin % @plan.parts;
  const int64_t @column = @strip % @strips * @plan.width;
  const int64_t @output = @strip / @strips * @row_size + @column;
  const int64_t @columns =
      @row_size - @column < @plan.width ? @row_size - @column : @plan.width;
  {writer.host_part()}
  @Result @running[{WIDTH}], @sums[{WIDTH}];
  int64_t @rows = 0;  // in `running`
  bool @begun = false;
  const auto @flush = [&] {{
    if (@begun) {{
      {each_column("@sums[@c] = @combine(@sums[@c], @running[@c]);")}
    }} else {{
      {each_column("@sums[@c] = @running[@c];")}
    }}
    @begun = true;
    @rows = 0;
  }};
  while (@first < @last) {{
    {copy}@start[k];
    {writer.moved("reduced", "@first")}
    const int64_t @left = @plan.reduced[0].size - @first % @plan.reduced[0].size;
    const int64_t @length = @left < @last - @first ? @left : @last - @first;
    for (int64_t @j = 0; @j < @length; ++@j) {{
      {pointers}
      if (@rows == 0) {{
#pragma GCC ivdep
        {each_column(f"@running[@c] = {element};")}
      }} else {{
#pragma GCC ivdep
        {each_column(f"@running[@c] = @combine(@running[@c], {element});")}
      }}
      if (++@rows == {ROWS}) @flush();
    }}
    @first += @length;
  }}
  if (@rows > 0) @flush();
  if (@plan.parts == 1) {{
    {each_column("@store(@start[0] + @c * @plan.kept[0].strides[0], @sums[@c]);")}
  }} else {{
    {each_column("@plan.partials[(@output + @c) * @plan.parts + @number] = @sums[@c];")}
  }}
}}
}}""",
        *host_finish(writer),
    )
