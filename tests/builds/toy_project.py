"""A project with torch_ops' own build and diagnosis, and one op that compiles in a second.

What those two do when something is missing or broken is tried on copies of it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import torch
from programs import ROOT, run_with_torch

FILES = {
    "README.md": "A toy.\n",
    "torch_ops/__init__.py": """
import importlib
from torch_ops._install.diagnose import (
    InstallationError,
    asks_to_build,
    explain_missing,
    load_extensions,
)
from torch_ops._version import __version__

if asks_to_build():
    raise SystemExit(importlib.import_module("torch_ops._install.build").main())
load_extensions()
try:
    from torch_ops.ops.toy import answer
except ModuleNotFoundError as error:
    raise explain_missing(error) from error
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
    "src/c_api/api.cpp": 'extern "C" int torch_ops_toy() { return 42; }\n',
    "torch_ops_host/__init__.py": "",
    "torch_ops_host/_host.pyx": "",
    "torch_ops_host/include/torch_ops.h": "#define TORCH_OPS_API_VERSION 1\n",
}

COPIED = (
    *("setup.py", "setup_c_library.py", "pyproject.toml", "MANIFEST.in", "LICENSE"),
    *(f"torch_ops/_install/{file.name}" for file in (ROOT / "torch_ops/_install").glob("*.py")),
    "torch_ops/_version.py",
    *("torch_ops/__main__.py", "torch_ops/py.typed", "torch_ops/_ext/__init__.py"),
    *("src/c_api/exports.map", "src/common/cuda/cuda_check.h", "src/common/cuda/timing.h"),
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "src" / "c_api").glob("*.in")),
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


def bindings(folder: Path) -> Path:
    """Of the modules for the torch that is installed."""
    minor = ".".join(torch.__version__.split(".")[:2])
    return folder / "torch_ops" / "_ext" / f"torch{minor}"


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_with_torch("setup.py", "build_ext", "--inplace", cwd=folder, **variables)
