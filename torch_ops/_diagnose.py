"""Says what torch_ops was built for, what it runs with, and what to do where the two differ.

Nothing but the standard library is imported here until a function is called: this module must work
where the compiled modules, or torch itself, are missing or broken.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import struct
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from torch_ops import _bindings, _supported
from torch_ops._version import __version__

_EXT = Path(__file__).resolve().parent / "_ext"
CONFIG = "build_config.json"
USERS = f"{__version__}-python{_bindings.python_version()}"  # in the user's folder: for this Python

_REBUILD = (
    "Build it again for this Python and this torch, in the folder of its sources:\n"
    "    pip install --no-build-isolation -e .\n"
    "or, to set up everything in an environment of its own (.venv):\n"
    "    make install"
)
_COMPILE = (
    "Compile bindings for the torch that is installed (some minutes, with g++; no CUDA compiler):\n"
    f"    {sys.executable} -m torch_ops build"
)


class InstallationError(ImportError):
    """torch_ops cannot run as it is installed; the text says why, and the command that mends it."""

    __module__ = "torch_ops"


class _Problem(Exception):
    """The reason for an InstallationError, with what mends it."""

    def __init__(self, reason: str, mend: str = _REBUILD) -> None:
        super().__init__(reason)
        self.mend = mend


def load_extensions() -> None:
    """Imports torch and every compiled module, once it is sure that they fit each other.

    Raises:
        InstallationError: something is missing, broken, or was built for something else.
    """
    try:
        _check_and_load()
    except _Problem as problem:
        raise InstallationError(_report(problem)) from problem.__cause__


def diagnosis() -> str:
    """What torch_ops was built for and runs with, and what is wrong, if anything. Never raises."""
    try:
        _check_and_load()
    except _Problem as problem:
        return _report(problem)
    return _report(None)


def check_error_text() -> str:
    """Sees that an error of a compiled module reaches Python, with the numbers in its text.

    Where the modules have a copy of libstdc++ of their own, numbers vanish, or the process ends: so
    a child of it tries.
    """
    code = (
        f"import sys; sys.path.insert(0, {str(_EXT.parent.parent)!r}); import torch, torch_ops\n"
        "try: torch_ops.gather(torch.ones(3), torch.tensor([0]), dim=7654321)\n"
        "except IndexError as error: print(error)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    text = child.stdout.strip()
    if child.returncode != 0 or "7654321" not in text:
        raise RuntimeError(
            f"of an IndexError that names the dim 7654321 came {text!r}, and the exit status "
            f"{child.returncode}. Where that is the whole trouble, the modules were linked with a "
            "libstdc++ of their own: build again, with CXX unset or another compiler. "
            f"{child.stderr.strip()}"
        )
    return f"an IndexError says {text!r}"


def asks_to_build() -> bool:
    """Whether this process is `python -m torch_ops build`, of which the package is imported now."""
    return sys.argv[:2] == ["-m", "build"] and "torch_ops" in sys.orig_argv


def build_config() -> dict[str, Any]:
    """What setup.py wrote down of the build; empty where there is none that can be read."""
    return _read_config(_folder())


def _folder() -> Path:
    """Of the bindings for the torch that is installed; where it has none, of some others."""
    try:
        version = str(importlib.import_module("torch").__version__)
    except Exception:  # _import_torch says what ails it
        version = ""
    folders = _folders()
    name = _bindings.folder_name(version)
    return next((folder for folder in folders if folder.name == name), [_EXT, *folders][-1])


def _folders() -> list[Path]:
    """All with bindings: of this installation, then those that this user has compiled."""
    parents = [_EXT]
    with contextlib.suppress(RuntimeError):  # in a container, say, whose user has no home folder
        parents.append(_bindings.user_folder(os.environ) / USERS)
    return [
        folder
        for parent in parents
        for folder in sorted(parent.glob("torch*"), key=lambda path: _bindings.parse(path.name[5:]))
    ]


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        whole = isinstance(config["archs"], list) and all(
            isinstance(facts, dict) for facts in config["ops"].values()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return config if whole else {}


def _check_and_load() -> None:
    # From the cheap to the dear: loading a module that was built for another torch may well end
    # the process, so whatever can be compared is compared before.
    folder = _folder()
    config = _read_config(folder)
    if not config:
        file = folder / CONFIG
        state = "is damaged" if file.exists() else "does not exist"
        raise _Problem(f"It is not built, or its last build did not finish: {file} {state}.")
    if config.get("version") != __version__:
        raise _Problem(f"Its compiled modules are of version {config.get('version')}.")
    running = _bindings.python_version()
    if config.get("python") != running:
        raise _Problem(f"It was built for Python {config.get('python')}; this is {running}.")

    torch = _import_torch(config)
    if _bindings.parse(torch.__version__) < _bindings.parse(_supported.OLDEST_TORCH):
        raise _Problem(
            f"It needs torch {_supported.OLDEST_TORCH} or newer; torch {torch.__version__} is "
            "installed.",
            f'Install a newer torch:\n    pip install "torch>={_supported.OLDEST_TORCH}"',
        )
    minor = _bindings.minor_version(torch.__version__)
    if folder.name != _bindings.folder_name(minor):
        has = ", ".join(each.name[5:] for each in _folders())
        raise _Problem(
            f"It has bindings for torch {has}; torch {torch.__version__} is installed.", _COMPILE
        )
    if _bindings.minor_version(str(config.get("torch"))) != minor:
        raise _Problem(
            f"It was built for torch {config.get('torch')}; torch {torch.__version__} is installed."
        )
    modules = list(config["ops"])
    if torch.version.cuda is None:  # the others serve this torch too
        modules = [op for op in modules if op != _bindings.CUDA_MODULE]
    elif config.get("cuda"):
        installed = f"torch {torch.__version__} has CUDA {torch.version.cuda}"
        if config.get("torch_cuda") is None:
            reason = f"Its bindings were compiled for a torch without CUDA; {installed}."
            raise _Problem(reason, _COMPILE)
        if _major(config["torch_cuda"]) != _major(torch.version.cuda):
            raise _Problem(f"Its kernels are for CUDA {_major(config['torch_cuda'])}; {installed}.")

    for op in modules:
        _check_module_file(folder, op)
    importlib.import_module("torch_ops._ext").__path__ = [str(folder)]
    for op in modules:
        try:
            importlib.import_module(f"torch_ops._ext.{op}")
        except Exception as error:
            raise _Problem(f"Its module for {op} does not load: {error}") from error


def _import_torch(config: dict[str, Any]) -> Any:
    mend = f'Install the torch that it was built for:\n    pip install "{_torch_needed(config)}"'
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        raise _Problem(f"torch does not import: {error}", mend) from error
    if not hasattr(torch, "__version__"):
        # A folder that an uninstalled torch left behind imports as an empty package.
        raise _Problem(f"torch does not import: {list(torch.__path__)} holds no torch.", mend)
    return torch


def _check_module_file(folder: Path, op: str) -> None:
    names = [folder / (op + suffix) for suffix in EXTENSION_SUFFIXES]
    found = next((name for name in names if name.is_file()), None)
    if found is None:
        raise _Problem(f"Its module for {op} is missing: {names[0]}")
    if not _is_whole_elf(found):
        raise _Problem(f"Its module for {op} is damaged: {found}")


def _is_whole_elf(path: Path) -> bool:
    """Whether the file is as long as its header says.

    Loading a library that was cut short (a full disk, an interrupted copy) can end the process
    with SIGBUS, without a word.
    """
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return False
    (section_table,) = struct.unpack_from("<Q", header, 0x28)
    entry_size, entries = struct.unpack_from("<HH", header, 0x3A)
    return bool(path.stat().st_size >= section_table + entry_size * entries)


def _major(version: Any) -> str:
    return str(version).split(".")[0]


def _torch_needed(config: dict[str, Any]) -> str:
    return f"torch=={_bindings.minor_version(str(config.get('torch')))}.*"


def _report(problem: _Problem | None) -> str:
    if problem is None:
        title = f"torch_ops {__version__} is installed and loads."
    else:
        title = f"torch_ops {__version__} cannot be used. {problem}"
    lines = [title, "", *_table(build_config())]
    if problem is not None:
        lines += ["", problem.mend]
    return "\n".join(lines)


def _table(config: dict[str, Any]) -> list[str]:
    """Built for and runs with, side by side."""
    torch_version, torch_cuda, gpus = _running_torch()
    archs = config.get("archs", [])
    # The modules of ops have a file in ops/; torch_cuda, which is none, has not.
    ops = [op for op in config.get("ops", {}) if (_EXT.parent / "ops" / f"{op}.py").is_file()]
    with_cuda = [op for op in ops if config["ops"][op].get("cuda")]
    without = [op for op in ops if op not in with_cuda]
    rows = [
        ("", "built for", "runs with"),
        ("torch_ops", config.get("version", "-"), __version__),
        ("Python", config.get("python", "-"), f"{platform.python_version()} ({sys.executable})"),
        ("torch", config.get("torch", "-"), torch_version),
        ("CUDA", config.get("torch_cuda") or "none", torch_cuda),
    ]
    lines = [f"{name:<12}{built:<18}{runs}".rstrip() for name, built, runs in rows]
    lines.append(f"{'GPU':<12}{', '.join(archs) or 'none':<18}{_describe_gpus(gpus, archs)}")
    if config:
        # With CUDA, such an op is made of others.
        label = "No CUDA kernels of their own" if config.get("cuda") else "CPU only"
        lines += [
            f"CUDA kernels: {', '.join(with_cuda) or 'none'}"
            f" (nvcc {config.get('nvcc') or 'not used'}; {config.get('reason')})",
            f"{label}: {', '.join(without) or 'none'}",
        ]
    return [*lines, f"bindings: {_folder()}", f"folder: {_EXT.parent}"]


def _running_torch() -> tuple[str, str, list[tuple[str, tuple[int, int]]]]:
    """torch's version, its CUDA version, and the GPUs that it sees with their capabilities."""
    try:
        torch = importlib.import_module("torch")
        version, cuda = str(torch.__version__), str(torch.version.cuda or "none")
    except Exception as error:  # whatever ails it, the rest of the report is still of use
        return f"does not import ({type(error).__name__})", "unknown", []
    try:
        gpus = [
            (torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
            for i in range(torch.cuda.device_count())
        ]
    except Exception:  # a driver that is too old, say; torch itself explains that when it is used
        gpus = []
    return version, cuda, gpus


def _describe_gpus(gpus: list[tuple[str, tuple[int, int]]], archs: list[str]) -> str:
    if not gpus:
        return "none visible"
    return ", ".join(
        f"{name} ({major}.{minor}{'' if _covers(archs, (major, minor)) else ': NOT built for'})"
        for name, (major, minor) in gpus
    )


def _covers(archs: list[str], gpu: tuple[int, int]) -> bool:
    """Whether code for these architectures runs on a GPU of this compute capability.

    Machine code runs on the same major version from its minor version up (a suffix ties it to its
    own version alone); PTX is compiled by the driver for whatever is newer.
    """
    for arch in archs:
        number, _, ptx = arch.partition("+")
        try:
            major, minor = (int(part) for part in number.rstrip("af").split("."))
        except ValueError:  # a name such as Hopper
            return True
        if number[-1] in "af":
            if (major, minor) == gpu:
                return True
        elif (major == gpu[0] and minor <= gpu[1]) or (ptx and (major, minor) <= gpu):
            return True
    return False
