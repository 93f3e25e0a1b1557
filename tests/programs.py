"""Programs that tests build and run, and the project's folder, where they find sources."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The variables that steer a build, and those that would let another copy be imported.
STEERING = (
    *("CUDA_HOME", "CUDA_PATH", "FORCE_CUDA", "MAX_JOBS", "TORCH_CUDA_ARCH_LIST"),
    *("TORCH_OPS_CPU_ONLY", "PYTHONPATH"),
)


def output_of(*command: Any, **options: Any) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        **options,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def run(
    *arguments: str | Path, cwd: Path, python: str | Path = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with only these of the variables that steer a build; output in stdout."""
    environ = {name: value for name, value in os.environ.items() if name not in STEERING}
    return subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env=environ | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@cache
def load_setup_py() -> ModuleType:
    """This project's setup.py, imported: it builds nothing then."""
    spec = importlib.util.spec_from_file_location("torch_ops_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
