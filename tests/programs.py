"""Programs that tests build and run."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest


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
