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
import shlex
import struct
import subprocess
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from torch_ops._install import bindings, supported
from torch_ops._version import __version__

_ROOT = Path(__file__).resolve().parents[2]
_EXT = _ROOT / "torch_ops" / "_ext"
CONFIG = "build_config.json"
USERS = f"{__version__}-python{bindings.python_version()}"  # in the user's folder: for this Python

_PYTHON = shlex.quote(sys.executable)
_COMPILE = (
    "Compile bindings for this Python and its torch (some minutes, with g++; no CUDA compiler):\n"
    f"    {_PYTHON} -m torch_ops build"
)


class InstallationError(ImportError):
    """torch_ops cannot run as it is installed; the text says why, and the command that mends it."""

    __module__ = "torch_ops"


class _Problem(Exception):
    """The reason for an InstallationError, with what mends it."""

    def __init__(self, reason: str, mend: str | None = None) -> None:
        super().__init__(reason)
        self.mend = mend or _install_again()


def load_extensions() -> None:
    """Imports torch and every compiled module, once it is sure that they fit each other.

    Raises:
        InstallationError: something is missing, broken, or was built for something else.
    """
    try:
        _check_and_load()
    except _Problem as problem:
        raise InstallationError(_report(problem)) from problem.__cause__


def explain_missing(error: ModuleNotFoundError) -> InstallationError:
    """The error to raise where a module is missing: of a new op, or in a half-copied folder."""
    package, _, name = str(error.name).rpartition(".")
    root = shlex.quote(str(_ROOT))
    if not _is_checkout():
        mend = None
    elif package == "torch_ops._ext":
        mend = f"Build it:\n    make -C {root} build OP={name} PYTHON={_PYTHON}"
    else:
        mend = f"Copy its sources again. Where git has them:\n    git -C {root} restore torch_ops"
    return InstallationError(_report(_Problem(f"Its module {error.name} is missing.", mend)))


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
        f"import sys; sys.path.insert(0, {str(_ROOT)!r}); import torch, torch_ops\n"
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


def kernels_config() -> dict[str, Any]:
    """The configuration of some bindings of this installation; those with CUDA if there are any."""
    configs = [_read_config(folder) for folder in _folders() if folder.parent == _EXT]
    return max(configs, key=lambda config: bool(config.get("cuda")), default={})


def _install_again(python: str = _PYTHON) -> str:
    """The command that makes what is installed whole, and fit for this Python and its torch."""
    pip = f"{python} -m pip install"
    if _is_checkout():
        return f"Build it again:\n    {pip} -e {shlex.quote(str(_ROOT))}"
    return f"Install it again:\n    {pip} --force-reinstall --no-deps torch_ops=={__version__}"


def _is_checkout() -> bool:
    return (_ROOT / "setup.py").is_file()


def _folder() -> Path:
    """Of the bindings for the torch that is installed; where it has none, of some others."""
    try:
        torch = importlib.import_module("torch")
        name, cuda = bindings.folder_name(torch.__version__), torch.version.cuda
    except Exception:  # _import_torch says what ails it
        name, cuda = "", None
    folders = _folders()
    named = [folder for folder in folders if folder.name == name]
    # This installation's, or those that the user has compiled, whichever came last: the others may
    # be of other sources.
    fitting = [folder for folder in named if _fits(_read_config(folder), cuda)]
    fitting.sort(key=lambda folder: (folder / CONFIG).stat().st_mtime, reverse=True)
    return next(iter([*fitting, *named, *reversed(folders), _EXT]))


def _fits(config: dict[str, Any], cuda: str | None) -> bool:
    """Whether bindings are for this version, this Python, and the CUDA of torch."""
    versions = (config.get("version"), config.get("python"))
    return versions == (__version__, bindings.python_version()) and _fits_cuda(config, cuda)


def _fits_cuda(config: dict[str, Any], cuda: str | None) -> bool:
    if not config.get("cuda") or cuda is None:
        return True
    return _major(config.get("torch_cuda")) == _major(cuda)


