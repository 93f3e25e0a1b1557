"""The files in changelog.d, of which a release makes a section of CHANGELOG.md."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from programs import ROOT, run

pytest.importorskip("towncrier")

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
TYPES = [each["directory"] for each in CONFIG["type"]]
FOLDER = ROOT / CONFIG["directory"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """This project's changelog, with no change yet."""
    for name in ("pyproject.toml", CONFIG["filename"]):
        shutil.copy(ROOT / name, tmp_path / name)
    folder = tmp_path / CONFIG["directory"]
    folder.mkdir()
    for path in (FOLDER / "README.md", ROOT / CONFIG["template"]):
        shutil.copy(path, folder)
    return tmp_path


def add(project: Path, name: str, text: str) -> None:
    (project / CONFIG["directory"] / name).write_text(text)


def build(project: Path, *options: str) -> str:
    result = run("-m", "towncrier", "build", *options, cwd=project)
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_names_and_texts() -> None:
    for path in FOLDER.glob("*.md"):
        if path.name == "README.md":
            continue
        # towncrier takes more, such as relu.extra.added.7.md, but ignores a part of it.
        assert re.fullmatch(rf"[a-z0-9_-]+\.({'|'.join(TYPES)})\.md", path.name), path.name
        lines = path.read_text("utf-8").splitlines()
        assert lines[0].startswith("- "), f"{path.name}: {lines[0]}"
        assert all(line.startswith(("- ", "  ")) for line in lines), path.name
        assert re.search(r"\w", lines[-1]), path.name
    others = {path.name for path in FOLDER.iterdir() if path.suffix != ".md"}
    assert others == {Path(CONFIG["template"]).name}


def test_the_readme_tells_every_type() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == TYPES


def test_a_release_collects_them(project: Path) -> None:
    before = (project / "CHANGELOG.md").read_text()
    add(project, "relu.fixed.md", "- `relu` keeps\n  NaN.\n")
    add(project, "index.added.md", "- `index`.\n- `index_put`.\n")
    add(project, "gather.added.md", "- `gather`.\n\n")
    build(project, "--yes", "--version=0.1.0", "--date=2030-01-31")
    add(project, "host.removed.md", "- `host`.\n")
    build(project, "--yes", "--version=0.2.0", "--date=2030-02-28")
    after = (project / "CHANGELOG.md").read_text()
    assert after == before.replace(CONFIG["start_string"], CONFIG["start_string"] + SECTIONS)
    left = sorted(path.name for path in (project / CONFIG["directory"]).iterdir())
    assert left == ["README.md", "_template.jinja"]


SECTIONS = """
## [0.2.0] - 2030-02-28

### Removed

- `host`.

## [0.1.0] - 2030-01-31

### Added

- `gather`.
- `index`.
- `index_put`.

### Fixed

- `relu` keeps
  NaN.
"""


@pytest.mark.parametrize("name", ["relu.feature.md", "relu.md", "relu"])
def test_other_names_are_refused(project: Path, name: str) -> None:
    add(project, name, "- `relu`.\n")
    result = run("-m", "towncrier", "build", "--draft", "--version=0.1.0", cwd=project)
    assert result.returncode != 0
    assert f"Invalid news fragment name: {name}" in result.stdout


def test_the_files_here_are_taken() -> None:
    result = run("-m", "towncrier", "build", "--draft", "--version=0.1.0", cwd=ROOT)
    assert result.returncode == 0, result.stdout
    for path in FOLDER.glob("*.*.md"):
        assert path.read_text("utf-8").rstrip() in result.stdout
