"""The rules come with torch.distributed.tensor, and not before."""

from __future__ import annotations

import pytest
from programs import ROOT, run_with_torch

WARNINGS = "import warnings; warnings.simplefilter('error', RuntimeWarning)\n"


def _run(code: str) -> str:
    done = run_with_torch("-c", WARNINGS + code, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


THERE = """
from torch.distributed.tensor import DTensor
rules = torch._library.simple_registry.singleton.find("torch_ops::gather").torch_dispatch_rules
print(rules.find(DTensor) is not None, "torch_ops.distributed" in sys.modules,
      any(getattr(finder, "name", "") == "torch.distributed.tensor" for finder in sys.meta_path))
"""


def test_they_come_with_it() -> None:
    code = """
import sys, torch, torch_ops
print("torch_ops.distributed" in sys.modules, "torch.distributed.tensor" in sys.modules)
"""
    assert _run(code + THERE).splitlines() == ["False False", "True True False"]


def test_it_was_there_before() -> None:
    code = "import sys, torch, torch.distributed.tensor, torch_ops\n"
    assert _run(code + THERE) == "True True False"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", ["from torch.distributed.fsdp import fully_shard", "torch_ops.distributed.gather"]
)
def test_other_ways_to_it(code: str) -> None:
    assert _run(f"import sys, torch, torch_ops\n{code}\n{THERE}") == "True True False"


@pytest.mark.slow
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
