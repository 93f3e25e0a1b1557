"""The activations and embedding of jagged nested tensors, beside torch's; errors for others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_ops

LENGTHS = (3, 1, 0, 4)

Function = Callable[..., Any]


def leaky_relu(x: Tensor, slope: float) -> Tensor:
    """torch's has no jagged form."""
    return torch.relu(x) - slope * torch.relu(-x)


PAIRS: dict[str, tuple[Function, Function]] = {
    "relu": (torch_ops.relu, F.relu),
    "relu output": (lambda x: torch_ops.relu(x, save="output"), F.relu),
    "ReLU": (torch_ops.ReLU(), nn.ReLU()),
    "leaky_relu": (lambda x: torch_ops.leaky_relu(x, 0.2), lambda x: leaky_relu(x, 0.2)),
    "LeakyReLU": (torch_ops.LeakyReLU(-0.5), lambda x: leaky_relu(x, -0.5)),
    "sigmoid": (torch_ops.sigmoid, torch.sigmoid),
    "Sigmoid": (torch_ops.Sigmoid(), nn.Sigmoid()),
}
INPLACE: dict[str, tuple[Function, Function]] = {
    "relu_": (torch_ops.relu_, torch.relu_),
    "ReLU": (torch_ops.ReLU(inplace=True), nn.ReLU(inplace=True)),
    "leaky_relu_": (torch_ops.leaky_relu_, lambda x: x.copy_(leaky_relu(x, 0.01))),
    "sigmoid_": (torch_ops.sigmoid_, torch.sigmoid_),
}


def jagged(device: torch.device, requires_grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(length, 5, generator=generator).to(device) for length in LENGTHS]
    made = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return made.requires_grad_(requires_grad)


def views(x: Tensor) -> dict[str, Tensor]:
    """Of the same values: as it is, the ragged axis last, and with gaps between the parts."""
    starts = torch.tensor([0, 1, 2, 0], device=x.device)
    lengths = torch.tensor([2, 3, 1, 0], device=x.device)
    padded = x.detach().to_padded_tensor(0.5)
    return {
        "plain": x,
        "transposed": x.transpose(1, 2),
        "gaps": torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged),
    }


def assert_like(actual: Tensor, expected: Tensor) -> None:
    assert actual.layout == torch.jagged and actual.shape[0] == expected.shape[0]
    assert actual._ragged_idx == expected._ragged_idx  # type: ignore[attr-defined]
    for ours, theirs in zip(actual.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("view", ["plain", "transposed", "gaps"])
@pytest.mark.parametrize("name", PAIRS)
def test_activations(device: torch.device, name: str, view: str) -> None:
    ours, theirs = PAIRS[name]
    x = views(jagged(device))[view]
    output = ours(x)
    assert_like(output, theirs(x))
    assert output.shape == x.shape  # the same lengths: they may be added
    assert_like(output + x, theirs(x) + x)


@pytest.mark.parametrize("name", PAIRS)
def test_gradients(device: torch.device, name: str) -> None:
    gradients = []
    for function in PAIRS[name]:
        x = jagged(device, requires_grad=True)
        y = function(x.transpose(1, 2))
        (first,) = torch.autograd.grad((y * y).values().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first).values().sum(), x)
        gradients.append((first.detach(), second))
    for actual, expected in zip(*gradients, strict=True):
        assert_like(actual, expected)


@pytest.mark.parametrize("name", INPLACE)
def test_in_place(device: torch.device, name: str) -> None:
    gradients = []
    for function in INPLACE[name]:
        x = jagged(device, requires_grad=True)
        y = x * 2
        assert function(y) is y
        (y * y).values().sum().backward()
        assert x.grad is not None
        gradients.append((y.detach(), x.grad))
    for actual, expected in zip(*gradients, strict=True):
        assert_like(actual, expected)
    plain = jagged(device)
    values = plain.values()
    INPLACE[name][0](plain)
    assert torch.equal(plain.values(), values)  # the memory is the same
    assert int((values < -0.5).sum()) == 0


EMBEDDINGS: list[dict[str, Any]] = [
    {},
    {"padding_idx": 1},
    {"max_norm": 0.7},
    {"scale_grad_by_freq": True},
    {"sparse": True},
]


@pytest.mark.parametrize("options", EMBEDDINGS, ids=str)
def test_embedding(device: torch.device, options: dict[str, Any]) -> None:
    parts = [torch.tensor(part, device=device) for part in ([0, 3, 3], [1], [2, 1, 0, 5])]
    index = torch.nested.nested_tensor(parts, layout=torch.jagged)
    ours = torch_ops.Embedding(6, 4, **options, device=device)
    theirs = nn.Embedding(6, 4, **options, device=device)
    theirs.load_state_dict(ours.state_dict())
    output, expected = ours(index), theirs(index.values())  # torch's has not all options, jagged
    assert output.shape == (*index.shape, 4)
    torch.testing.assert_close(output.values(), expected)
    weights = torch.linspace(0.5, 2, 32, device=device).view(8, 4)
    for result in (output.values(), expected):
        (result * weights).sum().backward()
    assert ours.weight.grad is not None and theirs.weight.grad is not None
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad.to_dense())


