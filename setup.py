"""Builds one extension module, torch_ops._ext.<op>, from each folder src/<op>/.

A folder is an op when it holds <op>.cpp, the file with the binding. Its module has all *.cpp in the
folder and below it but *_cpu.cpp, and, with CUDA, *_cuda.cpp. The kernels, *_cpu.cpp and *.cu, are
in the library that setup_c_library.py builds before, with which every module is linked. So adding
an op edits no list. The one module that is not an op, src/runtime/, with the state that ops share,
is built in the same way. Everything else (name, version, extras, tools) is in pyproject.toml.

Variables that are honoured:
  CUDA_HOME              the toolkit to build with; else nvcc on PATH, /usr/local/cuda, pip's nvcc
  TORCH_CUDA_ARCH_LIST   architectures, such as "8.0 9.0+PTX"; else those of the visible GPUs
  TORCH_OPS_CPU_ONLY=1   no CUDA kernels
  FORCE_CUDA=1           CUDA kernels or no build at all
  MAX_JOBS               compiler processes at once
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build frontend runs this file, and does not look beside it

import setup_c_library  # noqa: E402

PACKAGE = "torch_ops"
LICENSE = "BSD-3-Clause"
CONFIG_NAME = "build_config.json"

TESTED_TORCH = "2.11"
TESTED_MACHINE = "x86_64"
OLDEST_ARCH = (7, 5)  # below it nvcc 13 generates no code
NEWEST_ARCH = (12, 0)  # above it a GPU runs the PTX of this one
DEFAULT_ARCHS = "9.0+PTX"
DEFAULT_TOOLKIT = Path("/usr/local/cuda")
LIBSTDCXX = "libstdc++.so.6"
NVCC_PACKAGE = '"cuda-toolkit[nvcc,cccl,crt,nvvm]==13.0.2"'

# These neither compile nor need to know what to compile for, so they work without torch.
COMMANDS_WITHOUT_BUILD = {"sdist", "egg_info", "clean"}
WHEEL_COMMANDS = {"dist_info", "editable_wheel", "bdist_wheel"}


class Refusal(SystemExit):
    """Ends the build with one line that says what is wrong and what to do about it."""

    def __init__(self, line: str) -> None:
        super().__init__(f"{PACKAGE}: {line}")


@dataclass(frozen=True)
class Op:
    """A folder of src/ that becomes one extension module."""

    name: str
    cpp: list[str]
    cuda: list[str]  # sources for a build with CUDA alone
    kernels: list[str] = field(default_factory=list)  # sources that are in the library

    @property
    def has_cuda(self) -> bool:
        return bool(self.cuda) or any(name.endswith(".cu") for name in self.kernels)


@dataclass(frozen=True)
class Torch:
    """What the build needs to know of the torch that is installed."""

    version: str
    cuda: str | None
    hip: str | None = None

    @property
    def minor(self) -> str:
        return minor_version(self.version)


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

    def describe(self, ops: list[Op]) -> str:
        lines = [
            f"{PACKAGE} {self.version}, build configuration:",
            f"  python   {platform.python_version()} ({sys.executable})",
            f"  torch    {self.torch.version}, CUDA {self.torch.cuda or 'none'}",
            f"  kernels  {'CPU and CUDA' if self.nvcc else 'CPU only'}: {self.reason}",
        ]
        if self.nvcc:
            lines += [
                f"  nvcc     {self.nvcc.version} ({self.nvcc.home})",
                f"  archs    {self.archs}",
            ]
        jobs = os.environ.get("MAX_JOBS") or "as many as ninja likes (MAX_JOBS is not set)"
        if shutil.which("ninja") is None:
            jobs = "1, since there is no ninja (pip install ninja)"
        lines += [
            f"  jobs     {jobs}",
            f"  ops      {', '.join(op.name for op in ops) or 'none'}",
        ]
        return "\n".join(lines + [f"  warning: {line}" for line in self.warnings])

    def as_json(self, ops: list[Op]) -> str:
        content = {
            "version": self.version,
            "python": ".".join(platform.python_version_tuple()[:2]),
            "torch": self.torch.version,
            "torch_cuda": self.torch.cuda,
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


def find_ops(root: Path) -> list[Op]:
    """The ops in src/, sorted, with paths relative to root (setuptools wants them so)."""
    ops = []
    for folder in sorted((root / "src").iterdir()):
        if (folder / f"{folder.name}.cpp").is_file():
            in_library = setup_c_library.is_wanted(root)  # else the module has the kernels too
            cpp, cuda, kernels = [], [], []
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(root).as_posix()
                if in_library and (path.suffix == ".cu" or path.match("*_cpu.cpp")):
                    kernels.append(name)
                elif path.suffix == ".cu" or path.match("*_cuda.cpp"):
                    cuda.append(name)
                elif path.suffix == ".cpp":
                    cpp.append(name)
            ops.append(Op(folder.name, cpp, cuda, kernels))
    return ops


def find_headers(root: Path) -> list[str]:
    src = root / "src"
    return sorted(
        path.relative_to(root).as_posix()
        for pattern in ("**/*.h", "**/*.cuh")
        for path in src.glob(pattern)
    )


# ---- what the machine has


def minor_version(version: str) -> str:
    """Of 2.11.0+cu130: 2.11."""
    return ".".join(version.split("+")[0].split(".")[:2])


def is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() not in ("", "0", "false", "off", "no")


def refuse_platform(system: str, machine: str) -> list[str]:
    """Warnings about a platform that may work; refuses those that do not."""
    if system != "Linux":
        raise Refusal(f"builds on Linux only, not on {system}.")
    if machine != TESTED_MACHINE:
        return [f"tested on {TESTED_MACHINE} only, not on {machine}"]
    return []


def find_torch() -> Torch:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise Refusal(f"torch is installed but does not import ({error}).") from error
        raise Refusal(
            "found no torch to build against. Where torch is installed, tell pip to build against "
            "it: pip install --no-build-isolation . ; else install it first: pip install "
            f'"torch=={TESTED_TORCH}.*"'
        ) from error
    except (ImportError, OSError) as error:
        raise Refusal(f"torch is installed but does not import ({error}).") from error
    return Torch(str(torch.__version__), torch.version.cuda, torch.version.hip)


def check_setuptools() -> None:
    """Without this a setuptools that needs wheel (before 70.1) stops later, with a traceback."""
    if not any(map(importlib.util.find_spec, ("setuptools.command.bdist_wheel", "wheel"))):
        raise Refusal("this setuptools builds wheels only beside wheel: pip install wheel")


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


def nvidia_wheels(torch_cuda: str | None) -> list[Path]:
    """site-packages/nvidia/cu13, where torch's CUDA libraries and pip's nvcc are."""
    spec = importlib.util.find_spec("nvidia")
    if torch_cuda is None or spec is None:
        return []
    major = torch_cuda.split(".")[0]
    return [
        folder
        for parent in spec.submodule_search_locations or []
        if (folder := Path(parent) / f"cu{major}").is_dir()
    ]


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
            number = re.match(r"(\d+)\.(\d+)", arch)
            if number and (int(number[1]), int(number[2])) < OLDEST_ARCH:
                raise Refusal(
                    f"TORCH_CUDA_ARCH_LIST asks for {arch}; CUDA 13 compiles for 7.5 and newer."
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
            "no visible GPU has compute capability 7.5 or newer: name architectures in "
            "TORCH_CUDA_ARCH_LIST, or set TORCH_OPS_CPU_ONLY=1."
        )
    return " ".join(sorted(archs, key=lambda arch: [int(n) for n in re.findall(r"\d+", arch)]))


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
    warnings = refuse_platform(platform.system(), platform.machine())
    torch = find_torch()
    if torch.hip is not None:
        raise Refusal(f"torch {torch.version} is a ROCm build, which is not supported.")
    if torch.minor != TESTED_TORCH:
        warnings.append(f"tested with torch {TESTED_TORCH} only, not with {torch.version}")
    check_compiler(environ)
    if setup_c_library.is_wanted(ROOT) and not setup_c_library.has_cython():
        raise Refusal(setup_c_library.NEEDS_CYTHON)
    nvcc, reason = choose_nvcc(environ, torch, nvidia_wheels(torch.cuda), has_driver())
    archs = ""
    if nvcc is not None:
        named = environ.get("TORCH_CUDA_ARCH_LIST", "") not in ("", "native")
        archs = choose_archs(environ, [] if named else visible_gpus())
    return Configuration(read_version(ROOT), torch, nvcc, archs, reason, warnings)


# ---- building


def prepare_environment(environ: Any, configuration: Configuration) -> None:
    """What torch.utils.cpp_extension reads from the environment, partly when it is imported."""
    if configuration.nvcc is not None:
        environ["CUDA_HOME"] = str(configuration.nvcc.home)
        environ["TORCH_CUDA_ARCH_LIST"] = configuration.archs
    # pip puts ninja beside python, which is on PATH in an activated environment only.
    scripts = str(Path(sys.executable).parent)
    environ["PATH"] = os.pathsep.join([environ.get("PATH", os.defpath), scripts])
    # "No CUDA runtime is found" means no GPU, which a build does not need.
    logging.getLogger("torch.utils.cpp_extension").addFilter(
        lambda record: "No CUDA runtime" not in str(record.msg)
    )


def extra_includes(nvcc: Nvcc, wheels: list[Path]) -> list[str]:
    """Where cusparse.h and others are, which torch's headers include and a bare nvcc lacks.

    They come with torch's wheels; last on the path, so that the toolkit's own headers go before.
    """
    if (nvcc.home / "include" / "cusparse.h").is_file():
        return []
    return [str(wheel / "include") for wheel in wheels if wheel != nvcc.home]


def link_cudart(nvcc: Nvcc, wheels: list[Path], folder: Path) -> list[str]:
    """Folders to search for libcudart.so, made in folder where there is only libcudart.so.13."""
    libs = [root / lib for root in [nvcc.home, *wheels] for lib in ("lib64", "lib")]
    if any((lib / "libcudart.so").is_file() for lib in libs[:2]):
        return []
    for lib in libs:
        for library in sorted(lib.glob("libcudart.so.*")):
            folder.mkdir(parents=True, exist_ok=True)
            link = folder / "libcudart.so"
            link.unlink(missing_ok=True)
            link.symlink_to(library.resolve())
            return [str(folder)]
    return []


def link_libstdcxx() -> list[str]:
    """Links the libstdc++ that torch has loaded, where it has one.

    Some compilers link it statically by themselves. Of two copies in a process one writes no
    numbers to streams, and an exception that leaves a module may end the process.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(rf"/.*/{re.escape(LIBSTDCXX)}.*$", maps, re.MULTILINE)
    return ["-Wl,--no-as-needed", found[0]] if found else []


