"""torch_ops.compat.torch_scatter: transforms and compilers, errors, the import of its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from programs import ROOT, run_with_torch
from torch import Tensor

import torch_ops
from torch_ops.compat import torch_scatter as ts

REDUCTIONS = ("sum", "add", "mean", "mul", "min", "max")
SEGMENT_REDUCTIONS = ("sum", "add", "mean", "min", "max")

# ---- what torch offers around a function --------------------------------------------------------


def calls() -> Iterator[tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]]]:
    """Each function of src, an index, and ends, of a size that is given."""
    for reduce in REDUCTIONS:
        yield (
            f"scatter_{reduce}",
            lambda s, i, p, r=reduce: ts.scatter(s, i, 0, None, 4, r),
        )
    for reduce in ("min", "max"):
        function = getattr(ts, f"scatter_{reduce}")
        yield f"arg_{reduce}", lambda s, i, p, f=function: f(s, i, 0, None, 4)[0]
    for reduce in SEGMENT_REDUCTIONS:
        yield f"coo_{reduce}", lambda s, i, p, r=reduce: ts.segment_coo(s, i, None, 4, r)
        yield f"csr_{reduce}", lambda s, i, p, r=reduce: ts.segment_csr(s, p, None, r)
    for reduce in ("min", "max"):
        csr, coo = getattr(ts, f"segment_{reduce}_csr"), getattr(ts, f"segment_{reduce}_coo")
        yield f"csr_arg_{reduce}", lambda s, i, p, f=csr: f(s, p)[0]
        yield f"coo_arg_{reduce}", lambda s, i, p, f=coo: f(s, i, None, 4)[0]
    yield "gather_coo", lambda s, i, p: ts.gather_coo(s, i)
    yield "gather_csr", lambda s, i, p: ts.gather_csr(s[:4], p, torch.zeros_like(s))
    yield "scatter_std", lambda s, i, p: ts.scatter_std(s, i, 0, None, 4)
    yield "scatter_softmax", lambda s, i, p: ts.scatter_softmax(s, i, 0, 4)
    yield "scatter_log_softmax", lambda s, i, p: ts.scatter_log_softmax(s, i, 0, dim_size=4)
    yield "scatter_logsumexp", lambda s, i, p: ts.scatter_logsumexp(s, i, 0, dim_size=4)


CALLS = dict(calls())
EACH_CALL = pytest.mark.parametrize("name", CALLS)


def arguments(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Three values or none for each place, of which no two are alike."""
    generator = torch.Generator().manual_seed(5)
    src = torch.randn(6, 2, generator=generator, dtype=torch.float64).to(device)
    index = torch.tensor([0, 0, 0, 3, 3, 3], device=device)
    return src.requires_grad_(), index, torch.tensor([0, 3, 3, 3, 6], device=device)


