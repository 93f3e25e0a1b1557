"""Installs a wheel into a new environment, and runs it there; without a name, the one in dist/.

    python tools/try_wheel.py [WHEEL] [--torch 2.13]    # or: make try-wheel [TORCH_VERSION=2.13]

With --torch, pip installs that version of torch too. Without, the environment borrows what is
installed beside this Python, and nothing is fetched.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

DIST = Path(__file__).resolve().parent.parent / "dist"


def find_wheel() -> Path:
    tag = "cp{}{}".format(*sys.version_info)
    wheels = sorted(DIST.glob(f"torch_ops-*-{tag}-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{DIST} has {len(wheels)} wheels for this Python ({tag}), and one is to be tried")
    return wheels[0]


def call(*command: str | Path, folder: str) -> None:
    """Raises subprocess.CalledProcessError."""
    print("+", shlex.join(map(str, command)), flush=True)
    # Without this checkout, which make puts on the path, and which is not what is tried.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=folder, env=environ, check=True)


def try_wheel(wheel: Path, torch: str | None = None) -> None:
    """Raises subprocess.CalledProcessError where it does not install, or does not work."""
    with tempfile.TemporaryDirectory() as folder:
        call(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder)
        python = Path(folder, "bin", "python")
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        (site,) = Path(folder).glob("lib/python*/site-packages")
        if torch is None:
            call(*pip, "--no-deps", "--no-index", wheel, folder=folder)
            borrowed = [path for path in sys.path if path.endswith("-packages")]
            (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
        else:
            call(*pip, f"torch=={torch}.*", "numpy", wheel, folder=folder)
        call(python, "-m", "torch_ops", folder=folder)
        version = wheel.name.split("-")[1]
        code = (
            f"import torch_ops as t; assert t.__version__ == {version!r}, t.__version__; "
            f"assert t.__file__.startswith({str(site)!r}), t.__file__"
        )
        call(python, "-c", code, folder=folder)
        print(f"{wheel.name} works with torch {torch or 'of this Python'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path, nargs="?", help="its file")
    parser.add_argument("--torch", metavar="MINOR", help="such as 2.13")
    arguments = parser.parse_args()
    try:
        try_wheel((arguments.wheel or find_wheel()).resolve(), arguments.torch)
    except subprocess.CalledProcessError as error:
        print(f"{shlex.join(map(str, error.cmd))} failed: see above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
