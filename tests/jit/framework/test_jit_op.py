"""torch_ops.jit.op: kernels and functions as registered ops."""

from __future__ import annotations

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_ops.jit import ElementwiseKernel, IndexedKernel, RawKernel, ReductionKernel, op

PRODUCT = ElementwiseKernel("T x, T y", "T z", "z = x * sin(y)", "product")
TWO = ElementwiseKernel("T x", "T y, T z", "y = x * x; z = -x", "two")
DOT = ReductionKernel("T x, T y", "T z", "x * y", "a + b", "z = a", 0, "dot")
NORM = ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", 0, "norm")

HALF = torch.tensor(0.5)  # becomes a constant of graphs

product = op("jit_tests::product")(PRODUCT)
two = op("jit_tests::two")(TWO)
norm = op("jit_tests::norm")(NORM)


@op("jit_tests::scaled_norm")
def scaled_norm(x: Tensor, scale: float) -> Tensor:
    return NORM(x, dim=-1) * scale


@scaled_norm.register_fake
def _(x: Tensor, scale: float) -> Tensor:
    return x.new_empty(x.shape[:-1])


def test_calls(device: torch.device) -> None:
    x, y = torch.rand(3, 4, device=device), torch.rand(4, device=device)
    torch.testing.assert_close(product(x, y), x * y.sin())
    torch.testing.assert_close(product(x, y=y), x * y.sin())
    # A number counts as one in the type of the result.
    assert product(x.half(), 2.5).dtype == torch.float16
    y2, z2 = two(x)
    assert torch.equal(y2, x * x) and torch.equal(z2, -x)
    torch.testing.assert_close(norm(x, [1]), x.norm(dim=1))
    torch.testing.assert_close(norm(x, 1, True), x.norm(dim=1, keepdim=True))
    torch.testing.assert_close(norm(x, dim=0, keepdim=True), x.norm(dim=0, keepdim=True))
    torch.testing.assert_close(norm(x), x.norm())
    torch.testing.assert_close(scaled_norm(x, 2.0), 2 * x.norm(dim=1))


def test_numbers_of_numpy(device: torch.device) -> None:
    x = torch.rand(3, device=device, requires_grad=True)
    for number in (np.float32(2.5), np.float64(2.5), np.int64(2), 2.5):
        expected = x * math.sin(number)
        for call in (PRODUCT, product):
            torch.testing.assert_close(call(x, number), expected)
            torch.compiler.reset()
            every_way = isinstance(number, np.float32)
            for dynamic in (False, True) if every_way else (call is product,):
                compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
                made = compiled(x, number)
                torch.testing.assert_close(made, expected)
                (grad,) = torch.autograd.grad(made.sum(), x)
                torch.testing.assert_close(grad, expected.detach() / x.detach())
        torch.testing.assert_close(DOT(x.detach(), number), x.detach().sum() * number)


def test_arguments_by_name(device: torch.device) -> None:
    x = torch.rand(3, device=device)
    assert torch.equal(product(y=x, x=2.0), product(2.0, x))
    for args, kwargs, message in (
        ((x,), {}, "product takes x, y; y is missing"),
        ((), {"y": x}, "product takes x, y; x is missing"),
        ((x, x), {"z": 1}, "product takes x, y; z is not one of them"),
        ((x, x), {"x": 1}, "product takes x, y; x is given twice"),
        ((x, x, x), {}, "product takes x, y, but got 3 arguments"),
    ):
        with pytest.raises(TypeError, match=message):
            product(*args, **kwargs)


def test_gradients(device: torch.device) -> None:
    x = torch.rand(3, 4, dtype=torch.float64, device=device).requires_grad_()
    y = torch.rand(4, dtype=torch.float64, device=device).requires_grad_()
    assert torch.autograd.gradcheck(product, (x, y), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product, (x, y))
    with pytest.raises(RuntimeError, match=r"has no gradient|require grad|not impl"):
        norm(x).backward()


def test_opcheck(device: torch.device) -> None:
    x, y = torch.rand(3, 4, device=device), torch.rand(4, device=device)
    torch.library.opcheck(product.overload, (x, y))
    torch.library.opcheck(product.overload, (x.clone().requires_grad_(), y))
    torch.library.opcheck(two.overload, (x,))
    torch.library.opcheck(norm.overload, (x, [0]), {"keepdim": True})
    torch.library.opcheck(scaled_norm, (x, 2.0))


