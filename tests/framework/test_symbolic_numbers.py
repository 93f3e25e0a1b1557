"""Numbers that torch.compile and torch.export keep as symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_ops

INDEX = [0, 9]
CALLS: dict[str, Callable[..., Tensor]] = {
    "gather": lambda x, i, n: torch_ops.gather(x, i, mode="fill", fill_value=n),
    "batch_gather": lambda x, i, n: torch_ops.batch_gather(
        x.t(), i.expand(2, 2), mode="fill", fill_value=n
    ),
    "gather_elements": lambda x, i, n: torch_ops.gather_elements(
        x, i[:, None].expand(2, 2), 0, mode="fill", fill_value=n
    ),
    "gather_nd": lambda x, i, n: torch_ops.gather_nd(x, i[:, None], mode="fill", fill_value=n),
    "masked_gather": lambda x, i, n: torch_ops.masked_gather(x, x[:, 0] > 2, size=9, fill_value=n),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("numbers", [(5, 6, 7), (0.5, 1.5, 2.5)], ids=str)
def test_fill_values_of_a_compiled_function(
    device: torch.device, name: str, numbers: tuple[Any, ...]
) -> None:
    x, index = torch.arange(8.0, device=device).view(4, 2), torch.tensor(INDEX, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[name], backend="aot_eager", fullgraph=True)
    for number in numbers:
        assert torch.equal(compiled(x, index, number), CALLS[name](x, index, number))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("strict", [False, True])
def test_sizes_as_fill_values(device: torch.device, name: str, strict: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return CALLS[name](x, index, x.shape[0])

    index = torch.tensor(INDEX, device=device)
    x = torch.arange(8.0, device=device).view(4, 2)
    rows = torch.export.Dim("rows", min=2, max=8)
    exported = torch.export.export(
        Model(), (x, index), dynamic_shapes=({0: rows}, None), strict=strict
    )
    for size in (4, 6):
        x = torch.arange(2.0 * size, device=device).view(size, 2)
        assert torch.equal(exported.module()(x, index), Model()(x, index))
