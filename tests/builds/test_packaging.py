"""Source archives and what pip installs: of a toy project, and of torch_ops itself."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from programs import ROOT, run
from toy_project import build, write_toy

from torch_ops._install import supported


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "toy")


def environment(folder: Path, torch: bool) -> Path:
    """A virtual environment with what is installed in this one, or setuptools alone; no network."""
    run("-m", "venv", "--without-pip", folder, cwd=ROOT)
    site = next(folder.glob("lib/python*/site-packages"))
    installed = [Path(path) for path in sys.path if path.endswith("-packages")]
    if torch:
        (site / "borrowed.pth").write_text("\n".join(map(str, installed)) + "\n")
    else:
        for parent in reversed(installed):  # where two have a package, the first is to win
            for pattern in ("setuptools*", "_distutils_hack", "pkg_resources", "wheel*"):
                for path in parent.glob(pattern):
                    (site / path.name).unlink(missing_ok=True)
                    (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True])
def test_pip_installs(toy: Path, tmp_path: Path, editable: bool) -> None:
    """With and without -e, into a fresh environment that borrows torch from this one."""
    python = environment(tmp_path / "env", torch=True)
    result = run(
        *("-m", "pip", "install", "-v", "--no-build-isolation", "--no-deps", "--no-index"),
        *("-e", toy) if editable else (toy,),
        cwd=tmp_path,
        python=python,
        TORCH_OPS_CPU_ONLY="1",
    )
    assert result.returncode == 0, result.stdout
    if not editable:
        shutil.rmtree(toy)  # what is installed must not need it
    result = run("-m", "torch_ops", cwd=tmp_path, python=python)
    assert result.returncode == 0, result.stdout
    # After an upgrade of torch, from sources that were installed too.
    (site,) = (toy if editable else tmp_path / "env").rglob("_ext/torch*")
    site.rename(site.parent / "torch2.1234")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    again = run("-m", "torch_ops", "build", cwd=tmp_path, python=python, **cache)
    assert again.returncode == 0, again.stdout
    again = run("-m", "torch_ops", cwd=tmp_path, python=python, **cache)
    assert again.returncode == 0, again.stdout
    folder = toy if editable else tmp_path / "env"
    assert f"folder: {folder}" in result.stdout
    code = "from importlib.metadata import requires; print(requires('torch_ops')[0])"
    needs = run("-c", code, cwd=tmp_path, python=python).stdout.strip()
    assert needs == f"torch>={supported.OLDEST_TORCH}"


HOOK = """
from setuptools import build_meta
print(build_meta.prepare_metadata_for_build_wheel("."))
"""


@pytest.mark.parametrize("has_torch", [False, True])
def test_build_isolation(toy: Path, tmp_path: Path, has_torch: bool) -> None:
    """pip hides what is installed from a build, and adds setuptools and Cython; so does this.

    pip itself would fetch those two. The build finds torch nevertheless, or says in one line that
    there is none.
    """
    python = environment(tmp_path / "env", torch=False)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    added = tmp_path / "added"
    site.rename(added)
    (added / "sitecustomize.py").write_text(
        "import sys, sysconfig\n"
        "hidden = [sysconfig.get_path(name) for name in ('purelib', 'platlib')]\n"
        "sys.path[:] = [path for path in sys.path if path not in hidden]\n"
    )
    site.mkdir()
    for parent in [path for path in sys.path if has_torch and path.endswith("-packages")]:
        for path in Path(parent).iterdir():
            if path.suffix != ".pth" and not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    for path in site.glob("[Cc]ython*"):
        path.rename(added / path.name)
    hidden = run("-c", "import torch", cwd=tmp_path, python=python, PYTHONPATH=str(added))
    assert "No module named 'torch'" in hidden.stdout
    variables = {"PYTHONPATH": str(added), "TORCH_OPS_CPU_ONLY": "1"}
    result = run("-c", HOOK, cwd=toy, python=python, **variables)
    assert "Traceback" not in result.stdout
    if has_torch:
        assert result.returncode == 0, result.stdout
        (metadata,) = toy.glob("torch_ops-*.dist-info/METADATA")
        assert f"Requires-Dist: torch>={supported.OLDEST_TORCH}" in metadata.read_text()
    else:
        assert result.returncode == 1
        (line,) = [line for line in result.stdout.splitlines() if line.startswith("torch_ops: ")]
        assert 'pip install "torch>=2.11"' in line
        assert "pip install --no-build-isolation" in line


def test_sdist_needs_no_torch_and_holds_every_source(toy: Path, tmp_path: Path) -> None:
    assert build(toy, TORCH_OPS_CPU_ONLY="1").returncode == 0  # leaves what must stay out
    python = environment(tmp_path / "env", torch=False)
    result = run("setup.py", "-q", "sdist", cwd=toy, python=python)
    assert result.returncode == 0, result.stdout
    names = sdist_names(toy / "dist")
    for path in (path for path in (toy / "src").rglob("*") if path.is_file()):
        assert path.relative_to(toy).as_posix() in names
    assert {"setup.py", "pyproject.toml", "LICENSE", "torch_ops/py.typed"} <= names
    assert not [name for name in names if name.endswith((".so", ".o", "build_config.json"))]


def sdist_names(dist: Path) -> set[str]:
    (path,) = dist.glob("torch_ops-*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


# ---- building torch_ops itself


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this checkout, made in a copy, so that nothing is left in it."""
    folder = tmp_path_factory.mktemp("sdist") / "torch_ops"
    keep_out = shutil.ignore_patterns(
        ".git", ".venv", ".whl", "build", "dist", "*.egg-info", ".*_cache"
    )
    shutil.copytree(ROOT, folder, ignore=keep_out)
    result = run("setup.py", "-q", "sdist", cwd=folder)
    assert result.returncode == 0, result.stdout
    return folder / "dist"


