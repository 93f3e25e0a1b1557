"""Makes a release, but for the upload.

    python tools/release.py 0.2.0 [--dry-run]    # or: make release VERSION=0.2.0 [DRY_RUN=1]

All that can be checked is checked first. Then the version and the changelog are written, the sdist
and the wheel built, and the wheel is installed and run; what comes of it is committed and tagged
here, and what is left to a person is printed. Where a step fails, the sources are as they were.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "main"
VERSION_FILE = "torch_ops/_version.py"
CHANGED = (VERSION_FILE, "CHANGELOG.md", "changelog.d")  # by a release
TOOLS = ("build", "towncrier", "twine")
MINORS_THAT_WARN = 2  # of what is deprecated: torch_ops/_deprecation.py


class Failure(Exception):
    """Ends the release; the text says why."""


# ---- what is checked -----------------------------------------------------------------------------


def parse(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def read_version() -> str:
    text = (ROOT / VERSION_FILE).read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', text, re.MULTILINE)
    if found is None:
        raise Failure(f'{VERSION_FILE} has no line such as __version__ = "0.1.0"')
    return found[1]


def next_versions(current: str, is_released: bool) -> list[str]:
    if not is_released:
        return [current]
    major, minor, patch = parse(current)
    return [f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 1}.0", f"{major + 1}.0.0"]


def overdue(sources: Path, version: str) -> list[str]:
    """The calls of Deprecation below sources that this version must not have any more."""
    found = []
    for path in sorted(sources.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "Deprecation"):
                continue
            values = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            major, minor = parse(values["since"])
            if parse(version)[:2] >= (major, minor + MINORS_THAT_WARN):
                place = f"{path.relative_to(sources.parent)}:{node.lineno}"
                name = ast.literal_eval(node.args[0])
                found.append(f"{place}: {name} is deprecated since {values['since']}")
    return found


def problems(version: str) -> Iterator[str]:
    """All that stands in the way; none of it is a failure of a step."""
    current = read_version()
    allowed = next_versions(current, is_released=has_tag(current))
    if version not in allowed:
        yield f"VERSION is {version}; after {current} it may be {' or '.join(allowed)}"
    elif has_tag(version):
        yield f"the tag v{version} is there already"
    if (branch := git("branch", "--show-current")) != BRANCH:
        yield f"the branch is {branch or 'none'}, not {BRANCH}: git switch {BRANCH}"
    if changed := git("status", "--porcelain").splitlines():
        yield f"the tree is not clean, git status names {len(changed)} files: commit them"
    if not succeeds("git", "var", "GIT_COMMITTER_IDENT"):
        yield 'git does not know who you are: git config user.name "..." and user.email'
    missing = [name for name in TOOLS if importlib.util.find_spec(name) is None]
    if missing:
        yield f"{sys.executable} lacks {', '.join(missing)}: pip install {' '.join(missing)}"
    elif not fragments():
        yield "there is no change in changelog.d"
    elif not succeeds(*towncrier(version), "--draft"):
        yield "a file in changelog.d has no valid name: make changelog"
    for line in overdue(ROOT / "torch_ops", version):
        yield f"{line}, and to be removed: docs/policy.md"
    try:
        output(*MAKE, "--dry-run")
    except Failure as failure:
        yield str(failure)


def has_tag(version: str) -> bool:
    return git("tag", "--list", f"v{version}") != ""


def fragments() -> list[Path]:
    return [path for path in (ROOT / "changelog.d").glob("*.md") if path.name != "README.md"]


# ---- the steps -----------------------------------------------------------------------------------

MAKE = ("make", "sdist", "wheel", f"PYTHON={sys.executable}")


def towncrier(version: str) -> tuple[str, ...]:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (sys.executable, "-m", "towncrier", "build", f"--version={version}", f"--date={today}")


def write_version(version: str) -> None:
    path = ROOT / VERSION_FILE
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f'"{read_version()}"', f'"{version}"'), encoding="utf-8")


def built(version: str) -> list[Path]:
    return sorted((ROOT / "dist").glob(f"torch_ops-{version}[.-]*"))


def build(version: str) -> list[Path]:
    for stale in built(version):
        stale.unlink()
    call(*MAKE)
    files = built(version)
    if [path.suffix for path in files] != [".whl", ".gz"]:
        names = ", ".join(path.name for path in files) or "nothing"
        raise Failure(f"dist/ was to have a wheel and an sdist of {version}, but it has {names}")
    call(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    return files


def release(version: str) -> None:
    def step(what: str) -> None:
        print(f"\n== {what} ({time.perf_counter() - start:.0f} s)", flush=True)

    start = time.perf_counter()
    with restored_on_failure():
        step(f"1 of 5: write {version} to {VERSION_FILE}, and the changelog")
        write_version(version)
        call(*towncrier(version), "--yes")
        step("2 of 5: build the sdist and the wheel, and let twine check them")
        wheel, sdist = build(version)
        step("3 of 5: install the wheel into a new environment, and run python -m torch_ops there")
        call(sys.executable, "tools/try_wheel.py", str(wheel))
        step("4 of 5: commit")
        call("git", "add", "--all", *CHANGED)
        call("git", "commit", "--quiet", f"--message=Release {version}")
    step("5 of 5: tag")
    call("git", "tag", "--annotate", f"--message=torch_ops {version}", f"v{version}")
    print(LEFT_TO_A_PERSON.format(version=version, branch=BRANCH, wheel=wheel, sdist=sdist))


LEFT_TO_A_PERSON = """
{version} is committed and tagged here, and nothing of it has left this machine. In dist/ are
  {sdist}
  {wheel}
