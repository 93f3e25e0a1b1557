"""Compiles the bindings, the modules torch_ops._ext.<op>, with a C++ compiler alone.

The kernels are in the library that they are linked with (setup_c_library.py), which knows no torch.
So bindings for several versions of torch can be beside each other, each in a folder of its own.
Nothing of the package is imported here, so that this works where the package does not import.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

LIBSTDCXX = "libstdc++.so.6"
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")

# -O1 with the inlining of -O2 compiles in three quarters of the time of -O2. Calls cost the host
# at most 1 % more. Clang does not know two of the flags, and would warn of them.
# -g0: no debug information of all of torch's headers.
# -fopenmp: at::parallel_for is a header, and serial without it.
# -fno-trapping-math: nothing reads the flags of floating-point exceptions, and to keep them GCC
# vectorises no loop that chooses between two results. Changes no result.
# AT_PER_OPERATOR_HEADERS: no header of torch's includes all of its operators.
FLAGS = (
    *("-O1", "-finline-functions", "-finline-small-functions", "-findirect-inlining"),
    *("-fpartial-inlining", "-Wno-ignored-optimization-argument"),
    *("-g0", "-Wall", "-DNDEBUG", "-fPIC", "-fwrapv", "-fvisibility=hidden"),
    *("-fopenmp", "-fno-trapping-math", "-DAT_PER_OPERATOR_HEADERS"),
)

# Lines of sources that are compiled as one: most of a small file's time goes to torch's headers.
MOST_LINES = 3000

# The one module that is linked with torch's CUDA libraries, so that the others serve every torch.
CUDA_MODULE = "torch_cuda"


# ---- Steps of a build ----------------------------------------------------------------------------


@dataclass
class Step:
    """A file to make, and the command that makes it."""

    output: Path
    inputs: list[Path]
    command: list[str]
    depfile: Path | None = None
    implicit: list[Path] = field(default_factory=list)  # inputs that the command does not name

    def name(self, temp: Path) -> str:
        """What is printed of it while it is made."""
        inside = self.output.is_relative_to(temp)
        return self.output.relative_to(temp).as_posix() if inside else self.output.name


def object_files(temp: Path, source: Path, src: Path) -> tuple[Path, Path]:
    """Object and list of headers of a source below src; x.cpp and x.cu may be in one folder."""
    name = source.relative_to(src).as_posix()
    return temp / f"{name}.o", temp / f"{name}.d"


def count_jobs(environ: Mapping[str, str]) -> int:
    return int(environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))


def run_steps(steps: Sequence[Step], temp: Path, environ: Mapping[str, str]) -> None:
    """Makes all outputs, each after what it needs.

    ninja leaves out what is up to date. Without ninja, all are made.

    Raises:
        subprocess.CalledProcessError: a command failed; it has printed why.
    """
    ninja = shutil.which("ninja", path=environ.get("PATH"))
    if ninja is None:
        run_all(steps, temp, count_jobs(environ))
        return

    def escaped(text: str) -> str:
        return re.sub(r"([$ :])", r"$\1", text)

    lines = ["ninja_required_version = 1.3"]
    for number, step in enumerate(steps):
        command = shlex.join(step.command).replace("$", "$$")
        name = step.name(temp).replace("$", "$$")
        lines += [f"rule step{number}", f"  command = {command}", f"  description = {name}"]
        if step.depfile is not None:
            lines += [f"  depfile = {escaped(str(step.depfile))}", "  deps = gcc"]
        inputs = " ".join(escaped(str(path)) for path in step.inputs)
        implicit = " ".join(escaped(str(path)) for path in step.implicit)
        needs = f"{inputs} | {implicit}" if implicit else inputs
        lines += [f"build {escaped(str(step.output))}: step{number} {needs}"]
    (temp / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
    jobs = str(count_jobs(environ))
    subprocess.run([ninja, "-C", str(temp), "-j", jobs], check=True)


def run_all(steps: Sequence[Step], temp: Path, jobs: int) -> None:
    """All steps, which are in an order in which each comes after what it needs."""
    for step in steps:
        step.output.parent.mkdir(parents=True, exist_ok=True)
    made: dict[Path, Future[None]] = {}
    # A step that waits for others holds a process: so those that need nothing go first.
    rank: dict[Path, int] = {}
    for step in steps:
        needs = (*step.inputs, *step.implicit)
        rank[step.output] = 1 + max((rank.get(path, 0) for path in needs), default=0)
    steps = sorted(steps, key=lambda step: rank[step.output])

    def run(number: int, step: Step) -> None:
        for path in (*step.inputs, *step.implicit):
            if path in made:
                made[path].result()  # it was handed out before, so some thread has it
        print(f"[{number}/{len(steps)}] {step.name(temp)}", flush=True)
        if subprocess.run(step.command, check=False).returncode != 0:
            raise subprocess.CalledProcessError(1, shlex.join(step.command))

    with ThreadPoolExecutor(jobs) as pool:
        for number, step in enumerate(steps, 1):
            made[step.output] = pool.submit(run, number, step)
        try:
            for future in made.values():
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# ---- Bindings ------------------------------------------------------------------------------------


def minor_version(version: str) -> str:
    """Of 2.11.0+cu130: 2.11."""
    return ".".join(version.split("+")[0].split(".")[:2])


def python_version() -> str:
    """Of the Python that runs, as modules are tied to it: 3.12, or 3.14t where there is no GIL."""
    return "{}.{}".format(*sys.version_info) + sys.abiflags


def parse(version: str) -> tuple[int, ...]:
    """Of 2.11.0+cu130: (2, 11). Of what is no version: ()."""
    minor = minor_version(version).split(".")
    return tuple(int(number) for number in minor) if all(map(str.isdecimal, minor)) else ()


def folder_name(torch: str) -> str:
    """Of the bindings for this version of torch, below torch_ops/_ext and in the user's folder."""
    return f"torch{minor_version(torch)}"