def check_libstdcxx(module: Path) -> None:
    if LIBSTDCXX.encode() not in module.read_bytes():  # among the names of what it needs
        raise Refusal(
            f"{module.name} does not need {LIBSTDCXX}, so the compiler has linked a copy of it, "
            "which breaks errors: see that CXX and LDFLAGS do not ask for a static libstdc++ or "
            "for libc++, or set CXX to another compiler."
        )


def make_extensions(configuration: Configuration, ops: list[Op]) -> list[Any]:
    from torch.utils.cpp_extension import CppExtension, CUDAExtension

    nvcc = configuration.nvcc
    # -g0: Python's own flags may hold -g, which makes debug information of all of torch's headers.
    # -fopenmp: at::parallel_for is a header, and serial without it.
    # -fno-trapping-math: nothing reads the flags of floating-point exceptions, and to keep them GCC
    # vectorises no loop that chooses between two results. Changes no result.
    cxx = ["-O3", "-g0", "-Wall", "-fvisibility=hidden", "-fopenmp", "-fno-trapping-math"]
    arguments: dict[str, Any] = {"extra_compile_args": {"cxx": cxx}, "define_macros": []}
    if nvcc is not None:
        arguments["extra_compile_args"]["nvcc"] = [
            "-O3",
            "-lineinfo",  # profilers and compute-sanitizer name lines; costs nothing at run time
            "-Xcompiler",
            "-Wall,-fvisibility=hidden",
        ]
        arguments["define_macros"] = [("TORCH_OPS_WITH_CUDA", None)]

    wheels = nvidia_wheels(configuration.torch.cuda)
    library_dirs = [] if nvcc is None else link_cudart(nvcc, wheels, ROOT / "build" / "cudart")
    headers = find_headers(ROOT)
    extensions = []
    for op in ops:
        make = CppExtension if nvcc is None else CUDAExtension
        extension = make(
            f"{PACKAGE}._ext.{op.name}",
            op.cpp + (op.cuda if nvcc is not None else []),
            # torch_headers: stands in for headers that torch includes and does not ship.
            include_dirs=[str(ROOT / "src"), str(ROOT / "src/common/torch/torch_headers")],
            library_dirs=library_dirs.copy(),
            extra_link_args=["-fopenmp", *link_libstdcxx()],
            depends=headers,  # for builds without ninja, which finds them by itself
            **{name: value.copy() for name, value in arguments.items()},
        )
        if nvcc is not None:
            extension.include_dirs += extra_includes(nvcc, wheels)
        extensions.append(extension)
    return extensions