@pytest.mark.parametrize("options", EMBEDDINGS[:3], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(device: torch.device, mode: str, options: dict[str, Any]) -> None:
    parts = [torch.tensor(part, device=device).long() for part in ([0, 3, 3], [], [2, 1, 0, 5])]
    index = torch.nested.nested_tensor(parts, layout=torch.jagged)
    weights = None
    if mode == "sum" and not options:
        values = torch.linspace(0.5, 2, 7, device=device)
        weights = torch.nested.nested_tensor_from_jagged(values, index.offsets())  # type: ignore
    ours = torch_ops.EmbeddingBag(6, 4, mode=mode, **options, device=device)
    theirs = nn.EmbeddingBag(6, 4, mode=mode, **options, device=device)
    theirs.load_state_dict(ours.state_dict())
    outputs = [layer(index, per_sample_weights=weights) for layer in (ours, theirs)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        (output * output).sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_bags_with_gaps_and_wrong_weights(device: torch.device) -> None:
    values, offsets = torch.arange(6, device=device), torch.tensor([0, 3, 6], device=device)
    lengths = torch.tensor([1, 2], device=device)
    gaps = torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
    table = torch.eye(6, device=device)
    bags = torch_ops.embedding_bag(gaps, table, mode="sum")
    assert bags.tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]]
    for weights in (torch.ones(6, device=device), gaps.contiguous().float()):
        with pytest.raises(ValueError, match=r"^embedding_bag: per_sample_weights must have the"):
            torch_ops.embedding_bag(gaps, table, mode="sum", per_sample_weights=weights)


def test_lengths_that_are_known_stay_so(device: torch.device) -> None:
    x = jagged(device)
    x._max_seqlen  # type: ignore[attr-defined]  # noqa: B018  # found once, by waiting for the GPU
    assert torch_ops.relu(x)._maybe_max_seqlen == 4  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # Inductor, of the matrix products
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(device: torch.device, backend: str) -> None:
    """A whole model in one graph, for other lengths too."""
    torch._dynamo.reset()  # it counts what other tests have compiled of nn.Sequential.forward
    model = nn.Sequential(
        torch_ops.Embedding(6, 4),
        nn.Linear(4, 4),
        torch_ops.ReLU(),
        torch_ops.LeakyReLU(0.3),
        torch_ops.Sigmoid(),
    ).to(device)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for lengths in ((3, 1, 2), (5, 2, 2), (1, 4, 1)):
        parts = [torch.arange(length, device=device) for length in lengths]
        index = torch.nested.nested_tensor(parts, layout=torch.jagged)
        gradients = []
        for each in (model, compiled):
            model.zero_grad()
            output = each(index)
            (output * output).values().sum().backward()
            gradients.append([output.detach().values(), *(p.grad for p in model.parameters())])
        torch.testing.assert_close(*gradients)


