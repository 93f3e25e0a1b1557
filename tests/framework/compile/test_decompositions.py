from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from activations import random, special
from gathering import sum_tolerance
from op_checks import FLOATS, Op, assert_same
from support.registry import activations as elementwise
from support.registry import described
from torch import Tensor, nn
from torch._functorch import config as aot_config
from torch._inductor import config, metrics
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torch_ops
from torch_ops.decompositions import _FORWARD as DECOMPOSITIONS
from torch_ops.decompositions import activations, decompose

OPS = torch.ops.torch_ops
ELEMENTWISE = [op for op in elementwise() if not op.inplace]
FUNCTIONAL = [op for op in described() if not op.inplace and op not in ELEMENTWISE]


def close(op: Op, actual: Tensor, expected: Tensor, what: str) -> None:
    if op.tolerance(torch.float64)[0] > 0:
        # In 16 bits torch rounds each of several ops, ours the result.
        rtol, atol = (4 * getattr(torch.finfo(actual.dtype), at) for at in ("eps", "tiny"))
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=what)
    else:
        assert_same(actual, expected, what)


def test_every_functional_activation_has_one() -> None:
    """All that a traced graph of them can have."""
    named = {op.name for op in ELEMENTWISE} | {"_relu_mask", "_relu_mask_backward"}
    assert named == {op.name().removeprefix("torch_ops::") for op in activations}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("activation", ELEMENTWISE, ids=str)
def test_values(device: torch.device, activation: Op, dtype: torch.dtype) -> None:
    """Those of our kernels, zeros' signs and NaN included; of the gradients too."""
    for sample in activation.samples(device, dtype):
        expected = activation.overload(*sample.args)
        close(activation, activations[activation.overload](*sample.args), expected, sample.shapes())


@pytest.mark.parametrize("slope", [None, 0.0, 0.25, -0.5])
def test_mask(device: torch.device, slope: float | None) -> None:
    x = torch.cat([random((40,), device, torch.float32), special(device, torch.float32)])
    forward, backward = OPS._relu_mask.default, OPS._relu_mask_backward.default
    gradient = random(tuple(x.shape), device, torch.float32)
    output, mask = forward(x, slope)
    ours, other_mask = activations[forward](x, slope)
    assert_same(ours, output, "output")
    expected = backward(gradient, mask, [], slope)
    assert_same(activations[backward](gradient, other_mask, [], slope), expected, "gradient")


def test_a_trace_has_torchs_ops_alone(device: torch.device) -> None:
    def training_step(x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        y = torch_ops.sigmoid(torch_ops.leaky_relu(torch_ops.relu(x * 2), 0.1))
        return y, *torch.autograd.grad(y.sum(), x)

    x = random((6, 5), device, torch.float32)
    graph = make_fx(training_step, decomposition_table=activations)(x)
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert targets and not any("torch_ops" in target for target in targets)
    for actual, expected in zip(graph(x), training_step(x), strict=True):
        torch.testing.assert_close(actual, expected)


class Net(nn.Module):
    def __init__(self, relu: nn.Module, leaky: nn.Module, sigmoid: nn.Module) -> None:
        super().__init__()
        self.relu, self.leaky, self.sigmoid = relu, leaky, sigmoid

    def forward(self, x: Tensor) -> Tensor:
        return self.sigmoid(self.leaky(x + 1) * self.relu(x - 1) - 0.5)


@pytest.mark.timeout(600)
def test_inductor_fuses_them(device: torch.device) -> None:
    """The whole network becomes a kernel for each pass, as with torch's activations."""
    kernels = {}
    x = random((32, 48), device, torch.float32)
    plain = Net(nn.ReLU(), nn.LeakyReLU(), nn.Sigmoid())
    ours = Net(torch_ops.ReLU(), torch_ops.LeakyReLU(), torch_ops.Sigmoid())
    expected = gradients(plain, x)
    for name, model in (("torch's", plain), ("ours", ours)):
        torch.compiler.reset()
        metrics.reset()
        with config.patch(fx_graph_cache=False), aot_config.patch(enable_autograd_cache=False):
            results = gradients(torch.compile(model), x)
        kernels[name] = metrics.generated_kernel_count
        torch.testing.assert_close(results, expected)
    assert kernels["ours"] == kernels["torch's"]


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad((y * y).sum(), x)]


def test_exported_programs(device: torch.device) -> None:
    x = random((4, 3), device, torch.float32)
    program = torch.export.export(torch_ops.LeakyReLU(0.3), (x,))
    program = program.run_decompositions(activations)
    assert "torch_ops" not in program.graph_module.code
    torch.testing.assert_close(program.module()(x), F.leaky_relu(x, 0.3))


# ---- All ops of a forward pass ------------------------------------------------------------------


