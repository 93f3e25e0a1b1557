"""tools/release.py, in a repository of a toy project: what it refuses, makes, and leaves behind."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from programs import ROOT, output_of, run
from toy_project import write_toy

import torch_ops
import torch_ops_host

for name in ("build", "towncrier", "twine"):
    pytest.importorskip(name)

# What `make sdist` and `make wheel` do, of a toy.
MAKEFILE = """
sdist:
	$(PYTHON) -m build --sdist --no-isolation
wheel:
	$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps --no-index -w dist .
"""


@pytest.fixture(scope="module")
def release_py() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def no_settings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whoever runs the tests: a name, say, or that tags are signed."""
    for variable in [name for name in os.environ if name.startswith("GIT_") or name == "EMAIL"]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository of the toy project at version 0.1.0, in which a release can be made."""
    folder = write_toy(tmp_path / "toy")
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("new_op*"))
    (folder / "changelog.d").mkdir()
    for path in ("CHANGELOG.md", "changelog.d/README.md", "changelog.d/_template.jinja"):
        shutil.copy(ROOT / path, folder / path)
    (folder / "changelog.d" / "toy.added.md").write_text("- The toy.\n")
    (folder / "torch_ops" / "_version.py").write_text('__version__ = "0.1.0"\n')
    (folder / "Makefile").write_text(MAKEFILE)
    shutil.copy(ROOT / ".gitignore", folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.com")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    return output_of("git", *arguments, cwd=folder).strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=A change")


def release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("tools/release.py", *arguments, cwd=folder, TORCH_OPS_CPU_ONLY="1")


def state(folder: Path) -> tuple[str, str, str]:
    return (
        git(folder, "rev-parse", "HEAD"),
        git(folder, "status", "--porcelain"),
        git(folder, "tag", "--list"),
    )


# ---- what is refused


@pytest.mark.parametrize("version", ["1", "0.1", "v0.1.0", "0.1.0rc1", "0.01.0", ""])
def test_versions_of_another_form(toy: Path, version: str) -> None:
    result = release(toy, version)
    assert result.returncode == 2
    assert f"{version} is not a version such as 0.2.0" in result.stdout


@pytest.mark.parametrize(
    ("current", "is_released", "allowed"),
    [
        ("0.1.0", False, ["0.1.0"]),
        ("0.1.0", True, ["0.1.1", "0.2.0", "1.0.0"]),
        ("1.9.10", True, ["1.9.11", "1.10.0", "2.0.0"]),
    ],
)
def test_next_versions(
    release_py: ModuleType, current: str, is_released: bool, allowed: list[str]
) -> None:
    assert release_py.next_versions(current, is_released) == allowed


def test_a_version_that_is_not_next(toy: Path) -> None:
    result = release(toy, "0.2.0", "--dry-run")
    assert result.returncode == 1
    assert "VERSION is 0.2.0; after 0.1.0 it may be 0.1.0\n" in result.stdout
    git(toy, "tag", "v0.1.0")
    result = release(toy, "0.1.0", "--dry-run")
    assert "VERSION is 0.1.0; after 0.1.0 it may be 0.1.1 or 0.2.0 or 1.0.0" in result.stdout
    assert release(toy, "0.2.0", "--dry-run").returncode == 0
    git(toy, "tag", "v0.2.0")
    assert "the tag v0.2.0 is there already" in release(toy, "0.2.0", "--dry-run").stdout


def test_all_that_stands_in_the_way_is_said_at_once(toy: Path) -> None:
    git(toy, "switch", "--quiet", "--create=topic")
    (toy / "changelog.d" / "toy.added.md").unlink()
    (toy / "new.txt").touch()
    git(toy, "config", "user.useConfigOnly", "true")
    git(toy, "config", "--unset", "user.email")
    (toy / "Makefile").write_text("sdist:\n")
    before = state(toy)
    result = release(toy, "0.1.0")
    assert result.returncode == 1
    for line in (
        "the branch is topic, not main: git switch main",
        "the tree is not clean, git status names 3 files",
        "git does not know who you are",
        "there is no change in changelog.d",
        "No rule to make target 'wheel'",
    ):
        assert line in result.stdout, result.stdout
    assert "Traceback" not in result.stdout
    assert state(toy) == before


def test_a_change_with_a_wrong_name(toy: Path) -> None:
    (toy / "changelog.d" / "toy.feature.md").write_text("- The toy.\n")
    commit(toy)
    result = release(toy, "0.1.0", "--dry-run")
    assert result.returncode == 1
    assert "a file in changelog.d has no valid name" in result.stdout


def test_what_was_to_be_removed(toy: Path, release_py: ModuleType) -> None:
    (toy / "torch_ops" / "old.py").write_text(
        "from torch_ops._deprecation import Deprecation\n"
        '_MASK = Deprecation("an argument", since="0.1", instead="leave it out")\n'
        '@Deprecation("a function", since="0.2", instead="use another")\n'
        "def function(): ...\n"
    )
    package = toy / "torch_ops"
    assert release_py.overdue(package, "0.2.9") == []
    argument = "torch_ops/old.py:2: an argument is deprecated since 0.1"
    assert release_py.overdue(package, "0.3.0") == [argument]
    assert len(release_py.overdue(package, "0.4.0")) == 2
    assert len(release_py.overdue(package, "1.0.0")) == 2
    commit(toy)
    git(toy, "tag", "v0.1.0")
    (package / "_version.py").write_text('__version__ = "0.2.0"\n')
    commit(toy)
    git(toy, "tag", "v0.2.0")
    result = release(toy, "0.3.0", "--dry-run")
    assert result.returncode == 1
    assert f"{argument}, and to be removed" in result.stdout


def test_nothing_of_this_version_was_to_be_removed(release_py: ModuleType) -> None:
    assert release_py.overdue(ROOT / "torch_ops", torch_ops.__version__) == []


# ---- what is made


def test_a_dry_run_changes_nothing(toy: Path) -> None:
    before = state(toy)
    result = release(toy, "0.1.0", "--dry-run")
    assert result.returncode == 0, result.stdout
    assert "0.1.0 can be made" in result.stdout
    assert re.search(r"^## \[0\.1\.0\] - \d{4}-\d\d-\d\d\n\n### Added\n\n- The toy\.$",
                     result.stdout, re.MULTILINE)  # fmt: skip
    assert state(toy) == before
    assert not (toy / "dist").exists()


@pytest.mark.slow
def test_a_release(toy: Path) -> None:
    git(toy, "tag", "v0.1.0")
    result = release(toy, "0.2.0")
    assert result.returncode == 0, result.stdout

    assert git(toy, "tag", "--list").split() == ["v0.1.0", "v0.2.0"]
    assert git(toy, "rev-parse", "v0.2.0^{commit}") == git(toy, "rev-parse", "HEAD")
    assert git(toy, "log", "-1", "--format=%s") == "Release 0.2.0"
    assert git(toy, "status", "--porcelain") == ""
    changed = git(toy, "show", "--name-status", "--format=").split("\n")
    assert sorted(changed) == [
        "D\tchangelog.d/toy.added.md",
        "M\tCHANGELOG.md",
        "M\ttorch_ops/_version.py",
    ]
    versions = re.findall(r"^## \[(.*)\]", (toy / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions == ["0.2.0"]

    # Both files are of this version, and the wheel was installed and run.
    assert len(list((toy / "dist").glob("torch_ops-0.2.0*"))) == 2
    assert "torch_ops 0.2.0 is installed and loads." in result.stdout
    assert "all 1 checks passed" in result.stdout
    for line in ("git push --atomic origin main v0.2.0", "git tag --delete v0.2.0"):
        assert line in result.stdout
    upload = re.search(r"-m twine upload (\S+\.tar\.gz) (\S+\.whl)$", result.stdout, re.MULTILINE)
    assert upload is not None
    assert all(Path(file).is_file() for file in upload.groups())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (("Makefile", "wheel:", "wheel:\n\tfalse"), "make sdist wheel .* failed: see above"),
        (("Makefile", "-w dist", "-w elsewhere"), "it has torch_ops-0.1.0.tar.gz"),
        (("torch_ops/ops/toy.py", "== 42", "== 43"), "try_wheel.py .* failed: see above"),
    ],
)
def test_a_failure_leaves_the_sources_as_they_were(
    toy: Path, break_it: tuple[str, str, str], reason: str
) -> None:
    name, old, new = break_it
    text = (toy / name).read_text()
    assert text.count(old) == 1
    (toy / name).write_text(text.replace(old, new))
    (toy / ".git" / "info" / "exclude").write_text("elsewhere\n")
    commit(toy)
    before = state(toy)
    result = release(toy, "0.1.0")
    assert result.returncode == 1
    assert re.search(rf"^release: .*{reason}", result.stdout, re.MULTILINE), result.stdout
    assert "Traceback" not in result.stdout
    assert state(toy) == before
    assert (toy / "changelog.d" / "toy.added.md").is_file()


def test_the_version_is_in_one_place() -> None:
    """What is built has it from there, and no other file names it."""
    assert torch_ops_host.version() == torch_ops.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    attribute = project["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert attribute == "torch_ops._version.__version__"
    number = re.compile(rf"(?<![\d.=]){re.escape(torch_ops.__version__)}(?![\d.])")
    for path in ("pyproject.toml", "setup.py", "setup_c_library.py", "Makefile", "README.md"):
        assert not number.search((ROOT / path).read_text("utf-8")), path