REFUSED: dict[str, Function] = {
    "gather: source": lambda x: torch_ops.gather(x, torch.tensor([0], device=x.device)),
    "batch_gather: source": lambda x: torch_ops.batch_gather(x, x.long()),
    "scatter_add: values": lambda x: torch_ops.scatter_add(x, x.long(), 3),
    "scatter: values": lambda x: torch_ops.scatter(x, x.long(), 3, reduce="amax"),
    "index: source": lambda x: torch_ops.index(x, (torch.tensor([0], device=x.device),)),
    "gather_nd: source": lambda x: torch_ops.gather_nd(x, x.long()),
    "segment_reduce: values": lambda x: torch_ops.segment_reduce(x, x.long()),
    "embedding: input": lambda x: torch_ops.embedding(x.long(), torch.zeros(3, 4, device=x.device)),
    "embedding_bag: input": lambda x: torch_ops.embedding_bag(
        x.long(), torch.zeros(3, 4, device=x.device)
    ),
    "gather_plan: index": lambda x: torch_ops.gather_plan(x.long(), 3),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("name", REFUSED)
def test_strided_nested_tensors_are_refused(name: str, device: torch.device) -> None:
    """Where jagged ones are accepted, the error says so."""
    parts = [torch.ones(length, 5, device=device) for length in LENGTHS]
    strided = torch.nested.nested_tensor(parts, layout=torch.strided)
    takes_jagged = "embedding:" in name
    words = "or a jagged one (layout=torch.jagged), but" if takes_jagged else "but it is a nested"
    for x in (strided, strided.detach().requires_grad_()):
        with pytest.raises(TypeError, match=f"^{name} must be a dense tensor.*{re.escape(words)}"):
            REFUSED[name](x)


@pytest.mark.parametrize("name", [name for name in REFUSED if " " in name])
def test_jagged_ones_are_refused_or_taken(name: str, device: torch.device) -> None:
    parts = [torch.zeros(length, 5, device=device) for length in LENGTHS]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    if "embedding:" in name:
        assert REFUSED[name](jagged).is_nested
        return
    with pytest.raises(TypeError, match=f"^{name} must be a dense tensor, but it is a nested one"):
        REFUSED[name](jagged)


# How others than dense ones are made, what their error says, and where there are some.
KINDS: dict[Function, tuple[str, tuple[str, ...]]] = {
    torch.Tensor.to_sparse: ("layout is Sparse. Its to_dense() is", ("cpu", "cuda")),
    torch.Tensor.to_sparse_csr: ("layout is SparseCsr. Its to_dense() is", ("cpu", "cuda")),
    torch.Tensor.to_mkldnn: ("layout is Mkldnn. Its to_dense() is", ("cpu",)),
    lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8): (
        "it is quantized. Its dequantize() is",
        ("cpu", "cuda"),
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_tensors_that_are_not_dense_are_refused(device: torch.device) -> None:
    index, rows = torch.tensor([0, 1, 0, 1], device=device), torch.zeros(4, 3, device=device)
    calls: dict[str, Function] = {
        "gather: source": lambda x: torch_ops.gather(x, index),
        "gather: index": lambda x: torch_ops.gather(rows, torch_ops.plan_cache(x, 4)),
        "gather_csr: offsets": lambda x: torch_ops.gather_csr(rows, x),
        "scatter_add: values": lambda x: torch_ops.scatter_add(x, index, 2),
        "scatter: values": lambda x: torch_ops.scatter(x, index, 2, reduce="var"),
        "scatter_: values": lambda x: torch_ops.scatter_(rows, x, index, reduce="amax"),
        "segment_reduce: values": lambda x: torch_ops.segment_reduce(x, index, "prod"),
        "gather_elements: source": lambda x: torch_ops.gather_elements(x, rows.long(), 0),
        "embedding: weight": lambda x: torch_ops.embedding(index, x),
        "index: source": lambda x: torch_ops.index(x, (index,)),
        "scatter_add_: out": lambda x: torch_ops.scatter_add_(x, rows, index),
        "index_put: source": lambda x: torch_ops.index_put(x, (index, 0), 1),
        "index_put_: source": lambda x: torch_ops.index_put_(x, 0, 1),
        "index_add: values": lambda x: torch_ops.index_add(rows, index, x),
        "masked_gather: source": lambda x: torch_ops.masked_gather(x, index > 0),
        "masked_gather: mask": lambda x: torch_ops.masked_gather(rows, x),
        "masked_scatter: out": lambda x: torch_ops.masked_scatter(rows, index >= 0, out=x),
    }
    with pytest.raises(TypeError, match=r"^index: a mask must be a dense tensor"):
        torch_ops.index(rows, (rows == 0).to_sparse())
    with pytest.raises(TypeError, match=r"^softmax: index must be a dense tensor"):
        torch_ops.softmax(rows, index.to_sparse())
    for convert, (words, devices) in KINDS.items():
        if device.type not in devices:
            continue
        x = convert(torch.rand(4, 3, device=device))
        for name, call in calls.items():
            with pytest.raises(
                TypeError, match=f"^{name} must be a dense tensor.*{re.escape(words)}"
            ):
                call(x)


def result(function: Function, x: Tensor) -> tuple[str, list[Tensor]]:
    """What a function returns, and its values and the gradient of their squares; or its error."""
    try:
        y = function(x * 1 if x.requires_grad else x.clone())
        parts = y.unbind() if y.is_nested else [y]
        dense = [p.dequantize() if p.is_quantized else p.to_dense() for p in parts]
        if x.requires_grad:
            torch.cat([part.flatten() for part in dense]).square().sum().backward()
            grads = x.grad.unbind() if y.is_nested else [x.grad.to_dense()]
            dense = [*dense, *grads]
    except RuntimeError as error:
        return f"{type(error)} {str(error).splitlines()[0]}", []
    return f"{y.layout} {y.dtype}", [part.detach() for part in dense]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("kind", ["plain", "grad", "inference"])
@pytest.mark.parametrize(
    "name", ["relu", "relu_", "leaky_relu", "leaky_relu_", "sigmoid", "sigmoid_"]
)
def test_activations_of_other_layouts_are_torchs(
    device: torch.device, name: str, kind: str
) -> None:
    """Their results and gradients, and torch's own error where it has none."""
    ours, theirs = getattr(torch_ops, name), getattr(F if "leaky" in name else torch, name)
    values = torch.linspace(-1, 1, 12, device=device).view(4, 3)
    nested = lambda x: torch.nested.nested_tensor([x[:3], x[3:]])  # noqa: E731
    kinds = [convert for convert, (_, devices) in KINDS.items() if device.type in devices]
    with torch.inference_mode(kind == "inference"):
        for convert in (*kinds, nested):
            results = []
            for function in (ours, theirs):
                x = convert(values).detach()
                if kind == "grad" and x.is_floating_point():
                    x.requires_grad_()
                results.append(result(function, x))
            (what, values_of_ours), (expected, values_of_theirs) = results
            assert what == expected
            torch.testing.assert_close(values_of_ours, values_of_theirs, rtol=0, atol=0)
