"""Builds the kernel library, and the modules torch_ops._ext.<op> that bind it to torch.

setup_c_library.py makes the library, of all *_cpu.cpp and *.cu in src/;
torch_ops/_install/bindings.py the modules, one for each folder src/<op>/ that has <op>.cpp. So
adding an op edits no list. The one module that is not an op, src/torch_cuda/, with what only a
torch with CUDA has, is built likewise.
Everything else (name, version, extras, tools) is in pyproject.toml.

Variables that are honoured:
  CUDA_HOME, CUDA_PATH   the toolkit to build with; else nvcc on PATH, /usr/local/cuda, pip's nvcc
  TORCH_CUDA_ARCH_LIST   architectures, such as "8.0 9.0+PTX"; else those of the visible GPUs
  TORCH_OPS_CPU_ONLY=1   no CUDA kernels
  TORCH_OPS_MORE_TORCHES folders that hold other versions of torch, to make bindings for them too
  FORCE_CUDA=1           CUDA kernels or no build at all
  TORCH_OPS_LINEINFO=0   a library of half the size, whose lines profilers cannot name
  MAX_JOBS               compiler processes at once
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import runpy
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build frontend runs this file, and does not look beside it

import setup_c_library  # noqa: E402

supported = setup_c_library.load("supported")
bindings = setup_c_library.bindings
Op = bindings.Op
SUFFIX: str = bindings.SUFFIX

PACKAGE = "torch_ops"
LICENSE = "BSD-3-Clause"
CONFIG_NAME = "build_config.json"

TESTED_MACHINE = "x86_64"
DEFAULT_ARCHS = "9.0+PTX"
DEFAULT_TOOLKIT = Path("/usr/local/cuda")
NVCC_PACKAGE = '"cuda-toolkit[nvcc,cccl,crt,nvvm]==13.0.2"'

# These neither compile nor need to know what to compile for, so they work without torch.
COMMANDS_WITHOUT_BUILD = {"sdist", "egg_info", "clean"}
WHEEL_COMMANDS = {"dist_info", "editable_wheel", "bdist_wheel"}


def numbers(text: str) -> tuple[int, ...]:
    """Of an architecture or a version: (9, 0) of 9.0+PTX."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


OLDEST_ARCH = numbers(supported.ARCHS[0])  # below it nvcc generates no code
NEWEST_ARCH = numbers(supported.ARCHS[-1])  # above it a GPU runs the PTX of this one


class Refusal(SystemExit):
    """Ends the build with one line that says what is wrong and what to do about it."""

    def __init__(self, line: str) -> None:
        super().__init__(f"{PACKAGE}: {line}")


