"""Installs a wheel into a new environment, and runs it there; without a name, the one in dist/.

    python tools/try_wheel.py [WHEEL] [--torch 2.11 2.15] [--tests [FILE ...]]
    make try-wheel [TORCH_VERSION="2.11 2.15"] [TRY_ARGS=--tests]

With --torch, pip installs that version of torch too; of several, one after the other in the same
environment, as who upgrades torch. Without, the environment borrows what is installed beside this
Python, and nothing is fetched. What runs is `python -m torch_ops` and the examples of the README;
with --tests, tests of the checkout as well. In the end the wheel is uninstalled.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

# What a wheel of another torch or Python would fail first.
TESTS = (
    "tests/gather",
    "tests/elementwise/test_sigmoid.py",
    "tests/jit/framework/test_jit_autograd.py",
)


def find_wheel() -> Path:
    tag = "cp{}{}".format(*sys.version_info)
    wheels = sorted(DIST.glob(f"torch_ops-*-{tag}-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{DIST} has {len(wheels)} wheels for this Python ({tag}), and one is to be tried")
    return wheels[0]


def call(*command: str | Path, folder: Path) -> None:
    """Raises subprocess.CalledProcessError."""
    print("+", shlex.join(map(str, command)), flush=True)
    # Without this checkout, which make puts on the path, and which is not what is tried.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environ, check=True)
    print(f"  {time.perf_counter() - start:.1f} s", flush=True)


def try_wheel(wheel: Path, torches: Sequence[str] = (), tests: Sequence[str] = ()) -> None:
    """Raises subprocess.CalledProcessError where it does not install, or does not work."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = folder / "env"
        call(sys.executable, "-m", "venv", "--without-pip", env, folder=folder)
        python = env / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python)
        install = (*pip, "install", "--quiet")
        (site,) = env.glob("lib/python*/site-packages")
        if torches:
            call(*install, f"torch=={torches[0]}.*", "numpy", folder=folder)
            call(*install, wheel, folder=folder)
            if tests:
                call(*install, *test_extra(), folder=folder)
        else:
            call(*install, "--no-deps", "--no-index", wheel, folder=folder)
            borrowed = [path for path in sys.path if path.endswith("-packages")]
            (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
        run(python, wheel, site, folder, tests)
        for torch in torches[1:]:
            call(*install, "--upgrade", f"torch=={torch}.*", folder=folder)
            run(python, wheel, site, folder, tests)
        call(*pip, "uninstall", "--quiet", "--yes", "torch_ops", folder=folder)
        if left := [path.name for path in site.glob("*torch_ops*")]:
            raise SystemExit(f"uninstalling {wheel.name} left {', '.join(left)}")
        print(f"{wheel.name} works with torch {' and '.join(torches) or 'of this Python'}")


def run(python: Path, wheel: Path, site: Path, folder: Path, tests: Sequence[str]) -> None:
    call(python, "-m", "torch_ops", folder=folder)
    version = wheel.name.split("-")[1]
    code = (
        f"import torch_ops as t; assert t.__version__ == {version!r}, t.__version__; "
        f"assert t.__file__.startswith({str(site)!r}), t.__file__"
    )
    call(python, "-c", code, folder=folder)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "readme.py").write_text(
        "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
    )
    call(python, "readme.py", folder=folder)
    if tests:
        # Beside no torch_ops of the checkout, which Python would find before the wheel's.
        for name in ("tests", "examples"):
            shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
        shutil.copy(ROOT / "pyproject.toml", folder)
        workers = str(min(len(os.sched_getaffinity(0)), 4))
        call(python, "-m", "pytest", "-q", "-n", workers, *tests, folder=folder)


def test_extra() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra: list[str] = project["optional-dependencies"]["test"]
    return extra


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path, nargs="?", help="its file")
    parser.add_argument("--torch", metavar="MINOR", nargs="+", default=[], help="such as 2.13")
    parser.add_argument("--tests", metavar="FILE", nargs="*", help="those to run, or a sample")
    arguments = parser.parse_args()
    tests = TESTS if arguments.tests == [] else arguments.tests or ()
    try:
        try_wheel((arguments.wheel or find_wheel()).resolve(), arguments.torch, tests)
    except subprocess.CalledProcessError as error:
        print(f"{shlex.join(map(str, error.cmd))} failed: see above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