@EACH_CALL
def test_gradients(name: str, device: torch.device) -> None:
    src, index, indptr = arguments(device)

    def function(values: Tensor) -> Tensor:
        result = CALLS[name](values, index, indptr)
        # The root of what is 0 has no derivative.
        return result[[0, 3]] if name == "scatter_std" else result

    # On CUDA floats are summed in any order.
    assert torch.autograd.gradcheck(function, (src,), check_forward_ad=True, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(function, (src,), nondet_tol=1e-12)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("per_element", [False, True])
def test_gradients_through_out(reduce: str, per_element: bool, device: torch.device) -> None:
    src, index, _ = arguments(device)
    if per_element:
        index = index[:, None].repeat(1, 2)
    out = torch.randn(4, 2, dtype=torch.float64, device=device, requires_grad=True)

    def function(values: Tensor, out: Tensor) -> Tensor:
        return ts.scatter(values, index, 0, out.clone(), reduce=reduce)

    assert torch.autograd.gradcheck(function, (src, out), nondet_tol=1e-12)


@pytest.mark.parametrize("per_element", [False, True])
def test_gradients_through_out_of_logsumexp(per_element: bool, device: torch.device) -> None:
    src, index, _ = arguments(device)
    if per_element:
        index = index[:, None].repeat(1, 2)
    out = torch.randn(4, 2, dtype=torch.float64, device=device, requires_grad=True)

    def function(values: Tensor, out: Tensor) -> Tensor:
        return ts.scatter_logsumexp(values, index, 0, out.clone())

    assert torch.autograd.gradcheck(function, (src, out), nondet_tol=1e-12)


def test_the_gradient_of_a_product_with_a_zero(device: torch.device) -> None:
    src = torch.tensor([0.0, 2.0, 3.0], device=device, requires_grad=True)
    ts.scatter_mul(src, torch.tensor([0, 0, 0], device=device)).backward()
    assert src.grad is not None and src.grad.tolist() == [6, 0, 0]


@EACH_CALL
def test_vmap(name: str, device: torch.device) -> None:
    src, index, indptr = arguments(device)
    many = torch.stack([src.detach(), 2 - src.detach()])
    mapped = torch.vmap(lambda s: CALLS[name](s, index, indptr))(many)
    torch.testing.assert_close(
        mapped, torch.stack([CALLS[name](s, index, indptr) for s in many]), rtol=1e-12, atol=1e-12
    )


@pytest.mark.slow
@EACH_CALL
def test_compile(name: str, device: torch.device) -> None:
    src, index, indptr = arguments(device)
    compiled = torch.compile(CALLS[name], fullgraph=True)
    result = compiled(src, index, indptr)
    torch.testing.assert_close(result, CALLS[name](src, index, indptr), rtol=1e-12, atol=1e-12)
    weights = torch.arange(1.0, 1 + result.numel(), device=device).view(result.shape)
    if name == "scatter_std":
        weights[1:3] = 0
        result, weights = result[[0, 3]], weights[[0, 3]]
    (grad,) = torch.autograd.grad((result * weights).sum(), src)
    uncompiled = CALLS[name](src, index, indptr)
    if name == "scatter_std":
        uncompiled = uncompiled[[0, 3]]
    (wanted,) = torch.autograd.grad((uncompiled * weights).sum(), src)
    torch.testing.assert_close(grad, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["scatter_sum", "segment_sum_coo", "gather_csr"])
def test_export_of_a_size_that_entries_say(name: str, strict: bool, device: torch.device) -> None:
    class Module(torch.nn.Module):
        def forward(self, src: Tensor, index: Tensor) -> Tensor:
            dim = (0,) if name == "scatter_sum" else ()
            return getattr(ts, name)(src, index, *dim)

    src = torch.rand(3 if name == "gather_csr" else 4, 2, device=device)
    first, other = torch.tensor([[0, 1, 2, 4], [0, 1, 1, 7]], device=device)
    program = torch.export.export(Module(), (src, first), strict=strict).module()
    assert torch.equal(program(src, other), Module()(src, other))


@cache
def scripted(name: str) -> Any:
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit.script"):
        return torch.jit.script(getattr(ts, name))


@pytest.mark.parametrize("name", [name for name in ts.__all__ if name[0] != "_"])
def test_torchscript(name: str, device: torch.device) -> None:
    """The same calls, and the same of tensors in which each element has an entry."""
    src, index, indptr = arguments(device)
    function, script = getattr(ts, name), scripted(name)
    parameters = inspect.signature(function).parameters
    samples = [(src, indptr if "indptr" in parameters else index)]
    if name == "gather_csr":
        samples = [(src[:4], indptr)]
    if "dim" in parameters:
        samples = [(src, index, 0), (src, index[:, None].repeat(1, 2), 0), (src.t(), index)]
    for sample in samples:
        torch.testing.assert_close(script(*sample), function(*sample), rtol=1e-12, atol=1e-13)
    if "out" in parameters and name != "scatter_std":
        shape = (4, 2) if not name.startswith("gather") else (6, 2)
        outs = [torch.ones(shape, dtype=src.dtype, device=device) for _ in range(2)]
        for call, out in zip((function, script), outs, strict=True):
            call(*samples[0], out=out)
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-12, atol=1e-13)


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: ts.scatter_sum(torch.ones(3, 2), torch.tensor([0, 0]), 0),
        lambda: ts.scatter_max(torch.ones(3, 2), torch.zeros(2, 2, dtype=torch.int64), 0),
        lambda: ts.scatter_std(torch.ones(3), torch.zeros(3, 1, dtype=torch.int64)),
        lambda: ts.scatter_mean(torch.ones(3), torch.tensor(0)),
        lambda: ts.segment_coo(torch.ones(3), torch.zeros(1, 3, dtype=torch.int64)),
        lambda: ts.segment_csr(torch.ones(3), torch.zeros(1, 3, dtype=torch.int64)),
        lambda: ts.segment_max_csr(torch.ones(2, 3), torch.zeros(3, 3, dtype=torch.int64)),
        lambda: ts.gather_csr(torch.ones(3), torch.tensor([0, 1, 2])),
        lambda: ts.gather_coo(torch.ones(3, 2), torch.zeros(2, 2, dtype=torch.int64)),
    ],
)
def test_shapes_that_do_not_fit(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"^(scatter|segment|gather)_\w+: .*(index|indptr).*shape"):
        call()