@dataclass(frozen=True)
class Torch:
    """What the build needs to know of the torch that is installed."""

    version: str
    cuda: str | None
    hip: str | None = None
    folder: Path = Path()  # with include/ and lib/

    @property
    def minor(self) -> str:
        return bindings.minor_version(self.version)


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler: the root of its toolkit and its version, such as "13.0"."""

    home: Path
    version: str


@dataclass(frozen=True)
class Configuration:
    """What is built and why; printed, and kept in build_config.json for the diagnosis."""

    version: str
    torch: Torch
    nvcc: Nvcc | None  # None: a build without CUDA kernels
    archs: str
    reason: str
    warnings: list[str]
    more_torches: Sequence[Torch] = ()

    @property
    def torches(self) -> list[Torch]:
        """All to make bindings for."""
        return [self.torch, *self.more_torches]

    def modules(self, torch: Torch) -> list[Op]:
        """Those that serve this torch."""
        with_cuda = self.nvcc is not None and torch.cuda is not None
        ops = bindings.find_ops(ROOT / "src")
        return [op for op in ops if with_cuda or op.name != bindings.CUDA_MODULE]

    def describe(self, ops: list[Op]) -> str:
        lines = [
            f"{PACKAGE} {self.version}, build configuration:",
            f"  python   {platform.python_version()} ({sys.executable})",
            *(f"  torch    {t.version}, CUDA {t.cuda or 'none'}" for t in self.torches),
            f"  kernels  {'CPU and CUDA' if self.nvcc else 'CPU only'}: {self.reason}",
        ]
        if self.nvcc:
            lines += [
                f"  nvcc     {self.nvcc.version} ({self.nvcc.home})",
                f"  archs    {self.archs}",
            ]
        jobs = str(bindings.count_jobs(os.environ))
        lines += [
            f"  jobs     {jobs}",
            f"  ops      {', '.join(op.name for op in ops) or 'none'}",
        ]
        return "\n".join(lines + [f"  warning: {line}" for line in self.warnings])

    def as_json(self, torch: Torch, ops: list[Op]) -> str:
        content = {
            "version": self.version,
            "python": bindings.python_version(),
            "torch": torch.version,
            "torch_cuda": torch.cuda,
            "cuda": self.nvcc is not None,
            "nvcc": self.nvcc.version if self.nvcc else None,
            "archs": self.archs.split() if self.nvcc else [],
            "reason": self.reason,
            "ops": {op.name: {"cuda": self.nvcc is not None and op.has_cuda} for op in ops},
        }
        return json.dumps(content, indent=2) + "\n"


# ---- what there is to build


def read_version(root: Path) -> str:
    text = (root / PACKAGE / "_version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise Refusal(f"no version in {PACKAGE}/_version.py")
    return match[1]


# ---- what the machine has


def is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() not in ("", "0", "false", "off", "no")


def refuse_platform(system: str, machine: str, python: str) -> list[str]:
    """Warnings about a platform that may work; refuses those that do not."""
    if system != "Linux":
        raise Refusal(f"builds on Linux only, not on {system}.")
    if numbers(python) < numbers(supported.OLDEST_PYTHON):
        raise Refusal(f"needs Python {supported.OLDEST_PYTHON} or newer, not {python}.")
    warnings = []
    if machine != TESTED_MACHINE:
        warnings.append(f"tested on {TESTED_MACHINE} only, not on {machine}")
    if python.endswith("t"):
        warnings.append(f"Python {python} has no GIL, and turns it on for these modules")
    elif python not in supported.PYTHON:
        tested = ", ".join(supported.PYTHON)
        warnings.append(f"tested with Python {tested} only, not with {python}")
    return warnings


def see_environment() -> None:
    """Lets this process see what is installed beside its Python, after what it sees already.

    pip builds in an environment that hides that, torch too, but runs the Python of the environment
    that it installs into. Other tools run another Python, and for those this changes nothing.
    """
    folders = site.getsitepackages()
    if sys.prefix == sys.base_prefix:  # a virtual environment does not have the user's packages
        folders.append(site.getusersitepackages())
    sys.path += [folder for folder in folders if folder not in sys.path]


def find_torch() -> Torch:
    if importlib.util.find_spec("torch") is None:
        see_environment()
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise Refusal(f"torch is installed but does not import ({error}).") from error
        raise Refusal(
            "found no torch to build against. Install it first: pip install "
            f'"torch>={supported.OLDEST_TORCH}" ; where it is installed, let the build see it: pip '
            "install --no-build-isolation (also of uv; then Cython is to be installed too)."
        ) from error
    except (ImportError, OSError) as error:
        raise Refusal(f"torch is installed but does not import ({error}).") from error
    folder = Path(torch.__file__).parent
    return Torch(str(torch.__version__), torch.version.cuda, torch.version.hip, folder)


def read_torch(parent: Path) -> Torch:
    """Of a torch in this folder, which need not be one that this Python can import."""
    file = parent / "torch" / "version.py"
    if not file.is_file():
        raise Refusal(f"TORCH_OPS_MORE_TORCHES names {parent}, which holds no torch/version.py.")
    facts = runpy.run_path(str(file))
    version, cuda, hip = (facts.get(name) for name in ("__version__", "cuda", "hip"))
    return Torch(str(version), cuda, hip, file.parent)


def check_setuptools() -> None:
    """Without this a setuptools that needs wheel (before 70.1) stops later, with a traceback."""
    if not any(map(importlib.util.find_spec, ("setuptools.command.bdist_wheel", "wheel"))):
        raise Refusal("this setuptools builds wheels only if wheel is installed: pip install wheel")


def check_compiler(environ: Mapping[str, str]) -> None:
    """Both are often missing where Python itself was installed as a package."""
    compiler = environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler, path=environ.get("PATH")) is None:
        raise Refusal(f"found no C++ compiler ({compiler}): install g++, or set CXX.")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise Refusal(f"Python's headers are missing ({header}): install python3-dev.")


def find_cuda_home(environ: Mapping[str, str], wheel_roots: list[Path]) -> Path | None:
    """The root of the first CUDA toolkit that has an nvcc."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := environ.get(name):
            if not (Path(home) / "bin" / "nvcc").is_file():
                raise Refusal(
                    f"{name} is {home}, which holds no bin/nvcc: point it at a CUDA toolkit, "
                    "unset it, or set TORCH_OPS_CPU_ONLY=1."
                )
            return Path(home)
    if on_path := shutil.which("nvcc", path=environ.get("PATH")):
        return toolkit_of(Path(on_path))
    for root in [DEFAULT_TOOLKIT, *wheel_roots]:
        if (root / "bin" / "nvcc").is_file():
            return root
    return None


