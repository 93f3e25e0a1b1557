"""Fixtures of the tests of torch_ops.compat.pyg."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from torch_ops.compat import pyg

# With Python 3.15, PyTorch Geometric 2.8.1 cannot make a layer.
collect_ignore_glob = ["test_pyg*.py"] if sys.version_info >= (3, 15) else []

MESSAGES = "torch_ops.compat._pyg_messages"


@pytest.fixture(autouse=True)
def disabled_at_the_end() -> Iterator[None]:
    yield
    pyg.disable()


@pytest.fixture(params=["plan", "indices"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How kernels get the edges, of which they then take all."""
    messages = importlib.import_module(MESSAGES)
    monkeypatch.setattr(messages, "SIGHTS", 1 if request.param == "plan" else 1000)
    monkeypatch.setattr(messages, "_LEAST_UNPLANNED", {"cpu": (0, 0), "cuda": (0, 0)})
    monkeypatch.setattr(messages, "_LEAST_ROW", 0)
    return str(request.param)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, bool]]:
    """Of each call of a kernel: the reduction, whether it has factors, and whether a plan."""
    messages = importlib.import_module(MESSAGES)
    called: list[tuple[str, bool, bool]] = []
    reduced = messages._reduced

    def recorded(x: Tensor, w: Tensor | None, reduce: str, graph: dict[str, Any]) -> Tensor:
        called.append((reduce, w is not None, "plan" in graph))
        return reduced(x, w, reduce, graph)

    monkeypatch.setattr(messages, "_reduced", recorded)
    return called