def make_build_command(configuration: Configuration, ops: list[Op]) -> type:
    from torch.utils.cpp_extension import BuildExtension

    class BuildOps(BuildExtension):
        """torch's build command, which also writes build_config.json beside the modules."""

        user_options: ClassVar[Any] = [
            *BuildExtension.user_options,
            ("op=", None, "build this op's module alone"),
        ]

        def initialize_options(self) -> None:
            super().initialize_options()
            self.op: str | None = None

        def finalize_options(self) -> None:
            super().finalize_options()
            if self.op is not None:
                name = f"{PACKAGE}._ext.{self.op}"
                self.extensions = [each for each in self.extensions if each.name == name]
                if not self.extensions:
                    raise Refusal(f"there is no op {self.op} (src/{self.op}/{self.op}.cpp).")
            self.parallel = None  # the objects of a module are; modules would change build_temp

        def run(self) -> None:
            print(configuration.describe(ops), flush=True)
            suffix = sysconfig.get_config_var("EXT_SUFFIX")
            folder = self.config_path().parent
            built = ops
            if self.op is not None:  # beside what was built before
                built = [
                    op
                    for op in ops
                    if op.name == self.op or (folder / f"{op.name}{suffix}").is_file()
                ]
            if getattr(self, "editable_mode", False):
                # setuptools would compile in a folder that it deletes: from the start, each time.
                tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
                self.build_temp = str(ROOT / "build" / f"temp.{tag}")
            config = self.config_path()
            content = configuration.as_json(built)
            if not config.is_file() or config.read_text(encoding="utf-8") != content:
                # Without ninja nobody else sees that flags have changed.
                self.force = True
            # A build that breaks half way must not leave the old file beside new modules.
            config.unlink(missing_ok=True)
            if setup_c_library.is_wanted(ROOT):
                # While modules are built, base() is not that of a build in place.
                self.kernel_library = setup_c_library.library_path(ROOT, self.base())
                nvcc = configuration.nvcc
                setup_c_library.build(
                    ROOT,
                    self.base(),
                    Path(self.build_temp).resolve() / "c_api",
                    configuration.version,
                    nvcc and setup_c_library.Cuda(nvcc.home, nvcc.version, configuration.archs),
                    os.environ,
                    link_libstdcxx(),
                )
                check_libstdcxx(self.kernel_library)
            super().run()
            folder.mkdir(parents=True, exist_ok=True)
            for module in folder.glob(f"*{suffix}"):
                gone = module.name.removesuffix(suffix) not in {op.name for op in ops}
                if gone and self.op is None:
                    module.unlink()  # of an op that is gone; wheels take all that is here
            config.write_text(content, encoding="utf-8")

        def build_extension(self, extension: Any) -> None:
            # A folder for each op, so that each keeps its own build.ninja and ninja's log of it.
            if setup_c_library.is_wanted(ROOT):
                extension.extra_link_args += [
                    str(self.kernel_library),
                    f"-Wl,-rpath,$ORIGIN/../../{setup_c_library.PACKAGE}/lib",
                ]
            shared = self.build_temp
            self.build_temp = os.path.join(shared, extension.name.rpartition(".")[2])
            try:
                super().build_extension(extension)
            finally:
                self.build_temp = shared
            check_libstdcxx(Path(self.get_ext_fullpath(extension.name)))

        def base(self) -> Path:
            return ROOT if self.inplace else Path(self.build_lib).resolve()

        def config_path(self) -> Path:
            return self.base() / PACKAGE / "_ext" / CONFIG_NAME

        def get_outputs(self) -> list[str]:
            build_lib = Path(self.build_lib)
            built = [build_lib / PACKAGE / "_ext" / CONFIG_NAME]
            if setup_c_library.is_wanted(ROOT):
                built += setup_c_library.outputs(ROOT, build_lib)
            return [*super().get_outputs(), *map(str, built)]

    return BuildOps


def main() -> None:
    commands = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if not set(commands) - COMMANDS_WITHOUT_BUILD:
        setup(license=LICENSE)
        return
    if set(commands) & WHEEL_COMMANDS:
        check_setuptools()
    configuration = configure(os.environ)
    prepare_environment(os.environ, configuration)
    ops = find_ops(ROOT)
    setup(
        license=LICENSE,
        ext_modules=make_extensions(configuration, ops),
        cmdclass={"build_ext": make_build_command(configuration, ops)},
        # The modules are tied to the minor version of torch that they were compiled against.
        install_requires=[f"torch=={configuration.torch.minor}.*"],
    )


if __name__ == "__main__":
    main()
