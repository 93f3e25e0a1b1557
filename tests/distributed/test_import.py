"""The rules come with torch.distributed.tensor, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_alone_brings_nothing() -> None:
    code = "import sys, torch_ops; print('torch_ops.distributed' in sys.modules, "
    assert _run(code + "'torch.distributed.tensor' in sys.modules)") == "False False"


@pytest.mark.parametrize(
    "imports",
    [
        "import torch_ops, torch.distributed.tensor",
        "import torch.distributed.tensor, torch_ops",
        "import torch_ops; from torch.distributed.tensor import DTensor",
        "import torch_ops; from torch.distributed.fsdp import fully_shard",
        "import torch_ops; torch_ops.distributed",
    ],
)
def test_rules_are_there(imports: str) -> None:
    code = f"""
import torch, sys
{imports}
from torch.distributed.tensor import DTensor
entry = torch._library.simple_registry.singleton.find("torch_ops::gather")
print(entry.torch_dispatch_rules.find(DTensor) is not None, "torch_ops.distributed" in sys.modules,
      any("torch_ops" in type(finder).__module__ for finder in sys.meta_path))
"""
    assert _run(code) == "True True False"


def test_failure_is_a_warning() -> None:
    code = """
import sys, warnings, torch_ops
sys.modules["torch_ops.distributed"] = None  # cannot be imported
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch.distributed.tensor
print([str(each.message) for each in caught if each.category is RuntimeWarning])
"""
    assert "torch_ops.distributed, which belongs to torch.distributed.tensor, could" in _run(code)