def user_folder(environ: Mapping[str, str]) -> Path:
    """Where `python -m torch_ops build` puts bindings; nothing is looked at or made.

    Raises:
        RuntimeError: the user has no home folder.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "torch_ops_bindings"


def nvidia_wheels(torch_cuda: str | None) -> list[Path]:
    """site-packages/nvidia/cu13, where torch's CUDA libraries, headers and pip's nvcc are."""
    spec = find_spec("nvidia")
    if torch_cuda is None or spec is None:
        return []
    major = torch_cuda.split(".")[0]
    return [
        folder
        for parent in spec.submodule_search_locations or []
        if (folder := Path(parent) / f"cu{major}").is_dir()
    ]


@dataclass(frozen=True)
class Op:
    """A folder of src/ that becomes one module."""

    name: str
    sources: list[Path]
    has_cuda: bool  # kernels of its own for CUDA


def find_ops(src: Path) -> list[Op]:
    """Sorted. A folder is an op when it has <op>.cpp, the file with the binding.

    Its module has all *.cpp in the folder and below it but *_cpu.cpp, which is a kernel.
    """
    ops = []
    for folder in sorted(src.iterdir()):
        if (folder / f"{folder.name}.cpp").is_file():
            sources = [p for p in sorted(folder.rglob("*.cpp")) if not p.match("*_cpu.cpp")]
            ops.append(Op(folder.name, sources, any(folder.rglob("*.cu"))))
    return ops


def units_of(sources: Sequence[Path]) -> list[list[Path]]:
    """One module's sources in groups that are compiled as one file."""
    units: list[list[Path]] = []
    lines = 0
    for source in sorted(sources, key=lambda path: (path.parent, path)):
        more = source.read_bytes().count(b"\n")
        if units and lines + more <= MOST_LINES:
            units[-1].append(source)
            lines += more
        else:
            units.append([source])
            lines = more
    return units


