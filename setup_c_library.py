"""Builds what torch_ops_host holds: libtorch_ops_c, its headers and package files, a Cython module.

The library has the kernels, for the CPU and for CUDA, and two faces: the C functions of src/c_api/
and the C++ functions that torch's bindings call. None of it knows torch, so it
serves every torch. setup.py makes it and the bindings in one go.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


def load(name: str) -> ModuleType:
    """torch_ops/_install/<name>.py; the package does not import before it is built."""
    path = Path(__file__).parent / "torch_ops" / "_install" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bindings = load("bindings")
Step, object_files = bindings.Step, bindings.object_files

PACKAGE = "torch_ops_host"
LIBRARY = "libtorch_ops_c.so"
SOURCES = "src/c_api"
HEADERS = ("cuda_check.h", "timing.h")  # of src/common/cuda, for users' own programs
TEMPLATES = {  # of src/c_api: where they go
    "torch_ops_c-config.cmake.in": "lib/cmake/torch_ops_c/torch_ops_c-config.cmake",
    "torch_ops_c-config-version.cmake.in": "lib/cmake/torch_ops_c/torch_ops_c-config-version.cmake",
    "torch_ops_c.pc.in": "lib/pkgconfig/torch_ops_c.pc",
}
NEEDS_CYTHON = (
    "found no Cython, which torch_ops_host is built with: pip install cython (pip installs it by "
    "itself unless --no-build-isolation is given)."
)


@dataclass(frozen=True)
class Cuda:
    """The CUDA compiler, and what it compiles for: "8.0 9.0+PTX", say."""

    home: Path
    version: str
    archs: str

    def flags(self) -> list[str]:
        flags = []
        for arch in self.archs.split():
            number = arch.removesuffix("+PTX").replace(".", "")
            flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
            if arch.endswith("+PTX"):
                digits = re.sub(r"\D", "", number)
                flags.append(f"-gencode=arch=compute_{digits},code=compute_{digits}")
        return flags


def has_cython() -> bool:
    command = [sys.executable, "-c", "import Cython"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def kernel_sources(root: Path, suffix: str) -> list[Path]:
    """The library's sources of this suffix: its own, and the kernels and launchers of ops."""
    folders = {".cpp": "*_cpu.cpp", ".cu": "*.cu"}
    own = set((root / SOURCES).rglob(f"*{suffix}"))
    return sorted(own | set((root / "src").rglob(folders[suffix])))


def library_path(root: Path, base: Path) -> Path:
    """What the bindings of a build below base are linked with."""
    return base / PACKAGE / "lib" / f"{LIBRARY}.{read_api_version(root)}"


def read_api_version(root: Path) -> str:
    header = (root / PACKAGE / "include" / "torch_ops.h").read_text(encoding="utf-8")
    found = re.search(r"^#define TORCH_OPS_API_VERSION (\d+)$", header, re.MULTILINE)
    assert found is not None, "torch_ops.h has no TORCH_OPS_API_VERSION"
    return found[1]


def outputs(root: Path, base: Path) -> list[Path]:
    """All that the steps and finish() make, below base."""
    package = base / PACKAGE
    return [
        package / "lib" / LIBRARY,
        library_path(root, base),
        package / f"_host{sysconfig.get_config_var('EXT_SUFFIX')}",
        *(package / target for target in TEMPLATES.values()),
        *(package / "include" / "torch_ops" / name for name in HEADERS),
    ]


def finish(root: Path, base: Path, version: str) -> None:
    """Puts beside the library what needs no compiler."""
    package = base / PACKAGE
    # What -ltorch_ops_c finds: a linker script. A wheel has no links, and would hold two libraries.
    link = package / "lib" / LIBRARY
    link.unlink(missing_ok=True)
    link.write_text(f"INPUT({library_path(root, base).name})\n", encoding="utf-8")
    for name in HEADERS:
        target = package / "include" / "torch_ops" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / "src/common/cuda" / name, target)
    for name, place in TEMPLATES.items():
        text = (root / SOURCES / name).read_text(encoding="utf-8")
        target = package / place
        target.parent.mkdir(parents=True, exist_ok=True)
        text = text.replace("@VERSION@", version).replace("@API@", read_api_version(root))
        target.write_text(text, encoding="utf-8")