def test_compile(device: torch.device) -> None:
    torch.compiler.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(x: Tensor, y: Tensor) -> Tensor:
        return scaled_norm(product(x, y), 3.0) + norm(x, [1]) + product(x, 0.5).sum(1)

    x, y = torch.rand(3, 4, device=device), torch.rand(4, device=device)
    z = x * y.sin()
    expected = 3 * z.norm(dim=1) + x.norm(dim=1) + (x * torch.sin(torch.tensor(0.5))).sum(1)
    torch.testing.assert_close(call(x, y), expected)


SUMMED = IndexedKernel("T x[src]", "T z[dst]", "z = x", "summed")
ROWS = IndexedKernel("T x[src], T y", "T z[dst], T e", "z = x * y; e = x", "rows")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, index: product(x, y) + product(y=x, x=0.5),
        lambda x, y, index: PRODUCT(x, y) + PRODUCT(np.float32(0.5), x) + PRODUCT(HALF, x),
        lambda x, y, index: two(x)[1] + TWO(y)[0],
        lambda x, y, index: ROWS(x, y, src=index, dst=index, sizes={"dst": 3})[0],
        lambda x, y, index: norm(x.detach(), [0]) + NORM(y.detach(), dim=0) + x,
    ],
)
def test_torch_fx(function, device: torch.device) -> None:
    """Its proxies count as tensors."""
    traced = torch.fx.symbolic_trace(function)
    x, y = (torch.rand(3, 3, dtype=torch.float64, device=device).requires_grad_() for _ in range(2))
    index = torch.tensor([2, 0, 2], device=device)
    made, expected = traced(x, y, index), function(x, y, index)
    assert torch.equal(made, expected)
    grads = torch.autograd.grad(expected.sum(), (x, y), allow_unused=True)
    torch.testing.assert_close(
        torch.autograd.grad(made.sum(), (x, y), allow_unused=True), grads, rtol=0, atol=0
    )


def test_exported_programs_are_loaded_again(device: torch.device) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return norm(product(x, x))

    x = torch.rand(3, device=device)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Layer(), (x,)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    torch.testing.assert_close(loaded(x), Layer()(x))


@op("jit_tests::summed_rows")
def summed_rows(x: Tensor, index: Tensor) -> Tensor:
    return SUMMED(x, src=index, dst=index, sizes={"dst": 3})


@summed_rows.register_fake
def _(x: Tensor, index: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def test_a_kernel_with_indices_in_an_exported_program(device: torch.device) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return summed_rows(x, index)

    args = torch.rand(3, 2, device=device), torch.tensor([2, 0, 2], device=device)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Layer(), args), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    assert torch.equal(loaded(*args), summed_rows(*args))
    with pytest.raises(
        TypeError, match=r"not of IndexedKernel\. Call an IndexedKernel .* function"
    ):
        op("jit_tests::indexed")(SUMMED)


def test_registering_again() -> None:
    """A notebook's cell that runs again: the same source is the same op, another is another."""
    same = op("jit_tests::product")(
        ElementwiseKernel("T x, T y", "T z", "z = x * sin(y)", "product")
    )
    other = op("jit_tests::product")(
        ElementwiseKernel("T x, T y", "T z", "z = x * cos(y)", "product")
    )
    assert same.overload is product.overload
    assert other.name != product.name and other.name.startswith("jit_tests::product_")
    x = torch.rand(3)
    torch.testing.assert_close(other(x, x), x * x.cos())
    torch.testing.assert_close(product(x, x), x * x.sin())

    def make(factor: int):
        kernel = ElementwiseKernel("T x", "T y", f"y = {factor} * x")

        @op("jit_tests::function")
        def function(x: Tensor) -> Tensor:
            return kernel(x)

        return function

    first, second, again = make(2), make(3), make(2)
    assert first is again and first is not second
    assert first(x).sum() == 2 * x.sum() and torch.equal(second(x), 3 * x)


def _closing_over(value):
    @op("jit_tests::closing_over")
    def function(x: Tensor) -> Tensor:
        return x * value

    return function


