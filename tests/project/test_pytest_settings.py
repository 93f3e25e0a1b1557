"""The settings of pytest in pyproject.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from programs import ROOT, output_of

WARNS = 'import warnings\n\ndef {}: warnings.warn("not beside xdist", UserWarning)\n'


@pytest.mark.parametrize("plugin", ["pytest_loud", "loud"])
def test_a_warning_is_an_error_unless_a_plugin_gives_it(plugin: str, tmp_path: Path) -> None:
    """A plugin's, before the first test, would end the run in an INTERNALERROR."""
    (tmp_path / f"{plugin}.py").write_text(WARNS.format("pytest_configure(config)"))
    (tmp_path / "test_one.py").write_text("def test_one() -> None: pass\n")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", plugin]
    command += ["-p", "pytest_timeout", "--rootdir", tmp_path, tmp_path / "test_one.py"]
    # Other plugins that are installed may change what is done with warnings.
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if plugin == "pytest_loud":
        assert "1 passed" in output_of(*command, env=environ)
    else:
        with pytest.raises(AssertionError, match="UserWarning: not beside xdist"):
            output_of(*command, env=environ)


def test_a_warning_in_a_test_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(WARNS.format("test_one()"))
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path]
    with pytest.raises(AssertionError, match="UserWarning: not beside xdist"):
        output_of(*command, tmp_path / "test_one.py")
