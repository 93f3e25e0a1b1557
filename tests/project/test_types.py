"""What type checkers read of the package (py.typed)."""

from __future__ import annotations

from pathlib import Path

import pytest

import torch_ops

USES = """
import torch, torch_ops
from torch import nn

class Mine(torch_ops.Sigmoid): ...
class Net(nn.Module):
    gate: torch_ops.Sigmoid
    relu: torch_ops.ReLU

layer: nn.Sigmoid = torch_ops.Sigmoid()
output: torch.Tensor = torch_ops.sigmoid(input=torch_ops.sigmoid_(input=torch.zeros(3)))

def replaced(model: Net, report: bool) -> Net:
    torch_ops.replace_modules(model, report)
    torch_ops.replace_modules(model, report=True)[1][0].name
    return torch_ops.replace_modules(model)
"""


@pytest.mark.slow
def test_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPYPATH", str(Path(torch_ops.__file__).parents[1]))
    file = tmp_path / "uses.py"
    file.write_text(USES)
    text, errors, _ = api.run(["--config-file=", f"--cache-dir={tmp_path / 'cache'}", str(file)])
    assert (text, errors) == ("Success: no issues found in 1 source file\n", "")