ONTO_OUT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scatter_max": lambda i, out: ts.scatter_max(torch.ones(3, 2), i, 0, out),
    "scatter_min": lambda i, out: ts.scatter(torch.ones(3, 2), i, 0, out, reduce="min"),
    "scatter_mul": lambda i, out: ts.scatter_mul(torch.ones(3, 2), i, 0, out),
    "scatter_logsumexp": lambda i, out: ts.scatter_logsumexp(torch.ones(3, 2), i, 0, out),
    "segment_max_coo": lambda i, out: ts.segment_coo(torch.ones(3, 2), i, out, reduce="max"),
    "segment_csr": lambda i, out: ts.segment_csr(torch.ones(3, 2), i, out, "min"),
    "segment_sum_csr": lambda i, out: ts.segment_csr(torch.ones(3, 2), i, out),
    "segment_mean_csr": lambda i, out: ts.segment_csr(torch.ones(3, 2), i, out, "mean"),
    "segment_max_csr": lambda i, out: ts.segment_max_csr(torch.ones(3, 2), i, out),
    "gather_coo": lambda i, out: ts.gather_coo(torch.ones(3, 2), i, out),
    "gather_csr": lambda i, out: ts.gather_csr(torch.ones(2, 2), i, out),
}
SUMS_ONTO_OUT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scatter_sum": lambda i, out: ts.scatter_sum(torch.ones(3, 2), i, 0, out),
    "scatter_mean": lambda i, out: ts.scatter_mean(torch.ones(3, 2), i, 0, out),
    "scatter_std": lambda i, out: ts.scatter_std(torch.ones(3, 2), i, 0, out),
    "segment_sum_coo": lambda i, out: ts.segment_coo(torch.ones(3, 2), i, out),
    "segment_mean_coo": lambda i, out: ts.segment_mean_coo(torch.ones(3, 2), i, out),
}


def indices_of(name: str) -> list[Tensor]:
    """An entry for each row and, where that is possible, one for each element."""
    index = torch.tensor([0, 0, 1])
    return [index, index[:, None].repeat(1, 2)] if name.startswith("scatter") else [index]


@pytest.mark.parametrize("name", [*ONTO_OUT, *SUMS_ONTO_OUT])
@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2, 2), (3, 3)])
def test_out_of_another_shape(name: str, shape: tuple[int, ...]) -> None:
    call = ONTO_OUT.get(name) or SUMS_ONTO_OUT[name]
    text = f"^{name}: out must have shape .* shape is {re.escape(str([*shape]))}"
    for each in indices_of(name):
        with pytest.raises(ValueError, match=text):
            call(each, torch.zeros(shape))


