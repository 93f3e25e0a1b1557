"""examples/sharded_embedding: the losses of any number of ranks, and its checkpoints."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from programs import ROOT

pytestmark = pytest.mark.usefixtures("ranks_device")

pytest.importorskip("rich")
SMALL = ["--words", "400", "--dim", "8", "--batch", "60"]


def train(arguments: list[str]) -> dict[str, Any]:
    folder = str(ROOT / "examples" / "sharded_embedding")
    sys.path.insert(0, folder)
    try:
        example = importlib.import_module("train")
        device = ["--device", torch.get_default_device().type]
        return example.train(example.parse_arguments([*SMALL, *device, *arguments]))
    finally:
        sys.path.remove(folder)
        sys.modules.pop("train", None)


@pytest.mark.parametrize("route", ["direct", "exchange"])
def test_losses_are_those_of_the_tables_in_one_piece(tmp_path: Path, route: str) -> None:
    """Four ranks begin, and two go on with their checkpoint."""
    saved = ["--route", route, "--steps", "30", "--save", str(tmp_path)]
    loaded = ["--route", route, "--steps", "50", "--load", str(tmp_path)]
    (first, *others), (second, _) = ranks.run(4, train, saved), ranks.run(2, train, loaded)
    assert all(other["losses"] == first["losses"] for other in others)
    assert (first["first_step"], second["first_step"]) == (0, 30)
    for run in (first, second):
        assert run["route"] == route
        assert run["losses"] == pytest.approx(run["losses_in_one_piece"], rel=1e-5)
    losses = first["losses"] + second["losses"]
    assert len(losses) == 50 and losses[-1] < losses[29] < losses[0]


def test_losses_of_sparse_gradients() -> None:
    first, _ = ranks.run(2, train, ["--sparse", "--steps", "30"])
    assert first["losses"] == pytest.approx(first["losses_in_one_piece"], rel=1e-5)
    assert first["losses"][-1] < first["losses"][0]
