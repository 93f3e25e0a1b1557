"""A training step of small networks, with torch's ReLU and with ours: its time and its memory."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import torch
from torch import Tensor, nn

import torch_ops
from benchmarks._measure import Bar, Benchmark, Check, Implementation, Result, relative_error

Activation = Callable[[], nn.Module]


class Neighbours(nn.Module):
    """The sum of each row's neighbours: keeps nothing of the ReLU's output."""

    def __init__(self, relu: Activation) -> None:
        super().__init__()
        self.relu = relu()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(x)
        return torch.roll(y, 1, 0) + torch.roll(y, -1, 0)


class Residual(nn.Module):
    def __init__(self, relu: Activation) -> None:
        super().__init__()
        self.relu = relu()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(x)


class Centred(nn.Module):
    """Each row less its mean."""

    def __init__(self, relu: Activation) -> None:
        super().__init__()
        self.relu = relu()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(x)
        return y - y.mean(-1, keepdim=True)


DEPTH = 8


def elementwise(layer: type[nn.Module]) -> Callable[[Activation], nn.Module]:
    return lambda relu: nn.Sequential(*(layer(relu) for _ in range(DEPTH)))


def mlp(relu: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(2048, 2048), relu()]
    return nn.Sequential(*layers)


def convolutional(relu: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Conv2d(128, 128, 3, padding=1), relu()]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


NETS: dict[str, Callable[[Activation], nn.Module]] = {
    "neighbours": elementwise(Neighbours),
    "residual": elementwise(Residual),
    "centred": elementwise(Centred),
    "mlp": mlp,
    "convolutional": convolutional,
}
# Their matrix products keep the ReLU's output for themselves.
KEEPING = ("mlp", "convolutional")


def make_input(net: str, dtype: torch.dtype, options: Namespace) -> Tensor:
    rows = max(8, round(2**14 * options.scale))
    if net == "convolutional":
        x = torch.randn(max(1, rows // 512), 128, 64, 64, dtype=dtype, device="cuda")
        return x.to(memory_format=torch.channels_last)
    return torch.randn(rows, 2048, dtype=dtype, device="cuda")


def bytes_moved(options: Namespace) -> int:
    """Of one activation: to place a net in the plot."""
    return max(8, round(2**14 * options.scale)) * 2048 * 4


def step(model: nn.Module, x: Tensor) -> Tensor:
    """One training step; gives the gradient by the input."""
    x = x.detach().requires_grad_()
    model.zero_grad(set_to_none=True)
    y = model(x)
    y.backward(y.detach())
    assert x.grad is not None
    return x.grad


CHOICES = {
    "torch_ops": (torch_ops.ReLU, "ours"),
    "torch_ops, save='output'": (lambda: torch_ops.ReLU(save="output"), "own"),
    "torch": (nn.ReLU, "eager"),
}


def run(net: str, dtype: torch.dtype, result: Result, bench: Benchmark) -> None:
    x = make_input(net, dtype, bench.options)
    weights = NETS[net](nn.ReLU).to("cuda", dtype).state_dict()

    def make(relu: Activation) -> nn.Module:
        model = NETS[net](relu).to("cuda", dtype)
        model.load_state_dict(weights)
        return model

    # Kernels of matrix products may sum in another order; all else is the same, to the bit.
    judge = relative_error(step(make(nn.ReLU), x).double())
    calls = []
    for name, (relu, kind) in CHOICES.items():
        model = make(relu)
        calls.append(Implementation(name, kind, lambda x, model=model: step(model, x)))
    bench.measure(result, calls, {"": Check(x, judge)})
    peaks = {name: getattr(result.find(name), "scratch_bytes", None) for name in CHOICES}
    ours, theirs = peaks["torch_ops"], peaks["torch"]
    for name, peak in peaks.items():
        result.facts[f"peak MB, {name}"] = round((peak or 0) * 1e-6, 1)
    result.bars = [Bar("over torch", result.ratio("eager"), 0.99)]
    if ours and theirs and net not in KEEPING:
        # DEPTH outputs are not kept: what is, is a mask of each.
        saved = (theirs - ours) / (DEPTH * x.numel() * x.element_size())
        result.bars.append(Bar("activations saved, of all", saved, 0.8))
