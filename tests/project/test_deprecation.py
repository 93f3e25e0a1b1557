"""What is deprecated warns its users, in a fixed form and at their line."""

from __future__ import annotations

import warnings

import pytest
import torch

import torch_ops
from torch_ops._deprecation import Deprecation, removal

TEXT = (
    "torch_ops.old is deprecated since torch_ops 0.2 and will be removed in 0.4: "
    "use torch_ops.relu."
)


@Deprecation("torch_ops.old", since="0.2", instead="use torch_ops.relu")
def old(x: torch.Tensor) -> torch.Tensor:
    """The old name of relu."""
    return torch_ops.relu(x)


_ARGUMENT = Deprecation("new's argument old", since="0.9", instead="leave it out")


def new(x: torch.Tensor, old: int | None = None) -> torch.Tensor:
    if old is not None:
        _ARGUMENT.warn()
    return torch_ops.relu(x)


def test_two_versions_warn() -> None:
    assert removal("0.2") == "0.4"
    assert removal("0.9") == "0.11"
    assert removal("2.13") == "2.15"


def test_a_function() -> None:
    assert old.__name__ == "old"
    assert old.__doc__ == "The old name of relu."
    with pytest.warns(FutureWarning) as caught:
        assert old(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert [str(warning.message) for warning in caught] == [TEXT]
    assert caught[0].filename == __file__


def test_an_argument() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new(torch.ones(1))
    with pytest.warns(
        FutureWarning, match="new's argument old .* 0.9 .* 0.11: leave it out"
    ) as caught:
        new(torch.ones(1), old=1)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("call", [old, lambda x: new(x, old=1)])
def test_it_breaks_no_graph(call: object) -> None:
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert compiled(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