def test_sdist_of_this_checkout(sdist: Path) -> None:
    names = sdist_names(sdist)
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "torch_ops", "torch_ops_host")
        for pattern in ("*.cpp", "*.cu", "*.cuh", "*.h", "*.hpp", "*.py", "*.pyx", "*.px[di]")
        for path in (ROOT / folder).rglob(pattern)
    }
    sources = {name for name in sources if not name.startswith("torch_ops_host/include/torch_ops/")}
    assert sources <= names, sources - names
    assert "torch_ops_host/include/torch_ops.h" in names
    assert not [name for name in names if name.startswith(("torch_ops_host/lib/", "build/"))]
    assert not [name for name in names if name.endswith((".so", ".o", "build_config.json"))]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_build_from_sdist(sdist: Path, tmp_path: Path) -> None:
    """As from a package index: pip builds a wheel of the sdist, for the CPU; it runs by itself.

    So does the C library in it, with all that other programs need to be built with it. Without
    optimizations, which take most of the time and change nothing that is looked at here.
    """
    (archive,) = sdist.glob("torch_ops-*.tar.gz")
    target = tmp_path / "target"
    result = run(
        *("-m", "pip", "install", "-v", "--no-build-isolation", "--no-deps", "--no-index"),
        *("--target", target, archive),
        cwd=tmp_path,
        TORCH_OPS_CPU_ONLY="1",
        MAX_JOBS="2",
        CXXFLAGS="-O0",
    )
    assert result.returncode == 0, result.stdout
    result = run("-m", "torch_ops", cwd=tmp_path, PYTHONPATH=str(target))
    assert result.returncode == 0, result.stdout
    assert f"folder: {target}" in result.stdout
    assert "CUDA kernels: none" in result.stdout
    package = target / "torch_ops_host"
    for name in (
        *("lib/libtorch_ops_c.so", "lib/libtorch_ops_c.so.1", "lib/pkgconfig/torch_ops_c.pc"),
        *("lib/cmake/torch_ops_c/torch_ops_c-config.cmake", "include/torch_ops.h"),
        *("include/torch_ops/timing.h", "capi.pxd", "_host.pyi", "py.typed"),
    ):
        assert (package / name).is_file(), name
    code = """
import sys, numpy, torch_ops_host as host
assert 'torch' not in sys.modules
assert host.build_config()["cuda"] == "none"
print(host.library_path(), host.gather(numpy.arange(5), [3]).tolist())
import torch_ops.host
assert torch_ops.host is host
"""
    result = run("-c", code, cwd=tmp_path, PYTHONPATH=str(target))
    assert result.stdout.split() == [str(package / "lib" / "libtorch_ops_c.so.1"), "[3]"]
    if torch.cuda.is_available():  # the one way to a tensor that this build has no kernels for
        for call in ("relu(x)", "sigmoid(x)", "gather(x, i)", "scatter_add(x, i, 2)"):
            code = "import torch, torch_ops as t; x = torch.ones(2, device='cuda'); i = x.int();"
            result = run("-c", f"{code} t.{call}", cwd=tmp_path, PYTHONPATH=str(target))
            assert "built without CUDA kernels" in result.stdout
            assert "pip install --no-build-isolation" in result.stdout
