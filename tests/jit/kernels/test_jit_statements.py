"""ElementwiseKernel: outputs that are not always assigned, and statements that end an element."""

from __future__ import annotations

import pytest
import torch
from jit_tools import run_python

from torch_ops.jit import CompileError, ElementwiseKernel, IndexedKernel
from torch_ops.jit.language.program import defined_macros, surely_assigns


def test_outputs_keep_what_is_not_assigned(device: torch.device) -> None:
    keep = ElementwiseKernel("T x", "T y", "if (x > 0) y = x")
    add = ElementwiseKernel("T x", "T y", "y += x")
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0, 5.0], device=device)
    assert keep(x).tolist() == [0, 2, 0, 4, 5]
    out = torch.full_like(x, 7)
    assert keep(x, out=out).tolist() == [7, 2, 7, 4, 5]
    assert add(x, out=out).tolist() == [6, 4, 4, 8, 10]
    assert add(x).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("if (x < 0) SKIP; y = x", ()),
        ("if (x < 0) skip; y = x", ()),
        ("if (x < 0) FROM_A_HEADER; y = x", ("-DFROM_A_HEADER=return",)),
        ("if (x < 0) ended; y = x", ("-D", "ended=continue")),
        ("if (x < 0) again; y = x", ()),
        ("if (x < 0) long_one; y = x", ()),
        ("y = x < 0 ? OLD : x", ()),
        ("auto a = 1'000; if (x < 0) return; auto b = 1'0; y = x", ()),
        ("char a = ';'; if (x < 0) return; char b = '\\''; y = x", ()),
    ],
)
def test_what_skips_an_assignment(
    operation: str, options: tuple[str, ...], device: torch.device
) -> None:
    """Where a macro, or what looks like a character, hides it, the output is kept all the same."""
    preamble = (
        "#define SKIP return\n#define skip return\n#define again skip\n#define OLD y\n"
        "#define long_one \\\n  return\n"
    )
    kernel = ElementwiseKernel("T x", "T y", operation, preamble=preamble, options=options)
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0], device=device)
    out = torch.full_like(x, 7)
    assert kernel(x, out=out).tolist() == [7, 2, 7, 4]


def test_what_is_surely_assigned() -> None:
    """Plain constants do not hinder it: outputs are not read, and torch.compile takes out=."""
    macros = defined_macros(["#define PI 3.14\n#define add(a) ((a) + PI)\n"], ["-Dk=3", "-DN"])
    for text in (
        "y = x",
        "T a = M_PI * add(x) * k; y = a + PI + FLT_MAX",
        "auto a = 1'000; /* return */ char c = 'r'; y = x",
    ):
        assert surely_assigns(text, "y", macros), text
    for text in ("y += x", "if (x) y = x", "UNKNOWN; y = x", "y = y + 1", "while (x) { y = x; }"):
        assert not surely_assigns(text, "y", macros), text
    for text in ("#if 0\nint q = 1;\ny = x;\n#endif", "int q;\n# ifdef N\n;y = x;\n#endif"):
        assert not surely_assigns(text, "y", macros), text


def test_separators_of_digits(device: torch.device) -> None:
    kernel = ElementwiseKernel(
        "T x", "T y", "auto a = 1'000; y = x + i; auto b = 1'0;",
        backward="auto a = 1'000; grad_x = 2 * grad_y; auto b = 1'0;",
    )  # fmt: skip
    x = torch.ones(3, device=device, requires_grad=True)
    y = kernel(x)
    assert y.tolist() == [1, 2, 3]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 2, 2]


def test_control_flow_ends_an_element(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)
    for word in ("return", "continue", "break"):
        kernel = ElementwiseKernel("T x", "T y", f"y = -1; if (x < 3) {word}; y = x")
        assert kernel(x).tolist() == [-1, -1, -1, 3, 4, 5]


def test_a_value_is_not_returned_but_assigned(device: torch.device) -> None:
    kernel = ElementwiseKernel("T x", "T y", "y = 0; return x * x;")
    with pytest.raises(CompileError, match="operation, line 1: return"):
        kernel(torch.ones(2, device=device))


