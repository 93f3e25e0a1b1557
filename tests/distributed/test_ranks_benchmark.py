"""benchmarks/distributed.py: that it runs, checks all, and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from programs import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_a_small_run(world: int, device: torch.device, tmp_path: Path) -> None:
    """On one GPU two ranks share it."""
    options = ["--device", device.type, "--ranks", str(world), "--quick", "--scale", "0.02"]
    options += ["--filter", "train: ", "host", "gather: bf16 rows of 16", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.distributed", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    written = tmp_path / "distributed.json"
    assert written.exists(), run.stdout[-2000:] + run.stderr[-4000:]
    figures = json.loads(written.read_text())
    missed = [bar for case in figures["cases"] for bar in case["bars"] if not bar["met"]]
    assert run.returncode == bool(missed), run.stdout[-2000:] + run.stderr[-2000:]
    shared = device.type == "cuda" and world > torch.cuda.device_count()
    assert (figures["machine"]["ranks"], figures["machine"]["shared"]) == (world, shared)
    assert len(figures["cases"]) == 3 + 2 * 3 + 2
    for case in figures["cases"]:
        assert case["route"] == "direct"
        names = {each["name"] for each in case["measurements"]}
        assert {"ours", "local"} <= names
        assert ("exchange" in names) == (world > 1)
        assert ("all_to_all" in names) == (world > 1 and not shared)
        assert all(each["timing"]["median"] > 0 for each in case["measurements"])
        trained = [each["name"] for each in case["measurements"] if each["errors"]]
        assert ("ours" in trained) == case["panel"].startswith("train")
        judged = device.type == "cuda" and not shared
        assert judged or not case["bars"]
        assert case["bars"] or not (judged and case["panel"].startswith("host"))