def library_steps(
    root: Path,
    base: Path,
    temp: Path,
    version: str,
    cuda: Cuda | None,
    environ: Mapping[str, str],
    libstdcxx: Sequence[str] = (),
) -> list[Step]:
    """What makes the library, below base.

    `libstdcxx`: arguments that link torch's. Exceptions go from the library to the bindings, and
    torch's through the library, so that it must not have a copy of its own.
    """
    cxx = shlex.split(environ.get("CXX", "c++"))
    config = f"cuda={cuda.version}; archs={cuda.archs}" if cuda else "cuda=none; archs="
    defines = [
        f'-DTORCH_OPS_BUILD_CONFIG="{config}"',
        *(["-DTORCH_OPS_WITH_CUDA"] if cuda else []),
    ]
    includes = [f"-I{root / 'src'}", f"-I{root / PACKAGE / 'include'}"]
    made = []
    for source in kernel_sources(root, ".cpp"):
        target, depfile = object_files(temp, source, root / "src")
        # -fno-trapping-math: see torch_ops/_install/bindings.py.
        flags = "-O3 -g0 -Wall -std=c++17 -fPIC -fvisibility=hidden -fno-trapping-math -pthread"
        command = [*cxx, *flags.split(), *shlex.split(environ.get("CXXFLAGS", ""))]
        if source.is_relative_to(root / SOURCES):  # so that a release compiles no kernel anew
            command.append(f'-DTORCH_OPS_VERSION="{version}"')
        command += [*defines, *includes, "-MMD", "-MF", str(depfile)]
        command += ["-c", str(source), "-o", str(target)]
        made.append(Step(target, [source], command, depfile))
    if cuda is not None:
        nvcc = shlex.split(environ.get("PYTORCH_NVCC") or str(cuda.home / "bin" / "nvcc"))
        for source in kernel_sources(root, ".cu"):
            target, depfile = object_files(temp, source, root / "src")
            # -lineinfo: profilers and compute-sanitizer name lines; costs nothing at run time, and
            # makes the library twice as large. Compressed, the code takes a sixth of the space. A
            # release's is made a fifth smaller still, which takes some 30 s more.
            is_small = environ.get("TORCH_OPS_LINEINFO") == "0"
            form = "--compress-mode=size" if is_small else "-lineinfo"
            flags = "-O3 -Xfatbin=-compress-all -std=c++17 --expt-relaxed-constexpr"
            command = [*nvcc, form, *flags.split(), *cuda.flags(), *defines, *includes]
            command += ["-Xcompiler", "-Wall,-fPIC,-fvisibility=hidden"]
            command += [*(["-ccbin", environ["CC"]] if environ.get("CC") else [])]
            command += ["--generate-dependencies-with-compile", "--dependency-output"]
            command += [str(depfile), "-c", str(source), "-o", str(target)]
            made.append(Step(target, [source], command, depfile))

    objects = [step.output for step in made]
    exports = root / SOURCES / "exports.map"
    target = library_path(root, base)
    soname = target.name
    command = [*cxx, "-shared", "-pthread", "-o", str(target), *map(str, objects)]
    command += [f"-Wl,-soname,{soname}", f"-Wl,--version-script={exports}", "-Wl,--no-undefined"]
    # The pool's threads, and CUDA's, outlive a call: dlclose must not take their code from them.
    command += ["-Wl,-z,nodelete", *libstdcxx]
    if cuda is not None:
        command += [f"-L{cuda.home / lib}" for lib in ("lib64", "lib")]
        command += ["-lcudart_static", "-lrt", "-ldl"]
    made.append(Step(target, objects, command, implicit=[exports]))
    return made


def module_steps(root: Path, base: Path, temp: Path, environ: Mapping[str, str]) -> list[Step]:
    """The Cython module. It opens the library when it is imported, so it is not linked with it."""
    source = root / PACKAGE / "_host.pyx"
    generated = temp / "_host.c"
    cython = [sys.executable, "-m", "cython", "-3", "--module-name", f"{PACKAGE}._host"]
    cython += ["-o", str(generated), str(source)]
    parts = sorted((root / PACKAGE).glob("*.px[di]"))
    made = [Step(generated, [source], cython, implicit=parts)]
    cc = shlex.split(environ.get("CC", "cc"))
    target, depfile = object_files(temp, generated, temp)
    include = sysconfig.get_path("include")
    command = [*cc, "-O2", "-g0", "-fPIC", "-fwrapv", "-fvisibility=hidden", f"-I{include}"]
    command += [f"-I{root / PACKAGE / 'include'}", "-MMD", "-MF", str(depfile)]
    command += ["-c", str(generated), "-o", str(target)]
    made.append(Step(target, [generated], command, depfile))
    module = base / PACKAGE / f"_host{sysconfig.get_config_var('EXT_SUFFIX')}"
    link = [*cc, "-shared", "-o", str(module), str(target), "-ldl"]
    made.append(Step(module, [target], link))
    return made