def toolkit_of(nvcc: Path) -> Path:
    """The root of an nvcc's toolkit.

    nvcc on PATH may be a script that calls another nvcc, and then the folder above it is no
    toolkit; nvcc itself knows: its dry run prints TOP=<root> (and needs no file to exist).
    """
    dry_run = subprocess.run(
        [nvcc, "--dryrun", "none.cu"], capture_output=True, text=True, check=False
    )
    top = re.search(r"^#\$ TOP=(.+)$", dry_run.stderr + dry_run.stdout, re.MULTILINE)
    return (Path(top[1].strip()) if top else nvcc.resolve().parent / "..").resolve()


def read_nvcc(home: Path) -> Nvcc:
    nvcc = home / "bin" / "nvcc"
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release (\d+\.\d+)", output.stdout)
    if release is None:
        raise Refusal(f"{nvcc} --version names no release: is it a CUDA compiler?")
    return Nvcc(home, release[1])


def has_driver() -> bool:
    """A GPU driver is loaded: whoever builds here most likely wants CUDA kernels."""
    traces = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")
    return any(Path(path).exists() for path in traces)


def visible_gpus() -> list[tuple[int, int]]:
    import torch

    return [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]


# ---- what to build


def choose_archs(environ: Mapping[str, str], gpus: list[tuple[int, int]]) -> str:
    """TORCH_CUDA_ARCH_LIST, spelt with spaces; its default is what the visible GPUs need."""
    listed = environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    if listed and listed != ["native"]:
        for arch in listed:
            if () < numbers(arch) < OLDEST_ARCH:
                raise Refusal(
                    f"TORCH_CUDA_ARCH_LIST asks for {arch}; CUDA {supported.CUDA_MAJOR} compiles "
                    f"for {supported.ARCHS[0]} and newer."
                )
        return " ".join(listed)
    if not gpus:
        return DEFAULT_ARCHS
    archs = {
        "{}.{}".format(*gpu) if gpu <= NEWEST_ARCH else "{}.{}+PTX".format(*NEWEST_ARCH)
        for gpu in gpus
        if gpu >= OLDEST_ARCH
    }
    if not archs:
        raise Refusal(
            f"no visible GPU has compute capability {supported.ARCHS[0]} or newer: name "
            "architectures in TORCH_CUDA_ARCH_LIST, or set TORCH_OPS_CPU_ONLY=1."
        )
    return " ".join(sorted(archs, key=numbers))


def choose_nvcc(
    environ: Mapping[str, str], torch: Torch, wheels: list[Path], driver: bool
) -> tuple[Nvcc | None, str]:
    """The compiler to build CUDA kernels with, or None, and the reason of the choice.

    Asks for a compiler and a CUDA build of torch, never whether a GPU answers: images are built
    on machines without one.
    """
    forced = is_set(environ, "FORCE_CUDA")
    if is_set(environ, "TORCH_OPS_CPU_ONLY"):
        if forced:
            raise Refusal("FORCE_CUDA and TORCH_OPS_CPU_ONLY are both set: unset one of them.")
        return None, "TORCH_OPS_CPU_ONLY is set"
    if torch.cuda is None:
        if forced:
            raise Refusal(f"FORCE_CUDA is set, but torch {torch.version} is a build without CUDA.")
        return None, f"torch {torch.version} is a build without CUDA"

    home = find_cuda_home(environ, wheels)
    if home is None:
        install = f"install nvcc {torch.cuda} (pip install {NVCC_PACKAGE}, or set CUDA_HOME)"
        if forced:
            raise Refusal(f"FORCE_CUDA is set, but there is no nvcc: {install}.")
        if driver:
            raise Refusal(
                "this machine has a GPU driver but no nvcc, so no CUDA kernels can be built: "
                f"{install}, or set TORCH_OPS_CPU_ONLY=1 to do without them."
            )
        return None, "no nvcc and no GPU driver found"

    nvcc = read_nvcc(home)
    if nvcc.version.split(".")[0] != torch.cuda.split(".")[0]:
        raise Refusal(
            f"nvcc in {home} is of CUDA {nvcc.version}, torch {torch.version} of CUDA {torch.cuda}:"
            " point CUDA_HOME at a toolkit with torch's major version, or set TORCH_OPS_CPU_ONLY=1."
        )
    return nvcc, "FORCE_CUDA is set" if forced else "nvcc and a CUDA build of torch found"


