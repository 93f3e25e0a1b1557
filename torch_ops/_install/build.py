"""`python -m torch_ops build`: bindings for the torch that is installed, compiled by the user.

Needs a C++ compiler and Python's headers. The kernels are compiled already, in torch_ops_host; so
neither nvcc nor a network is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_ops._install import bindings, diagnose, supported
from torch_ops._version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_HOST = _PACKAGE.parent / "torch_ops_host"


class _Refusal(Exception):
    """Says what is missing, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads what follows `build`: by default of this process. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_ops build",
        description="Compiles bindings for the torch that is installed, and keeps them for you. "
        "Takes some minutes.",
    )
    parser.add_argument("--force", action="store_true", help="compile even if there are some")
    parser.add_argument("--clean", action="store_true", help="remove all that this has compiled")
    asked = parser.parse_args(sys.argv[2:] if arguments is None else arguments)
    try:
        kept = _find_user_folder()
        if asked.clean:
            shutil.rmtree(kept, ignore_errors=True)
            print(f"removed {kept}")
        elif not asked.force and _are_there():
            print("torch_ops: there are bindings for this torch; --force compiles them again")
        else:
            print(f"torch_ops: the bindings are in {build(kept / diagnose.USERS, os.environ)}")
    except _Refusal as refusal:
        print(f"torch_ops: {refusal}", file=sys.stderr)
        return 1
    return 0


def build(parent: Path, environ: Mapping[str, str]) -> Path:
    """Returns the folder with the bindings. They come there whole, or not at all."""
    src = _find_sources()
    library = next(iter(sorted((_HOST / "lib").glob("libtorch_ops_c.so.*"))), None)
    if library is None:
        raise _Refusal(f"there is no kernel library in {_HOST / 'lib'}: install torch_ops again.")
    _check_compiler(environ)
    torch, facts, with_kernels = _find_torch()
    ops = bindings.find_ops(src)
    if torch.cuda_includes is None:
        ops = [op for op in ops if op.name != bindings.CUDA_MODULE]
    folder = parent / bindings.folder_name(torch.version)
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _Refusal(f"cannot write to {parent}: {error.strerror}.") from error

    for left in parent.glob("tmp*"):  # by builds that were killed
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - 24 * 3600:
                shutil.rmtree(left)

    start = time.perf_counter()
    kind = "CPU and CUDA" if torch.cuda_includes is not None else "the CPU"
    print(f"torch_ops: compiling bindings for torch {torch.version}, for {kind}")
    with tempfile.TemporaryDirectory(dir=parent) as temp:
        made = Path(temp) / "made"
        steps = bindings.binding_steps(
            src,
            ops,
            made,
            Path(temp),
            torch,
            library,
            facts["cuda"],
            str(library.parent),
            environ,
        )
        try:
            bindings.run_all(steps, Path(temp), bindings.count_jobs(environ))
        except subprocess.CalledProcessError as error:
            raise _Refusal(
                f"the compiler failed: the errors above say why. The command was\n{error.cmd}"
            ) from error
        config = {
            "version": __version__,
            "python": bindings.python_version(),
            "torch": torch.version,
            **facts,
            "ops": {op.name: {"cuda": op.name in with_kernels} for op in ops},
        }
        text = json.dumps(config, indent=2) + "\n"
        (made / diagnose.CONFIG).write_text(text, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    print(f"torch_ops: done in {time.perf_counter() - start:.0f} s")
    return folder


def _are_there() -> bool:
    """Whether bindings load with the torch that is installed. Their sources may have changed."""
    try:
        diagnose.load_extensions()
    except diagnose.InstallationError:
        return False
    return True


def _find_user_folder() -> Path:
    try:
        return bindings.user_folder(os.environ)
    except RuntimeError as error:
        raise _Refusal("there is no home folder for the bindings: set XDG_CACHE_HOME.") from error


def _find_sources() -> Path:
    """In a wheel they are within the package, in a checkout beside it."""
    for src in (_PACKAGE / "_src", _PACKAGE.parent / "src"):
        if src.is_dir() and bindings.find_ops(src):
            return src
    raise _Refusal("the sources of the bindings are missing: install torch_ops again.")


def _check_compiler(environ: Mapping[str, str]) -> None:
    compiler = shlex.split(environ.get("CXX", "c++"))[0]
    if shutil.which(compiler, path=environ.get("PATH")) is None:
        raise _Refusal(
            f"found no C++ compiler ({compiler}): install g++ (Debian, Ubuntu: apt install g++; "
            "Fedora: dnf install gcc-c++), or set CXX."
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise _Refusal(
            f"Python's headers are missing ({header}): install them (Debian, Ubuntu: apt install "
            "python3-dev; Fedora: dnf install python3-devel)."
        )


def _find_torch() -> tuple[bindings.Torch, dict[str, Any], set[str]]:
    """The torch that is installed, what of build_config.json follows, and the ops with CUDA."""
    try:
        import torch
    except Exception as error:
        raise _Refusal(
            f"torch does not import: {error}. Install it: {sys.executable} -m pip install torch"
        ) from error
    version, cuda = str(torch.__version__), torch.version.cuda
    if bindings.parse(version) < bindings.parse(supported.OLDEST_TORCH):
        raise _Refusal(
            f"torch {version} is installed; torch_ops needs {supported.OLDEST_TORCH} or newer: "
            f'pip install "torch>={supported.OLDEST_TORCH}"'
        )
    kernels = diagnose.kernels_config()  # of other bindings for the same library
    for_cuda = bool(kernels.get("cuda"))
    with_cuda = for_cuda and cuda is not None
    if with_cuda and str(cuda).split(".")[0] != supported.CUDA_MAJOR:
        raise _Refusal(
            f"torch {version} is a build for CUDA {cuda}; the kernels of torch_ops are for CUDA "
            f"{supported.CUDA_MAJOR}: install a torch for that."
        )
    facts = {
        "torch_cuda": cuda,
        "cuda": for_cuda,
        "nvcc": kernels.get("nvcc"),
        "archs": kernels.get("archs", []),
        "reason": "compiled by python -m torch_ops build",
    }
    includes = [wheel / "include" for wheel in bindings.nvidia_wheels(cuda)]
    folder = Path(torch.__file__).parent
    ops = {op for op, has in kernels.get("ops", {}).items() if for_cuda and has["cuda"]}
    return bindings.Torch(version, folder, includes if with_cuda else None), facts, ops