def _folders() -> list[Path]:
    """All with bindings: of this installation, then those that this user has compiled."""
    parents = [_EXT]
    with contextlib.suppress(RuntimeError):  # in a container, say, whose user has no home folder
        parents.append(bindings.user_folder(os.environ) / USERS)
    return [
        folder
        for parent in parents
        for folder in sorted(parent.glob("torch*"), key=lambda path: bindings.parse(path.name[5:]))
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
    running = bindings.python_version()
    if sys.version_info < bindings.parse(supported.OLDEST_PYTHON):
        newest = supported.PYTHON[-1]
        raise _Problem(
            f"It works with Python {', '.join(supported.PYTHON)}; this is {running}.",
            _install_again(f"python{newest}"),
        )
    torch = _import_torch(config)
    if config.get("python") != running:
        raise _Problem(
            f"It was built for Python {config.get('python')}; this is {running}.", _COMPILE
        )
    if bindings.parse(torch.__version__) < bindings.parse(supported.OLDEST_TORCH):
        raise _Problem(
            f"It works with torch {', '.join(supported.TORCH)}; torch {torch.__version__} is "
            "installed.",
            f"Install one of these:\n    {_PYTHON} -m pip install 'torch=={supported.TORCH[-1]}.*'",
        )
    minor = bindings.minor_version(torch.__version__)
    if folder.name != bindings.folder_name(minor):
        has = ", ".join(each.name[5:] for each in _folders())
        raise _Problem(
            f"It has bindings for torch {has}; torch {torch.__version__} is installed.", _COMPILE
        )
    if bindings.minor_version(str(config.get("torch"))) != minor:
        raise _Problem(
            f"It was built for torch {config.get('torch')}; torch {torch.__version__} is installed."
        )
    _check_cuda(config, torch)
    _check_library()
    # The other modules serve a torch without CUDA too.
    left_out = {bindings.CUDA_MODULE} if torch.version.cuda is None else set()
    modules = [op for op in config["ops"] if op not in left_out]
    for op in modules:
        _check_module_file(folder, op)
    importlib.import_module("torch_ops._ext").__path__ = [str(folder)]
    for op in modules:
        try:
            importlib.import_module(f"torch_ops._ext.{op}")
        except Exception as error:
            mend = None if folder.parent == _EXT else _COMPILE
            raise _Problem(f"Its module for {op} does not load: {error}", mend) from error


def _import_torch(config: dict[str, Any]) -> Any:
    needed = _torch_needed(config)
    mend = f"Install the torch that it was built for:\n    {_PYTHON} -m pip install '{needed}'"
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        raise _Problem(f"torch does not import: {error}", mend) from error
    if not hasattr(torch, "__version__"):
        # A folder that an uninstalled torch left behind imports as an empty package.
        raise _Problem(f"torch does not import: {list(torch.__path__)} holds no torch.", mend)
    return torch


def _check_cuda(config: dict[str, Any], torch: Any) -> None:
    cuda = torch.version.cuda
    if _fits_cuda(config, cuda):
        return
    running = f"torch {torch.__version__} is for CUDA {cuda}"
    if config.get("torch_cuda") is None:
        reason = f"Its bindings were compiled for a torch without CUDA; {running}."
        raise _Problem(reason, _COMPILE)
    mend = (
        f"Install a torch for CUDA {supported.CUDA_MAJOR}, as PyPI's is:\n"
        f"    {_PYTHON} -m pip install --force-reinstall '{_torch_needed(config)}' "
        "--index-url https://pypi.org/simple"
    )
    ours = _major(config.get("torch_cuda")) == supported.CUDA_MAJOR
    reason = f"Its kernels are for CUDA {config.get('torch_cuda')}; {running}."
    raise _Problem(reason, mend if ours else None)


def _check_library() -> None:
    """The bindings of a user, too, are linked with the library of this installation."""
    lib = _ROOT / "torch_ops_host" / "lib"
    found = list(lib.glob("libtorch_ops_c.so.*"))
    if not found:
        raise _Problem(f"Its kernel library is missing: {lib / 'libtorch_ops_c.so.*'}")
    for path in found:
        if not _is_whole_elf(path):
            raise _Problem(f"Its kernel library is damaged: {path}")


def _check_module_file(folder: Path, op: str) -> None:
    mend = None if folder.parent == _EXT else _COMPILE
    names = [folder / (op + suffix) for suffix in EXTENSION_SUFFIXES]
    found = next((name for name in names if name.is_file()), None)
    if found is None:
        raise _Problem(f"Its module for {op} is missing: {names[0]}", mend)
    if not _is_whole_elf(found):
        raise _Problem(f"Its module for {op} is damaged: {found}", mend)


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
    return f"torch=={bindings.minor_version(str(config.get('torch')))}.*"


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
    torch_version, torch_cuda, gpus, reason = _running_torch()
    archs = config.get("archs", [])
    # The modules of ops have a file below ops/; torch_cuda, which is none, has not.
    ops = [op for op in config.get("ops", {}) if any((_EXT.parent / "ops").rglob(f"{op}.py"))]
    with_cuda = [op for op in ops if config["ops"][op].get("cuda")]
    without = [op for op in ops if op not in with_cuda]
    rows = [
        ("", "built for", "runs with"),
        ("torch_ops", config.get("version", "-"), __version__),
        ("Python", config.get("python", "-"), f"{platform.python_version()} ({sys.executable})"),
        ("torch", config.get("torch", "-"), torch_version),
        ("CUDA", config.get("torch_cuda") or "none", torch_cuda),
    ]
    seen = _describe_gpus(gpus, archs) if gpus else f"none visible{reason}"
    rows.append(("GPU", ", ".join(archs) or "none", seen))
    width = max(len(built) for _, built, _ in rows) + 3
    lines = [f"{name:<12}{built:<{width}}{runs}".rstrip() for name, built, runs in rows]
    if config:
        lines += [
            f"CUDA kernels: {', '.join(with_cuda) or 'none'}"
            f" (nvcc {config.get('nvcc') or 'not used'}; {config.get('reason')})",
        ]
        if without:  # with CUDA, such an op is made of others
            label = "No CUDA kernels of their own" if config.get("cuda") else "CPU only"
            lines.append(f"{label}: {', '.join(without)}")
    return [*lines, *_bindings_lines(), f"folder: {_EXT.parent}"]


def _bindings_lines() -> list[str]:
    """Those that are chosen, the others, and the versions that there are none for."""
    chosen, folders = _folder(), _folders()
    lines = [f"bindings: {chosen}"]
    for parent in dict.fromkeys(folder.parent for folder in folders):
        names = [each.name for each in folders if each.parent == parent and each != chosen]
        if names:
            lines.append(f"others: {', '.join(names)} in {parent}")
    has = {folder.name for folder in folders}
    there_are = supported.torches(bindings.python_version())
    missing = [each for each in there_are if bindings.folder_name(each) not in has]
    if missing:
        lines.append(f"no bindings for torch {', '.join(missing)}")
    return lines


def _running_torch() -> tuple[str, str, list[tuple[str, tuple[int, int]]], str]:
    """torch's version, its CUDA version, the GPUs with their capabilities, or why there is none."""
    try:
        torch = importlib.import_module("torch")
        version, cuda = str(torch.__version__), str(torch.version.cuda or "none")
    except Exception as error:  # whatever ails it, the rest of the report is still of use
        return f"does not import ({type(error).__name__})", "unknown", [], ""
    gpus, reason = [], ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are what init() raises
            count = torch.cuda.device_count()
        if count == 0 and _has_nvidia_gpu() and torch.version.cuda is not None:
            torch.cuda.init()  # raises what ails it: no driver, or one that is too old
        gpus = [
            (torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
            for i in range(count)
        ]
    except Exception as error:
        reason = f": {str(error).splitlines()[0]}" if str(error) else ""
    return version, cuda, gpus, reason


def _has_nvidia_gpu() -> bool:
    """Whether the machine has one, with a driver or without."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with contextlib.suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == "0x10de" and kind.startswith("0x03"):
                return True
    return False


def _describe_gpus(gpus: list[tuple[str, tuple[int, int]]], archs: list[str]) -> str:
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