def configure(environ: Mapping[str, str]) -> Configuration:
    """Looks at the machine and decides."""
    warnings = refuse_platform(platform.system(), platform.machine(), bindings.python_version())
    torch = find_torch()
    if torch.hip is not None:
        raise Refusal(f"torch {torch.version} is a ROCm build, which is not supported.")
    if bindings.parse(torch.version) < bindings.parse(supported.OLDEST_TORCH):
        raise Refusal(f"needs torch {supported.OLDEST_TORCH} or newer, not {torch.version}.")
    if torch.minor not in supported.TORCH:
        tested = ", ".join(supported.TORCH)
        warnings.append(f"tested with torch {tested} only, not with {torch.version}")
    check_compiler(environ)
    if not setup_c_library.has_cython():
        raise Refusal(setup_c_library.NEEDS_CYTHON)
    nvcc, reason = choose_nvcc(environ, torch, bindings.nvidia_wheels(torch.cuda), has_driver())
    archs = ""
    if nvcc is not None:
        if nvcc.version.split(".")[0] != supported.CUDA_MAJOR:
            warnings.append(f"tested with CUDA {supported.CUDA_MAJOR} only, not {nvcc.version}")
        named = environ.get("TORCH_CUDA_ARCH_LIST", "") not in ("", "native")
        archs = choose_archs(environ, [] if named else visible_gpus())
    named = environ.get("TORCH_OPS_MORE_TORCHES", "").split(os.pathsep)
    more = [read_torch(Path(folder)) for folder in named if folder]
    return Configuration(read_version(ROOT), torch, nvcc, archs, reason, warnings, more)


# ---- building


def cuda_includes(nvcc: Nvcc, wheels: list[Path]) -> list[Path]:
    """Where CUDA's headers are: the toolkit's, then those that it may lack, of torch's wheels."""
    homes = [nvcc.home, *(wheel for wheel in wheels if wheel != nvcc.home)]
    return [home / "include" for home in homes]


def check_libstdcxx(module: Path) -> None:
    if not bindings.links_libstdcxx(module):
        raise Refusal(
            f"{module.name} does not need {bindings.LIBSTDCXX}, so the compiler has linked a copy "
            "of it, which breaks errors: see that CXX and LDFLAGS do not ask for a static "
            "libstdc++ or for libc++, or set CXX to another compiler."
        )


def build(configuration: Configuration, base: Path, temp: Path, op: str | None) -> None:
    """Makes the kernel library and the modules, all or those of one op, below base."""
    nvcc, environ = configuration.nvcc, dict(os.environ)
    # pip puts ninja beside python, which is on PATH in an activated environment only.
    scripts = str(Path(sys.executable).parent)
    environ["PATH"] = os.pathsep.join([environ.get("PATH", os.defpath), scripts])
    cuda = nvcc and setup_c_library.Cuda(nvcc.home, nvcc.version, configuration.archs)
    libstdcxx = bindings.link_libstdcxx()
    steps = setup_c_library.library_steps(
        ROOT, base, temp, configuration.version, cuda, environ, libstdcxx
    )
    steps += setup_c_library.module_steps(ROOT, base, temp, environ)
    library = setup_c_library.library_path(ROOT, base)
    headers = nvcc and cuda_includes(nvcc, bindings.nvidia_wheels(configuration.torch.cuda))
    made = [library]
    for torch in configuration.torches:
        folder = module_folder(base, torch)
        ops = [each for each in configuration.modules(torch) if op in (None, each.name)]
        steps += bindings.binding_steps(
            ROOT / "src",
            ops,
            folder,
            temp / folder.name,
            bindings.Torch(torch.version, torch.folder, headers),
            library,
            nvcc is not None,
            f"$ORIGIN/../../../{setup_c_library.PACKAGE}/lib",
            environ,
        )
        made += [folder / f"{each.name}{SUFFIX}" for each in ops]
    temp.mkdir(parents=True, exist_ok=True)
    try:
        bindings.run_steps(steps, temp, environ)
    except subprocess.CalledProcessError as error:
        raise Refusal("the build failed: the first error above says why.") from error
    for path in made:
        check_libstdcxx(path)
    setup_c_library.finish(ROOT, base, configuration.version)