def has_kernel(op: torch._ops.OpOverload, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def test_every_op_that_is_no_composition_has_one() -> None:
    others = {"_torch_cuda"}  # no op on tensors
    on_import = ("_exchange_", "_peer_", "_pyg_")  # of torch_ops.distributed and torch_ops.compat
    others |= {"_scatter_add_sharded", "_scatter_elements_add_sharded"}  # of a DTensor's gradient
    others |= {"_softmax_step"}  # of the kernels of _softmax_back
    names = torch._C._dispatch_get_all_op_names()
    for name in sorted(name for name in names if name.startswith("torch_ops::")):
        packet, _, overload = name.removeprefix("torch_ops::").partition(".")
        op = getattr(getattr(OPS, packet), overload or "default")
        if op._schema.is_mutable or packet in others or packet.startswith(on_import):
            continue
        composed = has_kernel(op, "CompositeImplicitAutograd")
        assert composed != (op in DECOMPOSITIONS or op in activations), name


class InTorch(TorchDispatchMode):
    """Runs decompositions in place of our ops."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func.namespace != "torch_ops" or func._schema.is_mutable:  # which no program has
            return func(*args, **kwargs)
        with self:
            if func in DECOMPOSITIONS:
                return DECOMPOSITIONS[func](*args, **kwargs)
            result = func.decompose(*args, **kwargs)
        assert result is not NotImplemented, func
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("other", FUNCTIONAL, ids=str)
def test_values_of_others(device: torch.device, other: Op, dtype: torch.dtype) -> None:
    for sample in other.samples(device, dtype):
        expected = other.function(*sample.args, **sample.kwargs)
        with InTorch():
            actual = other.function(*sample.args, **sample.kwargs)
        results = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
        for one, of_op in results:  # of which the program may have a view
            assert one.is_contiguous() == of_op.is_contiguous(), sample.shapes()
        # Dtypes too are compared, which the ops after it depend on. Sums of hundreds of values of
        # size 1 differ by the order in which they are taken.
        is_wide = device.type == "cuda" and dtype == torch.float32
        exact = {"rtol": 1e-5, "atol": sum_tolerance(dtype)[1]} if is_wide else {}
        torch.testing.assert_close(
            actual, expected, equal_nan=True, msg=partial("{}: {}".format, sample.shapes()), **exact
        )


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


@pytest.mark.parametrize(
    ("function", "first", "other"),
    [
        # More entries than rows, and fewer.
        (
            lambda v, x, i: torch_ops.scatter_add(v, torch_ops.gather_plan(i, x.shape[0])),
            lambda: (torch.rand(9), torch.rand(4), torch.zeros(9, dtype=torch.int64)),
            lambda: (torch.rand(3), torch.rand(5), torch.zeros(3, dtype=torch.int64)),
        ),
        # Nothing.
        (
            lambda x, i: torch_ops.scatter(x, i % 3, 3, reduce="max", return_arg=True),
            lambda: (torch.rand(6, 2), torch.arange(6)),
            lambda: (torch.rand(0, 2), torch.arange(0)),
        ),
        (
            lambda x, m: torch_ops.masked_gather(x, m, size=4, fill_value=2),
            lambda: (torch.rand(6, 2), torch.rand(6) > 0.5),
            lambda: (torch.rand(0, 2), torch.rand(0) > 0.5),
        ),
        (
            lambda x, i: torch_ops.gather_elements(x, i, 0, mode="fill"),
            lambda: (torch.rand(6), torch.arange(6)),
            lambda: (torch.rand(0), torch.arange(3)),
        ),
    ],
    ids=["plan", "no entry", "no row", "no element"],
)
def test_other_sizes(function: Any, first: Any, other: Any) -> None:
    arguments = first()
    sizes = tuple({0: torch.export.Dim.AUTO} for _ in arguments)
    exported = torch.export.export(Function(function), arguments, dynamic_shapes=(sizes,))
    program = decompose(exported).module()
    for given in (arguments, other()):
        torch.testing.assert_close(program(*given), function(*given), equal_nan=True)


@pytest.mark.parametrize("offsets", [None, torch.tensor([1, 3, 6])], ids=["index", "offsets"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_gradients_of_softmax(name: str, offsets: Tensor | None) -> None:
    """Which stand in a program of forces."""

    def forces(x: Tensor, index: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        to = (index, 5) if offsets is None else ()
        y = getattr(torch_ops, name)(x, *to, offsets=offsets)
        return torch.autograd.grad((y * y).sum(), x)[0]

    arguments = (torch.rand(7, 2), torch.tensor([0, 1, 1, 3, 0, 4, 1]))
    exported = torch.export.export(Function(make_fx(forces)(*arguments)), arguments)
    program = decompose(exported)
    assert not [node for node in program.graph.nodes if "torch_ops" in str(node.target)]
    torch.testing.assert_close(program.module()(*arguments), forces(*arguments))


def test_what_is_not_exported() -> None:
    message = "program must be a torch.export.ExportedProgram, but it is a Linear. Export the model"
    with pytest.raises(TypeError, match=message):
        decompose(nn.Linear(2, 2))  # type: ignore[arg-type]