def write_unit(unit: Sequence[Path], temp: Path, src: Path) -> Path:
    """The file to compile in place of the sources; one source stands for itself."""
    if len(unit) == 1:
        return unit[0]
    file = temp / unit[0].relative_to(src).with_name(f"{unit[0].stem}-{unit[-1].stem}.cpp")
    text = "".join(f'#include "{source.relative_to(src).as_posix()}"\n' for source in unit)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return file


@dataclass(frozen=True)
class Torch:
    """The torch that bindings are compiled for."""

    version: str
    folder: Path  # with include/ and lib/
    cuda_includes: Sequence[Path] | None = None  # of CUDA's headers; None: without CUDA_MODULE

    @property
    def standard(self) -> str:
        """Of C++: torch's own extensions are compiled so."""
        return "c++20" if parse(self.version) >= (2, 12) else "c++17"


def binding_steps(
    src: Path,
    ops: Sequence[Op],
    target: Path,
    temp: Path,
    torch: Torch,
    library: Path,
    kernels_for_cuda: bool,
    rpath: str,
    environ: Mapping[str, str],
) -> list[Step]:
    """Makes target/<op>.cpython-....so of each op, linked with the kernel library.

    `rpath`: the library's folder, as the modules are to look for it.
    """
    cxx = shlex.split(environ.get("CXX", "c++"))
    include = torch.folder / "include"
    # torch_headers: stands in for headers that torch includes and does not ship.
    headers = [src / "common/torch/torch_headers", include]
    headers += [include / "torch/csrc/api/include"]
    headers += [Path(sysconfig.get_path("include"))]
    compile_ = [*cxx, *FLAGS, f"-std={torch.standard}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    compile_ += [*(["-DTORCH_OPS_WITH_CUDA"] if kernels_for_cuda else []), f"-I{src}"]
    compile_ += [f"-isystem{path}" for path in headers]
    compile_ += shlex.split(environ.get("CXXFLAGS", ""))

    link = [f"-L{torch.folder / 'lib'}", "-Wl,--no-as-needed"]
    link += [f"-l{name}" for name in ("c10", "torch", "torch_cpu", "torch_python")]
    link += ["-fopenmp", str(library), f"-Wl,-rpath,{rpath}", *link_libstdcxx()]
    link += shlex.split(environ.get("LDFLAGS", ""))

    steps = []
    for op in ops:
        own_headers, own_libraries = [], []
        if op.name == CUDA_MODULE:
            # cuda_headers: stands in for headers that come with nvcc alone.
            folders = [*(torch.cuda_includes or ()), src / "common/torch/cuda_headers"]
            own_headers = [f"-isystem{path}" for path in folders]
            # CUDA's own runtime comes with torch's libraries, which need it.
            own_libraries = ["-lc10_cuda", "-ltorch_cuda"]
        objects = []
        for unit in units_of(op.sources):
            source = write_unit(unit, temp, src)
            output, depfile = object_files(temp, source, src if source in unit else temp)
            command = [*compile_, *own_headers, f"-DTORCH_EXTENSION_NAME={op.name}"]
            command += ["-MMD", "-MF", str(depfile), "-c", str(source), "-o", str(output)]
            steps.append(Step(output, [source], command, depfile))
            objects.append(output)
        module = target / f"{op.name}{SUFFIX}"
        command = [*cxx, "-shared", "-o", str(module), *map(str, objects), *link, *own_libraries]
        steps.append(Step(module, objects, command, implicit=[library]))
    return steps


def link_libstdcxx() -> list[str]:
    """Links the libstdc++ that torch has loaded, where it has one.

    Some compilers link it statically by themselves. Of two copies in a process one writes no
    numbers to streams, and an exception that leaves a module may end the process.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(rf"/.*/{re.escape(LIBSTDCXX)}.*$", maps, re.MULTILINE)
    return ["-Wl,--no-as-needed", found[0]] if found else []


def links_libstdcxx(module: Path) -> bool:
    return LIBSTDCXX.encode() in module.read_bytes()  # among the names of what it needs
