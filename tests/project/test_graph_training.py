"""The example examples/graph_training, as a user runs it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from programs import ROOT, run_with_torch

for package in ("torch_geometric", "networkx", "numpy", "rich", "matplotlib"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the example needs {package}", allow_module_level=True)

FOLDER = ROOT / "examples" / "graph_training"
SMALL = ("--steps", "10", "--nodes", "200", "--width", "16", "--dtype", "float64")


@pytest.mark.slow
def test_losses_are_equal(tmp_path: Path) -> None:
    """Theirs and ours, in float64: at each step of each of the three trainings."""
    result = run_with_torch(
        "-W", "ignore", FOLDER / "train.py", *SMALL, "--out", tmp_path,
        cwd=ROOT, PYTHONPATH=str(ROOT), COLUMNS="120",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    found = re.findall(r"^  (\S.*\S) +([\d.]+e[+-]\d+)$", result.stdout, re.MULTILINE)
    assert [name for name, _ in found] == ["power-law graph", "karate club", "molecules"]
    for name, difference in found:
        assert float(difference) < 1e-9, name
    rows = re.findall(r"(PyG|torch_ops) +│ +([\d.]+) +│ +([\d.]+) ", result.stdout)
    assert [name for name, *_ in rows] == ["PyG", "torch_ops"] * 3
    assert float(rows[0][2]) > 0.5  # of 8 classes
    assert (tmp_path / "graph_training.png").stat().st_size > 10000


def test_what_it_refuses() -> None:
    result = run_with_torch(
        "-W", "ignore", FOLDER / "train.py", "--width", "6", cwd=ROOT, PYTHONPATH=str(ROOT)
    )
    assert result.returncode == 2
    assert "--width is 6; it must be a multiple of 4, the heads" in result.stdout
