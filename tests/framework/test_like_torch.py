"""Our layers and functions where code expects torch's: what tools ask, and what is called alike."""

from __future__ import annotations

import copy
import inspect
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import ROOT
from support.registry import is_no_op
from torch import Tensor, nn
from torch.ao.quantization import fuse_modules, fuse_modules_qat
from torch.nn.utils import prune

import torch_ops

# ---- Tools that ask for torch's classes ---------------------------------------------------------


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        torch_ops.Embedding(6, 8, padding_idx=2),
        nn.Linear(8, 8),
        torch_ops.ReLU(),
        nn.Linear(8, 8),
        torch_ops.LeakyReLU(0.2),
        nn.Linear(8, 3),
        torch_ops.Sigmoid(),
    )


@pytest.mark.parametrize("amount", [0.25, 0.5])
def test_pruning(amount: float) -> None:
    """By kind of layer, as examples of it are written; and what it takes away has no gradient."""
    ours, theirs = torch_ops.Embedding(6, 8), nn.Embedding(6, 8)
    theirs.load_state_dict(ours.state_dict())
    input = torch.tensor([[0, 5], [3, 3]])
    gradients = []
    for layer in (ours, theirs):
        assert isinstance(layer, nn.Embedding)
        prune.l1_unstructured(layer, "weight", amount=amount)
        layer(input).sum().backward()
        assert layer.weight_orig.grad is not None
        gradients.append(layer.weight_orig.grad)
        assert (layer.weight_orig.grad[layer.weight_mask == 0] == 0).all()
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    prune.remove(ours, "weight")
    assert type(ours) is torch_ops.Embedding
    assert int((ours.weight == 0).sum()) == round(amount * 48)


def test_initialisers() -> None:
    """The loop over modules that most training code has."""

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.constant_(module.weight, 0.5)
            assert module.padding_idx is not None
        elif isinstance(module, nn.LeakyReLU):
            found.append(nn.init.calculate_gain("leaky_relu", module.negative_slope))
        elif isinstance(module, (nn.ReLU, nn.Sigmoid)):
            found.append(nn.init.calculate_gain(type(module).__name__.lower()))

    found: list[float] = []
    initialised = model().apply(initialise)
    assert isinstance(initialised[0].weight, Tensor)
    assert (initialised[0].weight == 0.5).all()
    assert found == [
        nn.init.calculate_gain("relu"),
        nn.init.calculate_gain("leaky_relu", 0.2),
        nn.init.calculate_gain("sigmoid"),
    ]


def test_fusion_leaves_ours_alone() -> None:
    """torch's own fusers know classes by name: they refuse ours, and replace none of them."""
    pair = nn.Sequential(nn.Conv2d(2, 3, 1), torch_ops.ReLU())
    for fuse, layers in (
        (fuse_modules, pair.eval()),
        (fuse_modules_qat, copy.deepcopy(pair).train()),
    ):
        with pytest.raises(AssertionError, match="did not find fuser method"):
            fuse(layers, [["0", "1"]])
        assert type(layers[1]) is torch_ops.ReLU
    normed = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), torch_ops.ReLU()).eval()
    x = torch.randn(1, 2, 4, 4)
    expected = normed(x)
    fused = fuse_modules(normed, [["0", "1"]])
    assert type(fused[2]) is torch_ops.ReLU
    torch.testing.assert_close(fused(x), expected)


@pytest.mark.parametrize("options", [{}, {"padding_idx": -1}, {"sparse": True}], ids=str)
def test_fx_reads_every_layer(options: dict[str, Any]) -> None:
    layers = model()
    layers[0] = torch_ops.Embedding(6, 8, **options)
    traced = torch.fx.symbolic_trace(layers)
    input = torch.tensor([[0, 5], [3, 3]])
    torch.testing.assert_close(traced(input), layers(input))


FX_CALLS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, i: torch_ops.embedding_bag(i[None], x),
    lambda x, i: torch_ops.embedding_bag(i, x, i[:1] * 0, per_sample_weights=x[:4, 0], mode="sum"),
    lambda x, i: torch_ops.scatter_(x.clone(), x[:4], i, reduce="mean"),
    lambda x, i: torch_ops.softmax(x[:4], i),
    lambda x, i: torch_ops.gather_csr(x[:3], i),
    lambda x, i: torch_ops.masked_gather(x, x[:, 0] > 0),
    lambda x, i: torch_ops.index(x, i),
    lambda x, i: torch_ops.index(x, x > 0),
    lambda x, i: torch_ops.index(torch.ones(6, 4), (slice(1, None), i[:2])),
    lambda x, i: torch_ops.index(torch.ones(6), [i[0], 1]),
    lambda x, i: torch_ops.index(x, torch_ops.gather_plan(i, 6)),
    lambda x, i: torch_ops.index_put(x, (i, 1), 1.0),
    lambda x, i: torch_ops.index_put(x, 0, x[1], accumulate=True),
    lambda x, i: torch_ops.index_add(x, i, x[:4], deterministic=True),
]


