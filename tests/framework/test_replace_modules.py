"""replace_modules: what becomes ours, what stays as it was, what is left and why."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import torch_ops
from torch_ops import Replacement, replace_modules

PAIRS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Embedding: torch_ops.Embedding,
    nn.EmbeddingBag: torch_ops.EmbeddingBag,
    nn.ReLU: torch_ops.ReLU,
    nn.LeakyReLU: torch_ops.LeakyReLU,
    nn.Sigmoid: torch_ops.Sigmoid,
}


class Net(nn.Module):
    """Each of the classes, where no container tells what comes next."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.rows = nn.Embedding(7, 4, padding_idx=2, max_norm=3.0)
        self.bags = nn.EmbeddingBag(7, 4, mode="sum")
        self.norm = nn.LayerNorm(4)
        self.relu = nn.ReLU(inplace)
        self.leaky = nn.LeakyReLU(0.3, inplace)
        self.linear = nn.Linear(4, 7)
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        x = self.leaky(self.norm(self.rows(x) + self.bags(x)[:, None]) - 0.1)
        return self.gate(self.linear(self.relu(self.norm(x))))


def classes(model: nn.Module) -> list[type[nn.Module]]:
    return [type(module) for module in model.modules()]


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    output = model(x)
    (
        output * torch.linspace(-1, 1, output.numel(), device=x.device).view(output.shape)
    ).sum().backward()
    return output.detach(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("inplace", [False, True])
def test_results_and_gradients_are_those_of_before(inplace: bool, device: torch.device) -> None:
    torch.manual_seed(0)
    model = Net(inplace).double().to(device)
    x = torch.tensor([[0, 2, 6], [6, 6, 1]], device=device)
    reference = copy.deepcopy(model)
    before, state = (
        list(model.modules()),
        {k: id(v) for k, v in model.state_dict(keep_vars=True).items()},
    )

    assert replace_modules(model) is model
    assert [type(m) for m in model.modules()] == [PAIRS.get(c, c) for c in classes(reference)]
    assert all(now is was for now, was in zip(model.modules(), before, strict=True))
    assert {k: id(v) for k, v in model.state_dict(keep_vars=True).items()} == state
    assert (model.relu.inplace, model.leaky.inplace) == (inplace, inplace)
    assert model.leaky.negative_slope == 0.3
    assert (model.rows.padding_idx, model.rows.max_norm) == (2, 3.0)
    for actual, wanted in zip(step(model, x), step(reference, x), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-14)

    reference.load_state_dict(model.state_dict())
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=False)
    assert classes(loaded) == classes(model)
    assert replace_modules(model) is model  # nothing is left to do


def test_an_activation_keeps_one_bit_per_element(device: torch.device) -> None:
    saved: list[Tensor] = []
    layer = replace_modules(nn.ReLU())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(torch.randn(1024, device=device, requires_grad=True))
    assert sum(t.nbytes for t in saved) <= 1024 // 8 + 16
    assert repr(layer) == "ReLU()"


def test_hooks_flags_and_tied_weights_stay() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.ReLU(), nn.Sigmoid())
    decoder = nn.Linear(3, 5, bias=False)
    decoder.weight = model[0].weight
    calls: list[str] = []
    model[1].register_forward_hook(lambda *_: calls.append("hook"))
    model[2].register_full_backward_hook(lambda *_: calls.append("backward"))
    model[0].weight.register_hook(lambda _: calls.append("weight"))
    model[0].note = "mine"
    model.eval()
    model[1].train()
    model[0].weight.requires_grad_(True)
    both = nn.ModuleDict({"model": model, "decoder": decoder})
    optimizer = torch.optim.SGD(both.parameters(), lr=1.0)
    replace_modules(both)
    assert [type(layer) for layer in model] == [
        PAIRS[c] for c in (nn.Embedding, nn.ReLU, nn.Sigmoid)
    ]
    assert [layer.training for layer in (model, *model)] == [False, False, True, False]
    assert model[0].note == "mine"
    assert decoder.weight is model[0].weight
    before = decoder.weight.detach().clone()
    decoder(model(torch.tensor([1]))).sum().backward()
    optimizer.step()
    assert not torch.equal(decoder.weight, before)
    assert sorted(calls) == ["backward", "hook", "weight"]


