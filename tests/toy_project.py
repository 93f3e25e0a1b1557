"""A project with torch_ops' own build and diagnosis, and one op that compiles in a second.

What those two do when something is missing or broken is tried on copies of it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent

# The variables that steer a build, and those that would let another copy be imported.
STEERING = (
    *("CUDA_HOME", "CUDA_PATH", "FORCE_CUDA", "MAX_JOBS", "TORCH_CUDA_ARCH_LIST"),
    *("TORCH_OPS_CPU_ONLY", "PYTHONPATH"),
)

FILES = {
    "README.md": "A toy.\n",
    "torch_ops/__init__.py": """
from torch_ops._diagnose import InstallationError, load_extensions
from torch_ops._version import __version__

load_extensions()
from torch_ops.ops.toy import answer
""",
    "torch_ops/ops/__init__.py": "",
    "torch_ops/ops/toy.py": """
import torch
from torch_ops._ext.toy import answer

def self_check(device: torch.device) -> str:
    assert answer() == 42
    return "the answer is 42"
""",
    # No header of torch's: those take half a minute.
    "src/toy/toy.cpp": """
#include <Python.h>
#include "common/answer.h"

static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "toy", "", -1, methods};
PyMODINIT_FUNC PyInit_toy() { return PyModule_Create(&module); }
""",
    "src/toy/toy_cuda.cu": "__global__ void toy_kernel(float* p) { *p = 42; }\n",
    "src/common/answer.h": "#define ANSWER 42\n",
    "src/common/common.cuh": "",
    "src/toy/toy.pyx": "",
}

COPIED = (
    *("setup.py", "setup_c_library.py", "pyproject.toml", "MANIFEST.in", "LICENSE"),
    *("torch_ops/_diagnose.py", "torch_ops/_version.py", "torch_ops/__main__.py"),
    *("torch_ops/py.typed", "torch_ops/_ext/__init__.py"),
)


def write_toy(folder: Path) -> Path:
    """Writes the sources into folder."""
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_library(folder: Path) -> None:
    """Adds the sources of the C library."""
    for name in ("common", "c_api", "gather", "index", "scatter", "relu", "sigmoid"):
        for path in (ROOT / "src" / name).rglob("*"):
            # Of the ops' folders the kernels alone: with <op>.cpp there it would be an op.
            kernels = path.suffix in (".h", ".cuh", ".cu") or path.match("*_cpu.cpp")
            if path.is_file() and (name in ("common", "c_api") or kernels):
                target = folder / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    for pattern in ("*.py*", "*.pxd", "py.typed", "include/*.h"):
        for path in (ROOT / "torch_ops_host").glob(pattern):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


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


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("setup.py", "build_ext", "--inplace", cwd=folder, **variables)


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
