"""What is done with a layer beside calling it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import torch_ops
from support import assert_close, weighted


@dataclass(frozen=True)
class Layer:
    """A layer, ways to make it, and the layer of torch whose place it takes."""

    cls: type[nn.Module]
    inputs: Callable[[torch.device], tuple[Tensor, ...]]
    # Arguments, and whether torch's layer has them too.
    options: tuple[tuple[dict[str, Any], bool], ...]
    torchs: type[nn.Module] | None = None
    # Checks that cannot hold for the layer, each with the reason.
    exempt: dict[str, str] = field(default_factory=dict)

    def made(self, device: torch.device) -> list[nn.Module]:
        return [self.cls(**options).to(device) for options, _ in self.options]

    def pairs(self, device: torch.device) -> list[tuple[nn.Module, nn.Module]]:
        """Ours and torch's, by the same arguments."""
        if self.torchs is None:
            return []
        return [
            (self.cls(**options).to(device), self.torchs(**options).to(device))
            for options, shared in self.options
            if shared
        ]

    def __str__(self) -> str:
        return self.cls.__name__


def call(layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return layer(*[tensor.clone() for tensor in inputs])  # some layers work in place


class Positive(nn.Module):
    """A parametrisation."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.exp()


class LayerChecks:
    def test_state_dict(self, layer: Layer, device: torch.device) -> None:
        """It has the entries of torch's, and can be loaded there and back."""
        inputs = layer.inputs(device)
        for ours in layer.made(device):
            other = copy.deepcopy(ours)
            for parameter in other.parameters():
                nn.init.zeros_(parameter)
            other.load_state_dict(ours.state_dict(), strict=True)
            assert_close(call(other, inputs), call(ours, inputs))
        for ours, theirs in layer.pairs(device):
            assert list(ours.state_dict()) == list(theirs.state_dict())
            ours.load_state_dict(theirs.state_dict(), strict=True)
            theirs.load_state_dict(ours.state_dict(), strict=True)
            assert_close(call(ours, inputs), call(theirs, inputs))

    def test_instance(self, layer: Layer, device: torch.device) -> None:
        """Tools that look for torch's layer find ours."""
        for ours, theirs in layer.pairs(device):
            assert isinstance(ours, type(theirs))
            assert {*vars(ours)} - {*vars(theirs)} <= {"save"}

    def test_copies(self, layer: Layer, device: torch.device) -> None:
        """deepcopy, pickle, torch.save."""
        inputs = layer.inputs(device)
        for ours in layer.made(device):
            buffer = io.BytesIO()
            torch.save(ours, buffer)
            buffer.seek(0)
            for other in (
                copy.deepcopy(ours),
                pickle.loads(pickle.dumps(ours)),
                torch.load(buffer, weights_only=False),
            ):
                assert type(other) is layer.cls and repr(other) == repr(ours)
                assert_close(call(other, inputs), call(ours, inputs))

    def test_to(self, layer: Layer, device: torch.device) -> None:
        """to, half, double; the meta device and back; train and eval."""
        inputs = layer.inputs(device)
        for ours in layer.made(device):
            floats = [tensor.is_floating_point() for tensor in inputs]
            for dtype in (torch.float16, torch.bfloat16, torch.float64):
                moved = copy.deepcopy(ours).to(dtype)
                assert all(parameter.dtype == dtype for parameter in moved.parameters())
                given = [t.to(dtype) if f else t for t, f in zip(inputs, floats, strict=True)]
                assert call(moved, tuple(given)).dtype == dtype
            assert all(p.dtype == torch.float16 for p in copy.deepcopy(ours).half().parameters())
            on_meta = copy.deepcopy(ours).to("meta")
            output = call(on_meta, tuple(tensor.to("meta") for tensor in inputs))
            assert output.device.type == "meta" and output.shape == call(ours, inputs).shape
            back = on_meta.to_empty(device=device)
            back.load_state_dict(ours.state_dict())
            assert_close(call(back.eval(), inputs), call(ours.train(), inputs))

    def test_repr(self, layer: Layer, device: torch.device) -> None:
        """It shows the options, and makes the layer again; where torch has it, it is torch's."""
        for ours in layer.made(device):
            again = eval(repr(ours), {**vars(torch_ops), "nan": float("nan")})
            assert type(again) is layer.cls and repr(again) == repr(ours)
        for ours, theirs in layer.pairs(device):
            assert repr(ours) == repr(theirs)
        assert len({repr(ours) for ours in layer.made(device)}) == len(layer.options)

    def test_skip_init(self, layer: Layer, device: torch.device) -> None:
        """`skip_init` works for layers with parameters; others behave as torch's."""
        for options, _ in layer.options:
            if list(layer.cls(**options).parameters()):
                made = torch.nn.utils.skip_init(layer.cls, **options, device=device)
                assert type(made) is layer.cls
                assert all(p.device.type == device.type for p in made.parameters())
                assert repr(made) == repr(layer.cls(**options))
            else:
                for cls in (layer.cls, layer.torchs or layer.cls):
                    with pytest.raises(RuntimeError, match="must support a 'device' arg"):
                        torch.nn.utils.skip_init(cls, **(options if cls is layer.cls else {}))

    def test_parametrize(self, layer: Layer, device: torch.device) -> None:
        """Its own weight or, where it has none, that of the layer in front of it."""
        inputs = layer.inputs(device)
        for ours in layer.made(device):
            if getattr(ours, "max_norm", None):
                continue  # it overwrites its weight, which torch's layer cannot either then
            if hasattr(ours, "weight"):
                parametrize.register_parametrization(ours, "weight", Positive())
                output = call(ours, inputs)
                weighted(output).backward()
                gradient = ours.parametrizations.weight.original.grad
                assert gradient is not None and gradient.abs().sum() > 0
                assert (output > 0).all()
                continue
            front = nn.Linear(inputs[0].shape[-1], inputs[0].shape[-1], device=device)
            parametrize.register_parametrization(front, "weight", Positive())
            weighted(ours(front(inputs[0]), *inputs[1:])).backward()
            gradient = front.parametrizations.weight.original.grad
            assert gradient is not None and gradient.abs().sum() > 0

    def test_sequential(self, layer: Layer, device: torch.device) -> None:
        """In torch.nn.Sequential, one for one in the place of torch's: a step of training."""
        inputs = layer.inputs(device)
        assert layer.pairs(device)
        for ours, theirs in layer.pairs(device):
            width = call(theirs, inputs).shape[-1]
            results = []
            state = None
            for middle in (theirs, ours):
                front = [] if hasattr(middle, "weight") else [nn.Linear(width, width)]
                model = nn.Sequential(*front, middle, nn.Linear(width, 2)).to(device)
                model.load_state_dict(state or model.state_dict(), strict=True)
                state = copy.deepcopy(model.state_dict())
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                output = model(*inputs)
                weighted(output).backward()
                optimizer.step()
                results.append([output, *model.parameters()])
            assert_close(*results)
