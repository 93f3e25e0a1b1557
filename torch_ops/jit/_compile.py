"""From source text to code: NVRTC for GPUs, a C++ compiler for the CPU, both through the cache."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import torch_ops._version
from torch_ops.jit._cache import Artefact, get_or_compile, make_key
from torch_ops.jit._errors import compile_error
from torch_ops.jit._source import Source, UnknownIncludeError, header_fingerprints
from torch_ops.jit._toolchain import (
    DEFAULT_ARCH,
    Nvrtc,
    find_host_compiler,
    find_nvrtc,
    host_processor,
)

# Goes before the user's options, which may name another standard or level.
HOST_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-g0")

_INSTALL = 'Install it: pip install "torch_ops[jit]", or pip install "cuda-core>=1.2,<2".'


def compile_cuda(
    what: str,
    source: Source,
    *,
    arch: str | None = None,
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
    target: str = "cubin",
) -> Artefact:
    """Compiles CUDA C++ with NVRTC; needs no GPU, and for what is in the cache no NVRTC either.

    Args:
        what: The kernel, as the user knows it, for errors: ``'RawKernel "relu"'``.
        source: The text.
        arch: ``"sm_90"``. An option ``-arch`` of the user goes before it.
        options: More options of NVRTC.
        name_expressions: What ``facts["names"]`` is to hold the mangled names of.
        target: ``"cubin"``, or ``"ptx"``.

    Returns:
        The code. Its facts: ``"names"``, mangled names by name expression; ``"log"``, the
        compiler's warnings; ``"format"``, ``"cubin"`` or ``"ptx"`` (PTX also stands for a cubin
        where the GPU is newer than NVRTC), ``"arch"``.

    Raises:
        CompileError: The source does not compile.
        ModuleNotFoundError: It must be compiled and cuda-core is not installed.
        RuntimeError: The cache's folder is refused.
    """
    arch, options = _split_arch(options, arch or DEFAULT_ARCH)
    nvrtc = find_nvrtc()
    facts = ["cuda", nvrtc.version, arch, target, *options, "names", *name_expressions]
    key = _key(facts, source.text, options, libraries=nvrtc.include)

    def compile() -> Artefact:
        return _run_nvrtc(what, source, nvrtc, arch, options, tuple(name_expressions), target)

    return get_or_compile(key, compile)


def compile_host(what: str, source: Source, *, options: Sequence[str] = ()) -> Artefact:
    """Compiles C++ for this machine's CPU to a shared object.

    Args:
        what: The kernel, as the user knows it, for errors.
        source: The text.
        options: Options of the compiler after ``HOST_OPTIONS``.

    Returns:
        The shared object. Its facts: ``"log"``, the compiler's warnings.

    Raises:
        CompileError: The source does not compile.
        RuntimeError: There is no compiler, or the cache's folder is refused.
    """
    compiler = find_host_compiler()
    arguments = [*compiler.command[1:], *HOST_OPTIONS, *options]
    # Compilers look for headers there too.
    variables = (os.environ.get(name, "") for name in ("CPATH", "CPLUS_INCLUDE_PATH"))
    folders = [folder for text in variables for folder in text.split(os.pathsep) if folder]
    facts = ["host", compiler.version, host_processor(), *arguments]
    key = _key(facts, source.text, arguments, folders)

    def compile() -> Artefact:
        return _run_host_compiler(what, source, [compiler.command[0], *arguments])

    return get_or_compile(key, compile)


# ---- options and keys ---------------------------------------------------------------------------


def _key(
    facts: Sequence[str],
    text: str,
    options: Sequence[str],
    folders: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> str | None:
    """The key of a compilation, or None where an include cannot be followed."""
    before, named = _headers_of_options(options)
    try:
        headers = header_fingerprints(text, [*named, *folders], libraries, before)
    except UnknownIncludeError:
        return None
    return make_key(torch_ops._version.__version__, *facts, "headers", *headers, "text", text)


_WITH_FOLDER = ("-I", "--include-path", "-isystem", "-iquote")
_WITH_HEADER = ("-include", "--pre-include")


def _headers_of_options(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """The headers that options include, and the folders that they name."""
    headers: list[str] = []
    folders: list[str] = []
    for names, found in ((_WITH_HEADER, headers), (_WITH_FOLDER, folders)):
        found += _values(options, names)
    return headers, folders


def _values(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """What follows options of these names: ``-I x``, ``-Ix``, ``--include-path=x``."""
    found = []
    following = False
    for option in options:
        if following:
            found.append(option)
            following = False
        elif option in names:
            following = True
        else:
            for name in names:
                if option.startswith((name + "=", name + " ")) or (
                    name == "-I" and option.startswith(name)
                ):
                    found.append(option[len(name) :].lstrip("= "))
                    break
    return found


_ARCH = ("-arch", "--gpu-architecture")


def _split_arch(options: Sequence[str], arch: str) -> tuple[str, list[str]]:
    """The architecture, which options may name, and the other options."""
    named = _values(options, _ARCH)
    rest = []
    following = False
    for option in options:
        if following:
            following = False
        elif option in _ARCH:
            following = True
        elif not option.startswith(tuple(name + end for name in _ARCH for end in "= ")):
            rest.append(option)
    return (named[-1] if named else arch), rest


# ---- NVRTC --------------------------------------------------------------------------------------


def _import_cuda_core(what: str) -> Any:
    try:
        import cuda.bindings.nvrtc
        import cuda.core
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{what} must be compiled, which needs NVRTC and the package cuda-core, and {error}. "
            f"{_INSTALL} (What is in the cache of compiled kernels runs without.)"
        ) from error
    return cuda


def _run_nvrtc(
    what: str,
    source: Source,
    nvrtc: Nvrtc,
    arch: str,
    options: Sequence[str],
    names: tuple[str, ...],
    target: str,
) -> Artefact:
    if nvrtc.library is not None:
        # cuda-core takes one that is loaded: the one whose version is part of the key.
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(nvrtc.library))
    cuda = _import_cuda_core(what)
    supported = _supported_archs(cuda)
    if arch.startswith("sm_") and supported and (number := _number(arch)) > supported[-1]:
        # Newer than this NVRTC: the driver compiles the PTX of the newest that it knows.
        arch, target = f"compute_{max(n for n in supported if n <= number)}", "ptx"
    elif arch.startswith("compute_"):
        target = "ptx"
    given = [f"-arch={arch}", *options, *(f"-I{folder}" for folder in nvrtc.include)]

    class Options(cuda.core.ProgramOptions):  # type: ignore[misc, name-defined]
        """Options as they are, where ProgramOptions has a field for each that it knows."""

        def as_bytes(self, *args: Any, **kwargs: Any) -> list[bytes]:
            return [option.encode() for option in given]

    log = io.StringIO()
    try:
        program = cuda.core.Program(source.text, "c++", Options(arch=arch))
        code = program.compile(target, name_expressions=names, logs=log)
    except Exception as error:
        if "NVRTC" not in type(error).__name__.upper() and "NVRTC" not in str(error):
            raise
        _, _, text = str(error).partition("compilation log:")
        raise compile_error(what, source, text or str(error)) from None
    facts = {
        "names": {name: _text(mangled) for name, mangled in code.symbol_mapping.items()},
        "log": log.getvalue().strip(),
        "format": target,
        "arch": arch,
    }
    data = code.code
    return Artefact(data.encode() if isinstance(data, str) else bytes(data), facts)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _number(arch: str) -> int:
    digits = re.search(r"\d+", arch)
    return int(digits[0]) if digits else 0


def _supported_archs(cuda: Any) -> list[int]:
    status, archs = cuda.bindings.nvrtc.nvrtcGetSupportedArchs()
    return sorted(archs) if int(status) == 0 else []


# ---- the host -----------------------------------------------------------------------------------


def _run_host_compiler(what: str, source: Source, command: Sequence[str]) -> Artefact:
    with tempfile.TemporaryDirectory(prefix="torch_ops_jit_") as folder:
        text, library = os.path.join(folder, "kernel.cpp"), os.path.join(folder, "kernel.so")
        with open(text, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(source.text)
        run = subprocess.run(
            # Carets would show a file that happens to be named as a string of the user.
            [*command, "-fno-diagnostics-show-caret", "-x", "c++", text, "-o", library],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "LC_ALL": "C"},  # messages in the words that are looked for
        )
        log = (run.stdout + run.stderr).strip()
        if run.returncode != 0:
            raise compile_error(what, source, log)
        with open(library, "rb") as file:
            return Artefact(file.read(), {"log": log})