Left to you:
  git show v{version}
  git push --atomic origin {branch} v{version}
The push has the workflow "release" build the wheels for every Python, and wait for an approval to
upload them. Without that workflow, these two files alone:
  python -m twine upload {sdist} {wheel}
To take it back before the push:
  git tag --delete v{version} && git reset --hard HEAD~1"""


@contextlib.contextmanager
def restored_on_failure() -> Iterator[None]:
    """The tree was clean, so what a release changes is as in the last commit."""
    try:
        yield
    except BaseException:
        git("restore", "--source=HEAD", "--staged", "--worktree", *CHANGED)
        raise


# ---- commands ------------------------------------------------------------------------------------


def environ() -> dict[str, str]:
    """Without what make hands on: its options, and this checkout, which is not what is tried."""
    ours = ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    return {name: value for name, value in os.environ.items() if name not in ours}


def call(*command: str, cwd: str | Path = ROOT) -> None:
    print("+", shlex.join(command), flush=True)
    done = subprocess.run(command, cwd=cwd, env=environ(), check=False)
    if done.returncode != 0:
        raise Failure(f"{shlex.join(command)} failed: see above")


def output(*command: str, cwd: str | Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environ(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Failure(f"{shlex.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def succeeds(*command: str) -> bool:
    try:
        output(*command)
    except Failure:
        return False
    return True


def git(*arguments: str) -> str:
    return output("git", *arguments).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="such as 0.2.0")
    parser.add_argument("--dry-run", action="store_true", help="check only; change nothing")
    arguments = parser.parse_args()
    version = arguments.version
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        parser.error(f"{version} is not a version such as 0.2.0")
    try:
        found = list(problems(version))
        if found:
            raise Failure("not yet:\n" + "\n".join(f"  - {line}" for line in found))
        print(f"release: {version} can be made")
        if arguments.dry_run:
            print("\n" + output(*towncrier(version), "--draft").strip())
            print(f"\nWithout --dry-run: {shlex.join(MAKE)}; a try of the wheel, a commit, a tag.")
        else:
            release(version)
    except Failure as failure:
        print(f"release: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