def _with_default(value):
    @op("jit_tests::with_default")
    def function(x: Tensor, factor: float = value) -> Tensor:
        return x * factor

    return function


def _through_a_function(value):
    def helper(x: Tensor) -> Tensor:
        return (lambda y: y * value)(x)

    @op("jit_tests::through_a_function")
    def function(x: Tensor) -> Tensor:
        return helper(x)

    return function


def _through_containers(value):
    known = {"factors": [(value,)]}

    @op("jit_tests::through_containers")
    def function(x: Tensor) -> Tensor:
        return x * known["factors"][0][0]

    return function


def _through_an_object(value):
    class Holder:
        factor = value

    @op("jit_tests::through_an_object")
    def function(x: Tensor) -> Tensor:
        return x * Holder.factor

    return function


def _by_a_kernel_with_an_index(value):
    kernel = IndexedKernel("T x[src]", "T y[dst]", f"y = x * {value}")
    first = torch.tensor([0])

    @op("jit_tests::by_a_kernel_with_an_index")
    def function(x: Tensor) -> Tensor:
        return kernel(x, src=first, dst=first, sizes={"dst": 1})

    return function


def _typed_in(value):
    """Without a text, and with variables that are global."""
    space = {"op": op, "Tensor": Tensor, "torch": torch, "factor": value}
    name = "sin" if value == 2 else "cos"  # the same bytes of code, and other names
    exec(f"def function(x: Tensor) -> Tensor: return x.{name}() * 0 + x * factor", space)
    return op("jit_tests::typed_in")(space["function"])


@pytest.mark.parametrize(
    "make",
    [_closing_over, _with_default, _through_a_function, _through_containers, _through_an_object,
     _by_a_kernel_with_an_index, _typed_in],
)  # fmt: skip
def test_what_a_function_holds_is_part_of_it(make) -> None:
    double, triple = make(2), make(3)
    x = torch.ones(1)
    assert double is not triple
    assert double(x).item() == 2 and triple(x).item() == 3
    assert make(2)(x).item() == 2


def test_the_same_objects_are_the_same_op() -> None:
    weight, other = torch.full((1,), 2.0), torch.full((1,), 3.0)
    first = _closing_over(weight)
    assert _closing_over(weight) is first and _closing_over(other) is not first
    assert _closing_over(2) is _closing_over(2) and _with_default(2) is _with_default(2)
    assert _through_a_function(2) is _through_a_function(2)
    assert _closing_over(other)(torch.ones(1)).item() == 3
    assert _closing_over(2) is not _closing_over(2.0)


def test_a_name_in_mutates_args() -> None:
    @op("jit_tests::fill", mutates_args="result")
    def fill(result: Tensor) -> None:
        result.fill_(2)

    x = torch.ones(3)
    fill(x)
    assert x.tolist() == [2, 2, 2]
    torch.library.opcheck(fill, (x,))


def test_kernels_are_pickled_as_their_source() -> None:
    x, y = torch.rand(3), torch.rand(3)
    again = pickle.loads(pickle.dumps(PRODUCT))
    assert again._op is PRODUCT._op and torch.equal(again(x, y), PRODUCT(x, y))
    assert torch.equal(copy.deepcopy(NORM)(x), NORM(x))


def test_ops_are_pickled_as_their_kernels() -> None:
    made = op("jit_tests::again")(PRODUCT)
    assert pickle.loads(pickle.dumps(made)) is made


def test_profiler_shows_the_name(device: torch.device) -> None:
    x = torch.rand(3, device=device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        product(x, x)
        PRODUCT(x, x)
    names = [event.name for event in profile.events()]
    assert product.name in names
    assert sum(PRODUCT._kernel.op_name in name for name in names) >= 2


def test_errors() -> None:
    with pytest.raises(ValueError, match=r'form "namespace::name".*"?product'):
        op("product")
    with pytest.raises(TypeError, match="not of int"):
        op("jit_tests::number")(1)
    with pytest.raises(TypeError, match="not of RawKernel"):
        op("jit_tests::raw")(RawKernel('extern "C" __global__ void k() {}', "k"))
    with pytest.raises(ValueError, match="raw output"):
        op("jit_tests::scatter")(ElementwiseKernel("T x", "raw T y", "y[i] = x"))