@pytest.mark.parametrize("name", [*ONTO_OUT, *SUMS_ONTO_OUT])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32], ids=str)
def test_out_of_another_dtype(name: str, dtype: torch.dtype) -> None:
    call = ONTO_OUT.get(name) or SUMS_ONTO_OUT[name]
    rows = {"gather_coo": 3, "gather_csr": 1}.get(name, 2)
    for each in indices_of(name):
        with pytest.raises(TypeError, match=f"^{name}: out must have the dtype of src, .*{dtype}"):
            call(each, torch.zeros(rows, 2, dtype=dtype))


def test_other_errors(device: torch.device) -> None:
    src, index = torch.ones(3, device=device), torch.tensor([0, 0, 1], device=device)
    with pytest.raises(IndexError, match="scatter_sum: dim must be between -1 and 0"):
        ts.scatter_sum(src, index, 1)
    for function in (ts.scatter, ts.segment_coo):
        with pytest.raises(ValueError, match=r'reduce must be .* but it is "median"'):
            function(src, index, reduce="median")
    with pytest.raises(ValueError, match=r'reduce must be .* but it is "mul"'):
        ts.segment_csr(src, torch.tensor([0, 3], device=device), reduce="mul")


def test_an_entry_out_of_range(device: torch.device, sync_mode: None) -> None:
    src, index = torch.ones(3, device=device), torch.tensor([0, 5, 1], device=device)
    for reduce in REDUCTIONS:
        with pytest.raises(IndexError, match="5"):
            ts.scatter(src, index, dim_size=3, reduce=reduce)


# ---- the import of its name ---------------------------------------------------------------------


def test_install() -> None:
    code = """
import importlib.util, pickle, sys
import torch_ops.compat as compat
compat.install("torch_scatter")
compat.install("torch_scatter")  # once
import torch_scatter
from torch_scatter import scatter_max, segment_csr
from torch_scatter.composite import scatter_softmax
from torch_scatter.composite.logsumexp import scatter_logsumexp
from torch_scatter.composite.softmax import scatter_log_softmax
from torch_scatter.composite.std import scatter_std
from torch_scatter.scatter import scatter_add
from torch_scatter.utils import broadcast
import torch_scatter.composite
spec = importlib.util.find_spec("torch_scatter")
assert (spec.name, spec.origin) == ("torch_scatter", torch_scatter.__file__)
assert importlib.util.find_spec("torch_scatter.nothing") is None
assert callable(torch_scatter.scatter)
assert torch_scatter.__version__ == "2.1.2"
assert scatter_max is compat.torch_scatter.scatter_max
assert scatter_std is torch_scatter.composite.scatter_std is compat.torch_scatter.scatter_std
assert pickle.loads(pickle.dumps(scatter_add)) is scatter_add
assert importlib.reload(torch_scatter).scatter_max is scatter_max
compat.uninstall("torch_scatter")
compat.uninstall("torch_scatter")
assert not [name for name in sys.modules if name.split(".")[0] == "torch_scatter"]
try:
    found = importlib.util.find_spec("torch_scatter")
except ValueError:
    found = "an error"
assert found is None or "torch_ops" not in str(found), found
compat.install("torch_scatter")
import torch_scatter as again
assert again is not torch_scatter
"""
    result = run_with_torch("-c", code, cwd=ROOT)
    assert result.returncode == 0, result.stdout


def test_install_refuses_where_the_package_is_in_use() -> None:
    code = """
import sys, types
there = sys.modules["torch_scatter"] = types.ModuleType("torch_scatter")
there.__file__ = "/site-packages/torch_scatter/__init__.py"
import torch_ops.compat
try:
    torch_ops.compat.install("torch_scatter")
except RuntimeError as error:
    print(error)
assert sys.modules["torch_scatter"] is there
"""
    result = run_with_torch("-c", code, cwd=ROOT)
    assert result.returncode == 0, result.stdout
    assert "torch_scatter has been imported already, from /site-packages/" in result.stdout
    assert "before anything imports it" in result.stdout


def test_other_packages_are_refused() -> None:
    for function in (torch_ops.compat.install, torch_ops.compat.uninstall):
        with pytest.raises(ValueError, match=r"must be one of \['torch_scatter'\], .*'numpy'"):
            function("numpy")