@pytest.mark.parametrize("call", FX_CALLS)
def test_fx_reads_calls(call: Callable[[Tensor, Tensor], Any]) -> None:
    """Also those that look at axes and dtypes, which proxies lack."""
    traced = torch.fx.symbolic_trace(call)
    for seed, index in enumerate(([0, 2, 2, 5], [0, 1, 1, 3])):
        torch.manual_seed(seed)
        x, i = torch.randn(6, 4), torch.tensor(index)
        assert torch.equal(traced(x, i), call(x, i))


def test_fx_reads_bags_that_were_replaced() -> None:
    layers = torch_ops.replace_modules(nn.Sequential(nn.EmbeddingBag(6, 4, max_norm=1.0)))
    input = torch.tensor([[0, 2], [5, 2]])
    assert torch.equal(torch.fx.symbolic_trace(layers)(input), layers(input))


def test_fx_keeps_writes() -> None:
    """Whose result nobody uses."""

    def write(x: Tensor, i: Tensor) -> Tensor:
        torch_ops.index_put_(x, i, 1.0)
        return x

    traced = torch.fx.symbolic_trace(write)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    assert traced(torch.zeros(3), torch.tensor([1])).tolist() == [0, 1, 0]


def test_transformer_layers() -> None:
    """torch's layer asks for nn.ReLU to choose its fused inference, which computes the same."""
    x = torch.randn(2, 3, 8)
    results = []
    for activation in (torch_ops.ReLU(), nn.ReLU()):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, activation=activation)
        with torch.no_grad():
            results.append([layer(x), layer.eval()(x)])
        assert type(layer.activation) is type(activation)
    torch.testing.assert_close(results[0], results[1])


# ---- torch.jit.script ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        torch_ops.ReLU,
        lambda: torch_ops.ReLU(inplace=True, save="output"),
        lambda: torch_ops.LeakyReLU(0.3),
        lambda: torch_ops.LeakyReLU(-0.3, inplace=True),
        torch_ops.Sigmoid,
    ],
)
def test_layers_can_be_scripted(device: torch.device, make: Callable[[], nn.Module]) -> None:
    """In a model, and with gradients; the model's own layers stay."""
    model = nn.Sequential(nn.Linear(3, 3), make()).to(device)
    kind = type(model[1])
    scripted = torch.jit.script(model)
    assert type(model[1]) is kind
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    x = torch.randn(5, 3, device=device)
    gradients = []
    for each in (model, scripted, torch.jit.load(buffer)):
        weight = next(each.parameters())
        gradients.append(torch.autograd.grad(each(x).square().sum(), weight)[0])
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


@pytest.mark.parametrize("options", [{}, {"padding_idx": -1}, {"max_norm": 0.5}], ids=str)
def test_embedding_can_be_scripted(device: torch.device, options: dict[str, Any]) -> None:
    layer = torch_ops.Embedding(5, 3, **options, device=device)
    scripted = torch.jit.script(copy.deepcopy(layer))
    input = torch.tensor([[4, 0], [1, 1]], device=device)
    outputs = [each(input) for each in (layer, scripted)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(scripted.weight.grad, layer.weight.grad)


PUBLIC = [name for name in torch_ops.__all__ if name[0].islower() and not is_no_op(name)]


@pytest.mark.parametrize("name", [*PUBLIC, "Gather", "BatchGather"])
def test_what_cannot_be_scripted_says_what_to_write(name: str) -> None:
    given = getattr(torch_ops, name)
    op = {"Gather": "gather", "BatchGather": "batch_gather"}.get(name, name)
    message = rf"cannot read torch_ops\.{name}\. .*torch\.ops\.torch_ops\.{op}; .*::{op}\(Tensor"
    with pytest.raises(NotImplementedError, match=message):
        torch.jit.script(given if name in PUBLIC else nn.Sequential(given()))


def calls_a_function(x: Tensor) -> Tensor:
    return torch_ops.relu(x)


def calls_an_op(x: Tensor) -> Tensor:
    return torch.ops.torch_ops.relu(x)


def test_the_registered_op_can_be_scripted(device: torch.device) -> None:
    with pytest.raises(Exception, match=r"cannot read torch_ops\.relu\. .*torch\.ops\.torch_ops"):
        torch.jit.script(calls_a_function)
    x = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
    torch.jit.script(calls_an_op)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1]


