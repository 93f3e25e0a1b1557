"""From source text to code: NVRTC for GPUs, a C++ compiler for the CPU, both through the cache."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import io
import itertools
import os
import re
import shlex
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch_ops._version
from torch_ops.jit.building.cache import Artefact, get_or_compile, make_key
from torch_ops.jit.building.errors import compile_error
from torch_ops.jit.building.includes import UnknownIncludeError, header_fingerprints
from torch_ops.jit.building.options import read_options, split_options
from torch_ops.jit.building.source import Source
from torch_ops.jit.building.toolchain import (
    DEFAULT_ARCH,
    Nvrtc,
    find_host_compiler,
    find_nvrtc,
    host_processor,
    option_against_carets,
    shared_libstdcxx,
)

# Goes before the user's options, which may name another standard or level.
HOST_OPTIONS = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-g0"),
    "-Wl,-z,defs",  # what is declared and nowhere defined is an error of the compilation
)
# Without one of these, a text of the user's names nothing of the standard library.
_STD = re.compile(r"\bstd\b|include|import")
# The functions of headers/vector_math.h, which are for loops that are vectorised; ...
_VECTOR_MATH = re.compile(r"\b(exp|expm1|log|log1p|tanh|erf)f?\b")
# ... and those that keep a loop from it. One by one, the C library's take less time.
_SCALAR_MATH = re.compile(
    r"\b(a?(sin|cos)h?|a?tan|atanh|atan2|sincos(pi)?|(sin|cos)pi|pow|r?hypot|r?cbrt|exp2|exp10"
    r"|log2|log10|i?logb|erfcx?|erfc?inv|normcdf(inv)?|[lt]gamma|fmod|remainder|remquo)f?\b"
    r"|\bprintf\b|\batomic"
)
_DIVISION = re.compile(r"/(?!\s*\d*\.\d)|%|include|import")  # not by 2.0
_OF_FOLDERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_STD_IN_OPTION = re.compile(r"(?<!-)\bstd\b|include|import|imacros|^@")


def may_divide(texts: Iterable[str]) -> bool:
    """May one of the user's texts divide integers? Code of a header may, too."""
    return any(map(_DIVISION.search, texts))


