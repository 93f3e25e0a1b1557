"""Programs that tests build and run, and the project's folder, where they find sources."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The variables that steer a build, and those that would let another copy be imported.
STEERING = (
    *("CUDA_HOME", "CUDA_PATH", "FORCE_CUDA", "MAX_JOBS", "TORCH_CUDA_ARCH_LIST"),
    *("TORCH_OPS_CPU_ONLY", "PYTHONPATH"),
)


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


def run_with_torch(
    *arguments: str | Path, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The same for code that may import torch: a program, ``-m`` or ``-c``; ``-W`` before it.

    Python that has imported torch forks a process for it, since to import torch takes a second.
    """
    environ = {name: value for name, value in os.environ.items() if name not in STEERING}
    with tempfile.NamedTemporaryFile("r", errors="replace") as output:
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "environ": environ | variables,
            "output": output.name,
        }
        server = python_with_torch()
        assert server.stdin is not None and server.stdout is not None
        try:
            print(json.dumps(request), file=server.stdin, flush=True)
            status = int(server.stdout.readline())
        except BaseException:  # a timeout, say: the next request is not to read this one's status
            server.kill()
            python_with_torch.cache_clear()
            raise
        return subprocess.CompletedProcess([*arguments], status, output.read())


# Each line of its input is a request; it writes the exit status. The process that it forks leaves
# the loop, and ends as any Python does.
SERVER = """
import gc, importlib, json, os, runpy, sys, warnings
import torch

gc.collect()
gc.freeze()  # else the end of each process would copy all objects to look at them
for line in sys.stdin:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which libraries have made
        child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

request = json.loads(line)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
os.dup2(output, 1)
os.dup2(output, 2)
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["environ"])
importlib.invalidate_caches()
first, *rest = request["arguments"]
if first == "-W":
    warnings.simplefilter(rest[0])
    first, *rest = rest[1:]
sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.orig_argv = [sys.executable, first, *rest]
sys.argv = [first, *rest[first in ("-c", "-m") :]]
if first == "-c":
    sys.path[0] = ""
    exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
elif first == "-m":
    sys.path[0] = request["cwd"]
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = os.path.dirname(os.path.abspath(first))
    runpy.run_path(first, run_name="__main__")
"""


@cache
def python_with_torch() -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name not in STEERING}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=environ,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    def stop() -> None:
        with server:
            assert server.stdin is not None
            server.stdin.close()

    atexit.register(stop)
    return server


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