# ---- What is called alike -----------------------------------------------------------------------

aten = torch.ops.aten
# The README says of these that the name alone has to be replaced. Of torch's built-in functions the
# schema is compared.
SAME: dict[str, Any] = {
    "relu": F.relu,
    "relu_": aten.relu_.default,
    "leaky_relu": F.leaky_relu,
    "leaky_relu_": aten.leaky_relu_.default,
    "sigmoid": aten.sigmoid.default,
    "sigmoid_": aten.sigmoid_.default,
    "embedding": F.embedding,
    "embedding_bag": F.embedding_bag,
    "ReLU": nn.ReLU,
    "LeakyReLU": nn.LeakyReLU,
    "Sigmoid": nn.Sigmoid,
    "Embedding": nn.Embedding,
    "EmbeddingBag": nn.EmbeddingBag,
}
# And of these that two names of arguments differ.
SAME_ORDER: dict[str, Any] = {
    "take_along_dim": aten.take_along_dim.default,
    "index_put": aten.index_put.default,
    "index_put_": aten.index_put_.default,
}
# And of these that their arguments are others than those of torch's functions of this name.
OTHER_ORDER = ["gather", "index_add", "masked_scatter", "scatter", "scatter_add"]
# These compute something else: a result for each segment.
OF_SEGMENTS = ["log_softmax", "logsumexp", "segment_reduce", "softmax"]


def arguments(function: Any) -> list[tuple[str, Any]]:
    """Those that may be given by position, with their defaults."""
    if isinstance(function, torch._ops.OpOverload):
        return [
            (
                "input" if a.name == "self" else a.name,
                a.default_value if a.has_default_value() else None,
            )
            for a in function._schema.arguments
        ]
    return [
        (name, None if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]


@pytest.mark.parametrize("name", SAME)
def test_the_name_alone_is_replaced(name: str) -> None:
    ours = getattr(torch_ops, name)
    assert arguments(ours) == arguments(SAME[name])
    more = [p for p in inspect.signature(ours).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert all(parameter.default is not parameter.empty for parameter in more)


@pytest.mark.parametrize("name", SAME_ORDER)
def test_arguments_in_torchs_order(name: str) -> None:
    ours, theirs = arguments(getattr(torch_ops, name)), arguments(SAME_ORDER[name])
    assert [default for _, default in ours] == [default for _, default in theirs]
    names = (
        {"input": "source", "indices": "index"} if name == "take_along_dim" else {"input": "source"}
    )
    assert [each for each, _ in ours] == [names.get(each, each) for each, _ in theirs]


@pytest.mark.parametrize("name", OTHER_ORDER)
def test_arguments_in_another_order(name: str) -> None:
    """torch's have the axis second; its masked_scatter begins with what is written to."""
    theirs = getattr(aten, name)
    first = [each for each, _ in arguments(getattr(theirs, theirs.overloads()[0]))][:2]
    assert first == ["input", "mask" if name == "masked_scatter" else "dim"]
    assert not {*first[: 1 + (first[1] == "dim")]} & {
        each for each, _ in arguments(getattr(torch_ops, name))[:2]
    }


def test_the_documentation_names_them() -> None:
    """Each of torch's names that we have stands in the paragraph about replacing."""
    text = (ROOT / "docs/coming_from/torch.md").read_text()
    paragraph = text[text.index("Replace only the name in calls") :].split("\n\n")[0]
    groups = [set(re.findall(r"`(\w+)`", part)) for part in paragraph.split(". ")]
    assert groups[0] & {*torch_ops.__all__} == {*SAME}
    assert groups[1] & {*torch_ops.__all__} - {"index"} == {*SAME_ORDER}
    assert {*SAME_ORDER, *OTHER_ORDER, *SAME} <= set.union(*groups)
    shared = {
        name
        for name in torch_ops.__all__
        if any(hasattr(module, name) for module in (torch, F, nn)) and name[0] != "_"
    }
    assert {*OF_SEGMENTS} <= set.union(*groups)
    assert shared <= {*SAME, *SAME_ORDER, *OTHER_ORDER, *OF_SEGMENTS}
