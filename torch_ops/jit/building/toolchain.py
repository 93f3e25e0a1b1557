"""Which compilers there are, told without loading or running one: a warm cache needs none."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

# What kernels are compiled for where there is no GPU and no option names an architecture.
DEFAULT_ARCH = "sm_90"


# ---- NVRTC and CUDA's headers -------------------------------------------------------------------


class Nvrtc(NamedTuple):
    """The library that cuda-core is made to load, and the headers of its toolkit."""

    library: Path | None  # None: cuda-core may look for it itself
    version: str
    include: tuple[str, ...]


def _cuda_major() -> str:
    return (torch.version.cuda or "13").split(".")[0]


@cache
def find_nvrtc() -> Nvrtc:
    """NVRTC as torch's wheels bring it; else of the toolkit at CUDA_HOME or /usr/local/cuda."""
    name = f"libnvrtc.so.{_cuda_major()}"
    spec = importlib.util.find_spec("nvidia")
    parents = (spec.submodule_search_locations or []) if spec else []
    wheels = [Path(parent) / f"cu{_cuda_major()}" for parent in parents]
    # torch's wheels bring some of CUDA's headers, but not those of CCCL.
    roots = [*wheels, *_toolkits()]
    for root in wheels:
        library = root / "lib" / name
        if library.is_file():
            return Nvrtc(library, _wheel_version(root.parent.parent, library), _headers(roots))
    for root in _toolkits():
        for lib in ("lib64", "lib"):
            library = root / lib / name
            if library.is_file():
                # There the file behind the link is named by the full version.
                version = f"{library.resolve().name} {_size(library)}"
                return Nvrtc(library, version, _headers([root, *roots]))
    return Nvrtc(None, "unknown", ())


def _wheel_version(site_packages: Path, library: Path) -> str:
    # Not importlib.metadata: it reads all of site-packages.
    found = glob.glob(str(site_packages / "nvidia_cuda_nvrtc*.dist-info"))
    return " ".join([*sorted(map(os.path.basename, found)), _size(library)])


def _size(library: Path) -> str:
    return str(library.stat().st_size)


def _toolkits() -> list[Path]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [Path(home) for home in homes if home]


def _headers(roots: Sequence[Path]) -> tuple[str, ...]:
    """The folders of CUDA's headers and, in CUDA 13 a folder below, those of CCCL (<cuda/std/...>).

    What the first root lacks is taken from the next one, of the same CUDA.
    """
    folders = [
        str(folder)
        for root in roots
        for folder in (root / "include", root / "include" / "cccl")
        if folder.is_dir() and _major_of(root / "include") in (None, _cuda_major())
    ]
    return tuple(dict.fromkeys(folders))


def _major_of(include: Path) -> str | None:
    """The CUDA that headers are of; None where they do not tell, as CCCL's alone."""
    try:
        with open(include / "cuda.h", "rb") as file:
            found = re.search(rb"#define CUDA_VERSION (\d+)\d{3}", file.read(2**16))
    except OSError:
        return None
    return found[1].decode() if found else None


def arch_of(device: int) -> str:
    """The architecture of a CUDA device, such as ``"sm_90"``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


# ---- the host's C++ compiler --------------------------------------------------------------------


class HostCompiler(NamedTuple):
    """The command to call, and what tells it from another compiler."""

    command: tuple[str, ...]
    version: str


def find_host_compiler() -> HostCompiler:
    """``CXX``, or else g++ or clang++.

    Raises:
        RuntimeError: There is none.
    """
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise RuntimeError(
            f"torch_ops.jit: CXX is {os.environ['CXX']!r}, which is not a command: {error}."
        ) from None
    candidates = [named] if named else [["g++"], ["clang++"], ["c++"]]
    for command in candidates:
        path = shutil.which(command[0])
        if path is not None:
            return HostCompiler((path, *command[1:]), _identity((path, *command[1:])))
    if named:
        raise RuntimeError(
            f"torch_ops.jit: kernels for the CPU are compiled by the C++ compiler that CXX names, "
            f"but there is no {named[0]!r}. Install it, or unset CXX to have g++ or clang++ used."
        )
    raise RuntimeError(
        "torch_ops.jit: kernels for the CPU are compiled by a C++ compiler, and there is none: "
        "install g++ (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: "
        "conda install gxx) or clang++, or name one in CXX."
    )


def _identity(command: Sequence[str]) -> str:
    """Of the files, for asking a compiler for its version takes longer than a kernel's load.

    A launcher may stand before the compiler, as in ``ccache g++``, or on PATH under its name. So
    each program of the command counts by its name, and by all that PATH has under that.
    """
    facts = []
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    for word in command:
        if word.startswith("-"):
            continue
        name = os.path.basename(word)
        paths = [word] if os.path.dirname(word) else []
        for path in [*paths, *(os.path.join(folder, name) for folder in folders)]:
            if os.path.isfile(path) and os.access(path, os.X_OK):
                real = os.path.realpath(path)
                status = os.stat(real)
                facts.append(f"{name} {real} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(dict.fromkeys(facts))


@cache
def option_against_carets(command: tuple[str, ...]) -> str:
    """What makes this compiler show no lines of the source in its messages: g++, or clang++."""
    run = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return "-fno-caret-diagnostics" if "clang" in run.stdout else "-fno-diagnostics-show-caret"


@cache
def host_processor() -> str:
    """What -march=native depends on."""
    text = ""
    if sys.platform == "linux":
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            text = file.read(8192).decode(errors="replace")  # the first processor's part
    found = re.findall(r"^(?:model name|cpu family|model|flags|Features)\s*:.*$", text, re.M)
    return "\n".join([platform.machine(), *found[:5]])


@cache
def shared_libstdcxx() -> list[str]:
    """Links the libstdc++ that torch has loaded, where the source before it needs one.

    Some compilers link it statically. A kernel with a copy of its own writes no numbers to streams,
    and its exceptions may end the process. Most kernels need none: linked to it all the same, a
    small one would take a seventh longer to compile.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            found = re.search(r"/.*/libstdc\+\+\.so\.6[^/]*$", line.rstrip())
            if found:
                return ["-Wl,--as-needed", "-x", "none", found[0]]
    return []
