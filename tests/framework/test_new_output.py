"""Memory of results. torch's deterministic mode fills fresh tensors: not what is written whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.registry import functional_activations
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import torch_ops

ROWS, COUNT, WIDTH = 300, 600, 24


@pytest.fixture
def deterministic() -> Iterator[None]:
    assert torch.utils.deterministic.fill_uninitialized_memory  # torch's default
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def fills(call: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        call()
    return sum(event.count for event in seen.key_averages() if event.key == "aten::fill_")


# Of a source with an index of its rows.
CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{op.name: lambda s, _, op=op: op.function(s) for op in functional_activations()},
    "relu, saving its output": lambda s, _: torch_ops.relu(s, save="output"),
    "relu of a permuted tensor": lambda s, _: torch_ops.relu(s.t()),
    "gather": lambda s, i: torch_ops.gather(s, i, 0),
    "gather_elements": lambda s, i: torch_ops.gather_elements(s, i, 0),
    "gather_nd": lambda s, i: torch_ops.gather_nd(s, i[:, None]),
    "scatter": lambda s, i: torch_ops.scatter(s, i[:ROWS], ROWS, reduce="amax"),
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", CALLS)
def test_no_result_is_filled_first(device: torch.device, name: str) -> None:
    """Forward and backward: but by what an op itself begins with."""
    source = torch.rand(ROWS, WIDTH, device=device, requires_grad=True)
    index = torch.arange(COUNT, device=device) % ROWS
    if name == "gather_elements":
        index = index[:, None].expand(COUNT, WIDTH)
    call = CALLS[name]
    output = call(source, index)
    grad_output = torch.ones_like(output)

    def run() -> None:
        call(source, index)
        torch.autograd.grad(output, source, grad_output, retain_graph=True)

    assert fills(lambda: torch.empty(3, device=device)) == 1  # it would be seen
    in_mode = fills(run)
    torch.use_deterministic_algorithms(False)
    assert in_mode == fills(run)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("count", [1500, 7000])
@pytest.mark.parametrize("rows", [2000, 6000, 1_000_000])
@pytest.mark.parametrize("width", [1, 3, 4])
def test_no_sum_is_filled_first(device: torch.device, width: int, rows: int, count: int) -> None:
    """By each way of the deterministic mode on CUDA: small, binned and sorted."""
    values = torch.rand(count, width, device=device)
    index = (torch.arange(count) * 7 % rows).to(device)
    assert fills(lambda: torch_ops.scatter_add(values, index, rows)) == 0


@pytest.mark.usefixtures("deterministic")
def test_strides_are_those_of_the_default_mode(device: torch.device) -> None:
    input = torch.rand(2, 3, 5, 7, device=device)
    for like in (
        input,
        input.to(memory_format=torch.channels_last),
        input.permute(3, 0, 2, 1),
        input[:, :, ::2],
        input[:, :1].expand(2, 3, 5, 7),
    ):
        for call in (op.function for op in functional_activations()):
            leaf = like.detach().requires_grad_()
            outputs = []
            for mode in (True, False):
                torch.use_deterministic_algorithms(mode)
                output = call(leaf)
                (grad,) = torch.autograd.grad(output, leaf, torch.ones_like(output))
                outputs.append((output, grad))
            for ours, usual in zip(*outputs, strict=True):
                assert ours.stride() == usual.stride() and torch.equal(ours, usual)