def module_folder(base: Path, torch: Torch) -> Path:
    """Of the modules for this torch, which may be beside those for others."""
    return base / PACKAGE / "_ext" / bindings.folder_name(torch.version)


def make_build_command(configuration: Configuration) -> type:
    class BuildOps(build_ext):
        """Makes all modules at once, the library, and a build_config.json for each torch."""

        user_options: ClassVar = [*build_ext.user_options, ("op=", None, "build this op's alone")]

        def initialize_options(self) -> None:
            super().initialize_options()
            self.op: str | None = None

        def run(self) -> None:
            ops = configuration.modules(configuration.torch)
            print(configuration.describe(ops), flush=True)
            if getattr(self, "editable_mode", False):
                # setuptools would compile in a folder that it deletes: from the start, each time.
                tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
                self.build_temp = str(ROOT / "build" / f"temp.{tag}")
            if self.op is not None and self.op not in {op.name for op in ops}:
                raise Refusal(f"there is no op {self.op} (src/{self.op}/{self.op}.cpp).")
            folders = {torch: module_folder(self.base(), torch) for torch in configuration.torches}
            for folder in folders.values():
                folder.mkdir(parents=True, exist_ok=True)
                # A build that breaks half way must not leave the old file beside new modules.
                (folder / CONFIG_NAME).unlink(missing_ok=True)
            build(configuration, self.base(), Path(self.build_temp).resolve(), self.op)
            for torch, folder in folders.items():
                self.finish(torch, folder)
            if not self.inplace:
                for path, copy in self.sources().items():
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)

        def finish(self, torch: Torch, folder: Path) -> None:
            ops = configuration.modules(torch)
            for module in folder.glob(f"*{SUFFIX}"):
                gone = module.name.removesuffix(SUFFIX) not in {op.name for op in ops}
                if gone and self.op is None:
                    module.unlink()  # of an op that is gone; wheels take all that is here
            # Of one op, beside those that were built before.
            there = [op for op in ops if (folder / f"{op.name}{SUFFIX}").is_file()]
            text = configuration.as_json(torch, there)
            (folder / CONFIG_NAME).write_text(text, encoding="utf-8")

        def sources(self) -> dict[Path, Path]:
            """What `python -m torch_ops build` compiles, and where it finds that in a wheel."""
            src, copies = ROOT / "src", Path(self.build_lib) / PACKAGE / "_src"
            found = [path for op in bindings.find_ops(src) for path in op.sources]
            found += [*src.rglob("*.h"), *src.rglob("*.hpp")]
            return {path: copies / path.relative_to(src) for path in found}

        def base(self) -> Path:
            return ROOT if self.inplace else Path(self.build_lib).resolve()

        def get_outputs(self) -> list[str]:
            built = [*self.sources().values()]
            for torch in configuration.torches:
                folder = module_folder(Path(self.build_lib), torch)
                modules = (f"{op.name}{SUFFIX}" for op in configuration.modules(torch))
                built += [folder / CONFIG_NAME, *(folder / module for module in modules)]
            return [*map(str, built + setup_c_library.outputs(ROOT, Path(self.build_lib)))]

    return BuildOps


def main() -> None:
    commands = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if not set(commands) - COMMANDS_WITHOUT_BUILD:
        setup(license=LICENSE)
        return
    if set(commands) & WHEEL_COMMANDS:
        check_setuptools()
    configuration = configure(os.environ)
    setup(
        license=LICENSE,
        # Named so that wheels are of this platform and this Python; the command makes them.
        ext_modules=[
            Extension(f"{PACKAGE}._ext.{op.name}", [])
            for op in configuration.modules(configuration.torch)
        ],
        cmdclass={"build_ext": make_build_command(configuration)},
        # For a torch that there are no bindings for, `python -m torch_ops build` makes them.
        install_requires=[f"torch>={supported.OLDEST_TORCH}"],
    )


if __name__ == "__main__":
    main()
