"""The example examples/pyg, as a user runs it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from programs import ROOT, run_with_torch

for package in ("torch_geometric", "rich", "matplotlib"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the example needs {package}", allow_module_level=True)

FOLDER = ROOT / "examples/pyg"
SMALL = ("--epochs", "5", "--nodes", "300")
QUIET = ("-W", "ignore")  # what PyTorch Geometric deprecates


def test_training_by_itself() -> None:
    """It learns, and imports nothing of ours."""
    result = run_with_torch(
        *QUIET, FOLDER / "train.py", "--epochs", "30", "--nodes", "400", cwd=ROOT
    )
    assert result.returncode == 0, result.stdout
    accuracy = re.search(r"accuracy (0\.\d+|1\.0+), [\d.]+ ms an epoch, \d+ MB", result.stdout)
    assert accuracy is not None, result.stdout
    assert float(accuracy[1]) > 0.6  # of 8 classes
    assert "import torch_ops" not in (FOLDER / "train.py").read_text("utf-8")


def test_comparison(tmp_path: Path) -> None:
    result = run_with_torch(
        *QUIET, FOLDER / "compare.py", *SMALL, "--out", tmp_path, cwd=ROOT, PYTHONPATH=str(ROOT)
    )
    assert result.returncode == 0, result.stdout
    difference = re.search(r"losses of an epoch: (\S+)", result.stdout)
    assert difference is not None and 0 <= float(difference[1]) < 1e-3, result.stdout
    assert (tmp_path / "pyg.png").stat().st_size > 10000


def test_the_line_is_the_one_of_the_readme() -> None:
    line = "torch_ops.compat.pyg.enable()"
    assert line in (FOLDER / "README.md").read_text("utf-8")
    assert (FOLDER / "compare.py").read_text("utf-8").count(line) == 1