REFERENCES = """
template <class A> void square(A x, A* y) { *y = x * x; }
template <class A> void square_of(A x, A& y) { y = x * x; }
#define STORE(value) y = value
#define store(value) STORE(value)
#define OUT(letter) letter ## _of_x
"""


@pytest.mark.parametrize("make", [ElementwiseKernel, IndexedKernel])
def test_an_output_that_is_assigned_nowhere(make) -> None:
    """Whatever may assign one passes: a macro, a function, a pointer, a reference."""
    inputs, index = ("T x", "") if make is ElementwiseKernel else ("T x[src]", "[src]")
    for text in (
        "x * 2", "return x * x;", "// y = x", 'printf("y = %g", x)', "z = x + y", "z.y = x",
        "if (y == x) return;", "const int n = sizeof(y + x);", "TWICE(x)", "z = x * M_PI",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"assigns the output y nowhere\. Write y = "):
            make(inputs, f"T y{index}, T z{index}", text, options=("-DTWICE(x)=2 * x",))
    for text in (
        "y += x * x", "y = z = x * x", "++y; y *= x", "y--", "y \\\n= x", "y<<=1", "y.x = x",
        "y[0] = x",
        "square(x, &y)", "square_of(x, y)", "square(x, (T*)&y)", "T* p = &y; *p = x",
        "auto& r = y; r = x", "T &r(y); r = x", "T& r{y}; r = x", "T& r = x > 0 ? y : z; r = x",
        "(x > 0 ? y : z) = x", "(y) = x", "(T&)y = x", "auto f = [&y](T x) { y = x; }; f(x)",
        "STORE(x)", "store(x)", "OUT(y) = x", "ASSIGN(x)", "set(x)", "MACRO_OF_A_HEADER(x)",
    ):  # fmt: skip
        options = ("-DASSIGN(x)=y = x", "-D", "set(x)=y = x")
        make(inputs, f"T y{index}", text, preamble=REFERENCES, options=options)
    make(inputs, f"T y{index}", "assign(x)", preamble='#include "assign.h"')


def test_references_to_outputs(device: torch.device) -> None:
    for text in ("square(x, &y)", "square_of(x, y)", "store(x * x)", "T& r = y; r = x * x"):
        x = torch.tensor([2.0, 3.0], device=device, requires_grad=True)
        kernel = ElementwiseKernel(
            "T x", "T y", text, "square", preamble=REFERENCES, options=("-default-device",)
        )
        y = kernel(x)
        assert y.tolist() == [4, 9]
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [4, 6]


PRINTS = """
import torch
from torch_ops.jit import ElementwiseKernel
kernel = ElementwiseKernel("T x", "T y", 'y = x; printf("%d is %g\\\\n", int(i), double(x))')
kernel(torch.tensor([0.5, 2.5], device="{device}")).tolist()
"""


def test_printf(device: torch.device) -> None:
    printed = run_python(PRINTS.format(device=device))
    assert sorted(printed.splitlines()) == ["0 is 0.5", "1 is 2.5"]


def test_loop_prep_and_after_loop(device: torch.device) -> None:
    """Once a thread or worker: all elements are counted, and after_loop runs at least once."""
    kernel = ElementwiseKernel(
        "int32 x, raw int32 unused", "raw int32 total", "sum += x",
        loop_prep="int sum = 0;", after_loop="atomicAdd(&total[0], sum); atomicAdd(&total[1], 1)",
    )  # fmt: skip
    x = torch.arange(1000, dtype=torch.int32, device=device).repeat(100)
    total = torch.zeros(2, dtype=torch.int32, device=device)
    kernel(x, x, out=total)
    assert total[0] == x.sum() and total[1] >= 1
    # Once a worker also where operands are copied to buffers.
    beside = ElementwiseKernel(
        "int32 x, int32 y", "raw int32 total", "sum += x * y",
        loop_prep="int sum = 0;", after_loop="atomicAdd(&total[0], sum); atomicAdd(&total[1], 1)",
    )  # fmt: skip
    rows, column = x.view(1000, 100), x[:1000].view(1000, 1) % 7
    beside(rows, column, out=total.zero_())
    assert total[0] == (rows * column).sum()
    assert device.type != "cpu" or 1 <= total[1] <= torch.get_num_threads()