def compile_cuda(
    what: str,
    source: Source,
    *,
    arch: str | None = None,
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
    optional: Sequence[str] = (),
    target: str = "cubin",
) -> Artefact:
    """Compiles CUDA C++ with NVRTC; needs no GPU, and for what is in the cache no NVRTC either.

    Args:
        what: The kernel, as the user knows it, for errors: ``'RawKernel "relu"'``.
        source: The text.
        arch: ``"sm_90"``. An option ``-arch`` of the user goes before it.
        options: More options of NVRTC.
        name_expressions: What ``facts["names"]`` is to hold the mangled names of.
        optional: Those of them that may not exist; ``facts["names"]`` then lacks them.
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
    named, options = split_options(options, ("-arch", "--gpu-architecture"))
    arch = named[-1] if named else arch or DEFAULT_ARCH
    nvrtc = find_nvrtc()
    facts = ["cuda", nvrtc.version, arch, target, *options, "names", *name_expressions]
    # NVRTC searches for the quoted includes of the source in the working folder first.
    key = _key(facts, source.text, options, libraries=nvrtc.include, own=os.curdir)

    def compile() -> Artefact:
        core, bindings = _import_cuda_core(what, nvrtc)
        real, form = _supported(bindings, arch, target)
        given = [f"-arch={real}", *options, *(f"-I{folder}" for folder in nvrtc.include)]
        names = list(name_expressions)
        while True:
            try:
                artefact = _run_nvrtc(core, bindings, source, given, names, form)
            except _RefusedError as refused:
                missing = [name for name in names if name in refused.missing]
                if not missing or not set(missing) <= set(optional):
                    unknown = [name for name in missing if name not in optional]
                    raise compile_error(what, source, refused.log, unknown) from None
                names = [name for name in names if name not in missing]
            else:
                return replace(artefact, facts={**artefact.facts, "format": form, "arch": real})

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
    texts = source.user_texts().values()
    vectorises = any(map(_VECTOR_MATH.search, texts)) and not any(map(_SCALAR_MATH.search, texts))
    if not vectorises:
        arguments.append("-DTORCH_OPS_WITHOUT_VECTOR_MATH")  # for headers/vector_math.h
    named = any(map(_STD.search, texts))
    if not named and not any(map(_STD_IN_OPTION.search, arguments)):
        arguments.append("-DTORCH_OPS_WITHOUT_STD")  # for headers/cpu.h
    if may_divide(texts):
        # Or g++ takes a division by zero for impossible, and ends the process where it sees one.
        # Some loops take longer with it, so not all kernels get it. clang++ ignores it.
        arguments.append("-fnon-call-exceptions")
    facts = ["host", compiler.version, host_processor(), *arguments]
    key = _key(facts, source.text, arguments, _folders_of_environment())

    def compile() -> Artefact:
        # Carets would show a file that happens to be named as a string of the user.
        try:
            no_carets = option_against_carets(compiler.command)
            return _run_host_compiler(what, source, [compiler.command[0], *arguments, no_carets])
        except OSError as error:
            advice = "CXX must name a C++ compiler; without it g++ or clang++ is used."
            if error.errno in _OF_FOLDERS:
                advice = "TMPDIR must name a folder with room for the source and the code."
            raise RuntimeError(
                f"torch_ops.jit: {what} was not compiled by {shlex.join(compiler.command)}: "
                f"{error}. {advice}"
            ) from error

    return get_or_compile(key, compile)


# ---- options and keys ---------------------------------------------------------------------------


def included_headers(text: str, options: Sequence[str]) -> list[str]:
    """What a text includes, and options name, with hashes of what is found, for CPU and GPU.

    These tell kernels of one text apart that were made before and after a header was changed. Where
    only the compiler knows which ones they are, each call gives something else.
    """
    try:
        named = read_options([*_named_host_options(), *options])
        folders = [*named.folders, *_folders_of_environment()]
        headers = header_fingerprints(text, folders, before=named.headers, own=os.curdir)
        return [*named.files, *headers]
    except UnknownIncludeError:
        return [f"unknown {next(_calls[make_key(text, *options)])}"]


# By text and options, so that in each process the first kernel of a text has the same name.
_calls: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def _named_host_options() -> list[str]:
    """The options that stand in CXX."""
    with contextlib.suppress(ValueError):  # it is refused where a compiler is needed
        return shlex.split(os.environ.get("CXX", ""))[1:]
    return []


def _folders_of_environment() -> list[str]:
    """Where the host's compilers look for headers too; an empty name is the current folder's."""
    texts = (os.environ.get(name, "") for name in ("CPATH", "CPLUS_INCLUDE_PATH"))
    return [folder or os.curdir for text in texts if text for folder in text.split(os.pathsep)]


def _key(
    facts: Sequence[str],
    text: str,
    options: Sequence[str],
    folders: Sequence[str] = (),
    libraries: Sequence[str] = (),
    own: str | None = None,
) -> str | None:
    """The key of a compilation, or None where not all that it reads is known."""
    try:
        named = read_options(options)
        headers = header_fingerprints(
            text, [*named.folders, *folders], libraries, named.headers, own
        )
    except UnknownIncludeError:
        return None
    options = ["options", *named.words, "files", *named.files]
    version = torch_ops._version.__version__
    return make_key(version, *facts, *options, "headers", *headers, "text", text)


# ---- NVRTC --------------------------------------------------------------------------------------


def _import_cuda_core(what: str, nvrtc: Nvrtc) -> tuple[Any, Any]:
    """cuda.core, and the bindings of NVRTC below it."""
    if nvrtc.library is not None:
        # cuda-core takes one that is loaded: the one whose version is part of the key.
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(nvrtc.library))
    try:
        nvrtc_bindings = importlib.import_module("cuda.bindings.nvrtc")
        core = importlib.import_module("cuda.core")
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{what} must be compiled, which needs NVRTC and the package cuda-core: {error}. "
            'Install it: pip install "cuda-core>=1.2,<2". (What is in the cache of compiled '
            "kernels runs without.)"
        ) from error
    return core, nvrtc_bindings


def _supported(bindings: Any, arch: str, target: str) -> tuple[str, str]:
    """What NVRTC can be asked for: the architecture, and "cubin" or "ptx"."""
    if arch.startswith("compute_"):
        return arch, "ptx"
    status, listed = bindings.nvrtcGetSupportedArchs()
    known = sorted(listed) if int(status) == 0 else []
    digits = re.fullmatch(r"sm_(\d+)", arch)
    if digits and known and int(digits[1]) > known[-1]:
        # Newer than this NVRTC: the driver compiles the PTX of the newest that it knows.
        return f"compute_{known[-1]}", "ptx"
    return arch, target


class _RefusedError(Exception):
    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log
        pragmas = re.findall(r"#pragma nv_mangled_name (.*)$", log, re.MULTILINE)
        self.missing = {pragma.strip() for pragma in pragmas}  # name expressions without a meaning


@cache
def _options_as_given(core: Any) -> Any:
    class Options(core.ProgramOptions):
        """Takes any option, where ProgramOptions has a field for each that it knows."""

        given: list[bytes]

        def as_bytes(self, *args: Any, **kwargs: Any) -> list[bytes]:
            return self.given

    return Options


def _run_nvrtc(
    core: Any, bindings: Any, source: Source, options: list[str], names: list[str], form: str
) -> Artefact:
    given = _options_as_given(core)(arch=options[0].partition("=")[2])
    given.given = [option.encode() for option in options]
    log = io.StringIO()
    program = core.Program(source.text, "c++", given)
    try:
        # To cuda-core PTX is for a driver that can load it, and there may be none. NVRTC has it too
        # when it was asked for a cubin.
        code = program.compile("cubin", name_expressions=tuple(names), logs=log)
        data = _ptx_of(bindings, program) if form == "ptx" else bytes(code.code)
    except Exception as error:
        _, mark, text = str(error).partition("compilation log:")
        if not mark:
            raise
        raise _RefusedError(text.replace("\0", "").strip()) from None
    finally:
        program.close()
        del (
            program
        )  # or the error's traceback keeps it for the garbage collector, which it dislikes
    mangled = {
        name: symbol.decode() if isinstance(symbol, bytes) else symbol
        for name, symbol in code.symbol_mapping.items()
    }
    return Artefact(data, {"names": mangled, "log": log.getvalue().replace("\0", "").strip()})


def _ptx_of(nvrtc: Any, program: Any) -> bytes:
    status, size = nvrtc.nvrtcGetPTXSize(program.handle)
    text = bytes(size)
    if int(status) == 0:
        (status,) = nvrtc.nvrtcGetPTX(program.handle, text)
    if int(status) != 0:
        raise RuntimeError(f"NVRTC gives no PTX: {status!r}.")
    return text.rstrip(b"\0")


# ---- the host -----------------------------------------------------------------------------------


def _run_host_compiler(what: str, source: Source, command: Sequence[str]) -> Artefact:
    with tempfile.TemporaryDirectory(prefix="torch_ops_jit_") as folder:
        text, library = os.path.join(folder, "kernel.cpp"), os.path.join(folder, "kernel.so")
        with open(text, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(source.text)
        run = subprocess.run(
            [*command, "-x", "c++", text, *shared_libstdcxx(), "-o", library],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            # Messages in the words that are looked for; and nothing is left if it is killed.
            env={**os.environ, "LC_ALL": "C", "TMPDIR": folder},
        )
        log = (run.stdout + run.stderr).strip()
        if run.returncode != 0:
            raise compile_error(what, source, log)
        with open(library, "rb") as file:
            return Artefact(file.read(), {"log": log})