def test_a_layer_that_is_the_model_and_one_that_is_in_it_twice() -> None:
    assert type(replace_modules(nn.Sigmoid())) is torch_ops.Sigmoid
    shared = nn.ReLU()
    model = nn.ModuleList([shared, nn.ModuleList([shared])])
    _, report = replace_modules(model, report=True)
    assert report == [Replacement("0", nn.ReLU, torch_ops.ReLU, "")]
    assert model[1][0] is shared


BEFORE_LINEAR = "it stands before a Linear, which keeps its output: a mask would save nothing"


class Reversed(nn.Sequential):
    """A container whose forward tells nothing of the order."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self):
            x = layer(x)
        return x


def with_forward(model: nn.Module) -> nn.Module:
    model.forward = lambda x: x  # type: ignore[method-assign]
    return model


def shared_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(relu, nn.Linear(2, 2), relu, nn.Tanh())


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), {"0"}),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(), nn.Linear(2, 2)), {"1"}),
        (lambda: nn.Sequential(nn.Sigmoid(), nn.Linear(2, 2)), set()),  # it keeps no mask
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), set()),
        (lambda: nn.Sequential(nn.ReLU(), nn.LayerNorm(2), nn.Linear(2, 2)), set()),
        (lambda: nn.Sequential(nn.ReLU(), nn.Identity(), nn.Flatten(), nn.Linear(2, 2)), {"0"}),
        (lambda: nn.Sequential(nn.ReLU(), nn.Dropout(), nn.Linear(2, 2)), set()),
        (lambda: nn.Sequential(nn.Sequential(nn.ReLU()), nn.Linear(2, 2)), {"0.0"}),
        (lambda: nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(2, 2))), {"0"}),
        (lambda: nn.ModuleList([nn.ReLU(), nn.Linear(2, 2)]), set()),
        (lambda: nn.ModuleList([nn.Sequential(nn.ReLU(), nn.Linear(2, 2))]), {"0.0"}),
        (lambda: Reversed(nn.ReLU(), nn.Linear(2, 2)), set()),
        (lambda: Reversed(nn.Sequential(nn.ReLU(), nn.Linear(2, 2))), {"0.0"}),
        (lambda: nn.Sequential(Reversed(nn.ReLU()), nn.Linear(2, 2)), set()),
        (lambda: with_forward(nn.Sequential(nn.ReLU(), nn.Linear(2, 2))), set()),
        (lambda: nn.ModuleList([nn.Sequential(), nn.ReLU()]), set()),
        (lambda: nn.ModuleList([nn.Sequential(nn.Identity()), nn.ReLU()]), set()),
        (lambda: nn.Sequential(nn.Sequential(), nn.ReLU(), nn.Linear(2, 2)), {"1"}),
        (shared_relu, set()),  # at one of its places a mask saves something
    ],
)
def test_activations_before_a_linear(make: Callable[[], nn.Module], left: set[str]) -> None:
    model = make()
    _, report = replace_modules(model, report=True)
    assert len(report) == sum(type(m) in (*PAIRS, *PAIRS.values()) for m in model.modules())
    assert {entry.name for entry in report if entry.reason == BEFORE_LINEAR} == left
    for entry in report:
        assert entry.new is (None if entry.name in left else PAIRS[entry.old])
        assert type(model.get_submodule(entry.name)) is (entry.new or entry.old)


class MyReLU(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class MyWeight(Tensor):
    """A subclass with an embedding of its own, as those of quantized weights."""


class MyShards(MyWeight):
    """With what shows that a tensor is a DTensor."""

    device_mesh = None


def test_what_is_left_and_why() -> None:
    patched = with_forward(nn.Sigmoid())
    mine = nn.EmbeddingBag(3, 2)
    mine.weight = nn.Parameter(torch.ones(3, 2).as_subclass(MyWeight))
    saves = nn.LeakyReLU()
    saves.save = print
    parametrized = nn.Embedding(3, 2)
    nn.utils.parametrizations.weight_norm(parametrized)
    model = nn.ModuleList(
        [
            *[MyReLU(), torch_ops.ReLU(), patched, parametrized, mine, saves],
            *[nn.ReLU6(), nn.ELU()],
        ]
    )
    before = classes(model)
    _, report = replace_modules(model, report=True)
    assert classes(model) == before
    assert [(entry.name, entry.new, entry.reason) for entry in report] == [
        ("0", None, "MyReLU is a subclass of torch.nn.ReLU"),
        ("1", None, "it is one of torch_ops already"),
        ("2", None, "it has a forward of its own"),
        ("3", None, "ParametrizedEmbedding is a subclass of torch.nn.Embedding"),
        ("4", None, "its weight is a MyWeight, which may know only torch's ops"),
        ("5", None, "it has an attribute save, which would be overwritten"),
    ]
    assert replace_modules(nn.Linear(2, 2), report=True)[1] == []


def test_a_forward_that_was_replaced_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, input: input + 1)
    model, report = replace_modules(nn.Sequential(nn.ReLU(), nn.Sigmoid()), report=True)
    assert report[0].reason == "the forward of torch.nn.ReLU was replaced"
    assert model(torch.zeros(1)).item() == torch.tensor(1.0).sigmoid().item()


def test_weights_that_our_ops_take() -> None:
    plain = nn.Embedding(3, 2)
    weight = plain.weight.detach()
    del plain.weight
    plain.register_buffer("weight", weight)
    with FakeTensorMode():
        fake = nn.Embedding(3, 2)
    sharded = nn.Embedding(3, 2)
    sharded.weight = nn.Parameter(torch.ones(3, 2).as_subclass(MyShards))
    for layer in (plain, fake, sharded, nn.Embedding(3, 2, device="meta")):
        assert type(replace_modules(layer)) is torch_ops.Embedding


@pytest.mark.parametrize("inplace", [None, 0, "no"])
def test_inplace_that_is_no_bool(inplace: Any) -> None:
    for layer in (nn.ReLU(inplace), nn.LeakyReLU(0.5, inplace)):
        x = torch.tensor([2.0])
        assert (replace_modules(layer)(x) is x) is bool(inplace)


@pytest.mark.parametrize("cls", PAIRS)
def test_the_way_back(cls: type[nn.Module]) -> None:
    """By hand, as the tour says; and ours once more."""
    layer = cls(7, 4) if "Embedding" in cls.__name__ else cls()
    x = torch.tensor([[1, 2]]) if "Embedding" in cls.__name__ else torch.tensor([-1.0, 2.0])
    wanted, shown, state = layer(x), repr(layer), set(layer.state_dict())
    assert type(replace_modules(layer)) is PAIRS[cls]
    layer.__class__ = cls
    assert torch.equal(layer(x), wanted)
    assert (type(layer), repr(layer), set(layer.state_dict())) == (cls, shown, state)
    assert torch.equal(copy.deepcopy(layer)(x), wanted)
    assert type(replace_modules(layer)) is PAIRS[cls]
    torch.testing.assert_close(layer(x), wanted)


@pytest.mark.parametrize("model", [None, nn.ReLU, torch.nn.functional.relu, [nn.ReLU()]])
def test_what_is_no_module(model: Any) -> None:
    with pytest.raises(
        TypeError, match=r"model must be a torch\.nn\.Module, but it is (None|an? )"
    ):
        replace_modules(model)


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning", "ignore:.*jit.*:DeprecationWarning")
def test_a_trace_gives_no_warnings_that_it_did_not_give_before() -> None:
    layer = replace_modules(nn.Embedding(5, 2, padding_idx=0))
    index = torch.tensor([3, 0])
    assert torch.equal(torch.jit.trace(layer, index)(index), layer(index))
    layer.padding_idx = 5
    with pytest.raises(ValueError, match=r"padding_idx must be between -5 and 4.*\[5, 2\].*is 5"):
        torch.jit.trace(layer, index)


@pytest.mark.slow
def test_a_compiled_model(device: torch.device) -> None:
    torch.manual_seed(0)
    model = Net().double().to(device)
    model.rows.max_norm = None
    x = torch.tensor([[0, 2, 6], [6, 6, 1]], device=device)
    wanted = step(model, x)
    compiled = torch.compile(model, fullgraph=True)
    compiled(x)
    replace_modules(compiled)
    assert type(model.relu) is torch_ops.ReLU
    for actual, expected in zip(step(compiled, x), wanted, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
