"""What setup.py decides on which machine, and that what it builds installs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
import torch
from toy_project import ROOT, build, run, write_toy

import torch_ops


@pytest.fixture(scope="session")
def setup_py() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_ops_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_default_toolkit(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup_py, "DEFAULT_TOOLKIT", tmp_path / "not" / "there")


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_toolkit(root: Path, version: str = "13.0") -> Path:
    """A toolkit whose nvcc answers as the real one to --version and --dryrun."""
    write_script(
        root / "bin" / "nvcc",
        'case "$1" in\n'
        f'--version) echo "Cuda compilation tools, release {version}, V{version}.88" ;;\n'
        f'--dryrun) echo "#$ TOP={root}/bin/.." >&2 ;;\n'
        "*) exit 1 ;;\n"
        "esac",
    )
    return root


def refusal(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The text of a refusal: one line that names the project."""
    text = str(error.value)
    assert text.startswith("torch_ops: ")
    assert "\n" not in text
    return text


# ---- the platform, torch and compilers


@pytest.mark.parametrize("system", ["Windows", "Darwin"])
def test_other_systems_are_refused(setup_py: ModuleType, system: str) -> None:
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.refuse_platform(system, "x86_64")
    assert f"not on {system}" in refusal(error)


def test_other_processors_get_a_warning(setup_py: ModuleType) -> None:
    assert setup_py.refuse_platform("Linux", "x86_64") == []
    (warning,) = setup_py.refuse_platform("Linux", "aarch64")
    assert "not on aarch64" in warning


def test_rocm_is_refused(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = setup_py.Torch("2.11.0+rocm7.0", None, "7.0.51831")
    monkeypatch.setattr(setup_py, "find_torch", lambda: rocm)
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.configure({})
    assert "ROCm" in refusal(error)


def test_other_torch_gets_a_warning(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    other = setup_py.Torch("2.12.1+cpu", None)
    monkeypatch.setattr(setup_py, "find_torch", lambda: other)
    configuration = setup_py.configure({"PATH": os.environ["PATH"]})
    assert any("not with 2.12.1+cpu" in warning for warning in configuration.warnings)
    assert configuration.torch.minor == "2.12"


def test_compiler_is_missing(setup_py: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.check_compiler({"PATH": str(tmp_path)})
    assert "install g++" in refusal(error)
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.check_compiler({"PATH": os.environ["PATH"], "CXX": "no-such-compiler -m64"})
    assert "no-such-compiler" in refusal(error)


# ---- finding a CUDA toolkit


def test_cuda_home_goes_first(setup_py: ModuleType, tmp_path: Path) -> None:
    named, on_path = fake_toolkit(tmp_path / "named"), fake_toolkit(tmp_path / "on_path")
    environ = {"CUDA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert setup_py.find_cuda_home(environ, []) == named


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_cuda_home_without_nvcc_is_refused(setup_py: ModuleType, tmp_path: Path, name: str) -> None:
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.find_cuda_home({name: str(tmp_path)}, [])
    assert f"{name} is {tmp_path}" in refusal(error)


def test_nvcc_on_path_may_be_a_script(setup_py: ModuleType, tmp_path: Path) -> None:
    """Its folder is no toolkit then; nvcc itself says where the toolkit is."""
    toolkit = fake_toolkit(tmp_path / "toolkit")
    script = write_script(tmp_path / "local/bin/nvcc", f'exec {toolkit}/bin/nvcc "$@"')
    assert setup_py.find_cuda_home({"PATH": str(script.parent)}, []) == toolkit


def test_nvcc_on_path_may_be_a_link(setup_py: ModuleType, tmp_path: Path) -> None:
    toolkit = tmp_path / "toolkit"
    write_script(toolkit / "bin" / "nvcc", "exit 0")  # its dry run says nothing
    (tmp_path / "nvcc").symlink_to(toolkit / "bin" / "nvcc")
    assert setup_py.find_cuda_home({"PATH": str(tmp_path)}, []) == toolkit


def test_default_toolkit_then_wheels(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    default, wheel = tmp_path / "default", fake_toolkit(tmp_path / "nvidia" / "cu13")
    monkeypatch.setattr(setup_py, "DEFAULT_TOOLKIT", default)
    environ = {"PATH": str(tmp_path)}
    assert setup_py.find_cuda_home(environ, []) is None
    assert setup_py.find_cuda_home(environ, [wheel]) == wheel
    fake_toolkit(default)
    assert setup_py.find_cuda_home(environ, [wheel]) == default


def test_nvcc_that_is_none(setup_py: ModuleType, tmp_path: Path) -> None:
    write_script(tmp_path / "bin" / "nvcc", "echo hello")
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.read_nvcc(tmp_path)
    assert "names no release" in refusal(error)


# ---- CUDA or not


@pytest.mark.usefixtures("no_default_toolkit")
class TestChooseNvcc:
    """The whole table of what is set, installed and present."""

    @pytest.fixture
    def cuda_torch(self, setup_py: ModuleType) -> object:
        return setup_py.Torch("2.11.0+cu130", "13.0")

    @pytest.fixture
    def cpu_torch(self, setup_py: ModuleType) -> object:
        return setup_py.Torch("2.11.0+cpu", None)

    @pytest.mark.parametrize("driver", [False, True])
    def test_nvcc_and_cuda_torch(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object, driver: bool
    ) -> None:
        """With or without a GPU: images are built on machines that have none."""
        toolkit = fake_toolkit(tmp_path / "cuda", "13.1")
        environ = {"PATH": str(toolkit / "bin")}
        nvcc, _ = setup_py.choose_nvcc(environ, cuda_torch, [], driver)
        assert nvcc == setup_py.Nvcc(toolkit, "13.1")

    def test_no_nvcc_and_no_driver(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object
    ) -> None:
        nvcc, reason = setup_py.choose_nvcc({"PATH": str(tmp_path)}, cuda_torch, [], False)
        assert nvcc is None
        assert reason == "no nvcc and no GPU driver found"

    def test_no_nvcc_but_a_driver(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object
    ) -> None:
        with pytest.raises(setup_py.Refusal) as error:
            setup_py.choose_nvcc({"PATH": str(tmp_path)}, cuda_torch, [], True)
        text = refusal(error)
        assert "TORCH_OPS_CPU_ONLY=1" in text
        assert "install nvcc 13.0" in text

    def test_forced_without_nvcc(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object
    ) -> None:
        environ = {"PATH": str(tmp_path), "FORCE_CUDA": "1"}
        with pytest.raises(setup_py.Refusal) as error:
            setup_py.choose_nvcc(environ, cuda_torch, [], False)
        assert "FORCE_CUDA is set, but there is no nvcc" in refusal(error)

    def test_forced_without_cuda_torch(
        self, setup_py: ModuleType, tmp_path: Path, cpu_torch: object
    ) -> None:
        environ = {"CUDA_HOME": str(fake_toolkit(tmp_path)), "FORCE_CUDA": "1"}
        with pytest.raises(setup_py.Refusal) as error:
            setup_py.choose_nvcc(environ, cpu_torch, [], False)
        assert "a build without CUDA" in refusal(error)

    def test_forced_both_ways(self, setup_py: ModuleType, cuda_torch: object) -> None:
        environ = {"TORCH_OPS_CPU_ONLY": "1", "FORCE_CUDA": "1"}
        with pytest.raises(setup_py.Refusal) as error:
            setup_py.choose_nvcc(environ, cuda_torch, [], True)
        assert "unset one of them" in refusal(error)

    @pytest.mark.parametrize("driver", [False, True])
    def test_cpu_only(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object, driver: bool
    ) -> None:
        environ = {"CUDA_HOME": str(fake_toolkit(tmp_path)), "TORCH_OPS_CPU_ONLY": "1"}
        nvcc, reason = setup_py.choose_nvcc(environ, cuda_torch, [], driver)
        assert nvcc is None
        assert reason == "TORCH_OPS_CPU_ONLY is set"

    def test_zero_sets_nothing(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object
    ) -> None:
        environ = {
            "CUDA_HOME": str(fake_toolkit(tmp_path)),
            "TORCH_OPS_CPU_ONLY": "0",
            "FORCE_CUDA": "0",
        }
        nvcc, _ = setup_py.choose_nvcc(environ, cuda_torch, [], False)
        assert nvcc is not None

    def test_torch_without_cuda(
        self, setup_py: ModuleType, tmp_path: Path, cpu_torch: object
    ) -> None:
        environ = {"CUDA_HOME": str(fake_toolkit(tmp_path))}
        nvcc, reason = setup_py.choose_nvcc(environ, cpu_torch, [], True)
        assert nvcc is None
        assert "without CUDA" in reason

    @pytest.mark.parametrize("version", ["12.8", "14.0"])
    def test_another_major_version(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object, version: str
    ) -> None:
        environ = {"CUDA_HOME": str(fake_toolkit(tmp_path, version))}
        with pytest.raises(setup_py.Refusal) as error:
            setup_py.choose_nvcc(environ, cuda_torch, [], True)
        text = refusal(error)
        assert f"of CUDA {version}" in text
        assert "of CUDA 13.0" in text


@pytest.mark.parametrize(
    ("listed", "gpus", "archs"),
    [
        (None, [], "9.0+PTX"),
        ("", [], "9.0+PTX"),
        (None, [(9, 0)], "9.0"),
        (None, [(12, 0), (8, 0), (8, 6), (8, 0)], "8.0 8.6 12.0"),
        (None, [(7, 0), (8, 0)], "8.0"),  # CUDA 13 compiles nothing for the older one
        (None, [(12, 1)], "12.0+PTX"),
        ("8.0;9.0+PTX", [(7, 5)], "8.0 9.0+PTX"),
        ("7.5 12.0", [], "7.5 12.0"),
        ("Hopper", [], "Hopper"),
        ("native", [(9, 0)], "9.0"),
    ],
)
def test_archs(
    setup_py: ModuleType, listed: str | None, gpus: list[tuple[int, int]], archs: str
) -> None:
    environ = {} if listed is None else {"TORCH_CUDA_ARCH_LIST": listed}
    assert setup_py.choose_archs(environ, gpus) == archs


@pytest.mark.parametrize(("listed", "gpus"), [("7.0", []), ("9.0 6.1+PTX", []), ("", [(6, 1)])])
def test_old_archs_are_refused(
    setup_py: ModuleType, listed: str, gpus: list[tuple[int, int]]
) -> None:
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.choose_archs({"TORCH_CUDA_ARCH_LIST": listed}, gpus)
    assert "7.5" in refusal(error)


# ---- what the compiler and the linker need beside the toolkit


def test_missing_headers_come_from_torchs_wheels(setup_py: ModuleType, tmp_path: Path) -> None:
    nvcc, wheel = setup_py.Nvcc(tmp_path / "cuda", "13.0"), tmp_path / "cu13"
    assert setup_py.extra_includes(nvcc, [wheel]) == [str(wheel / "include")]
    # The compiler installed from a wheel lies among those headers already.
    assert setup_py.extra_includes(setup_py.Nvcc(wheel, "13.0"), [wheel]) == []
    (tmp_path / "cuda" / "include").mkdir(parents=True)
    (tmp_path / "cuda" / "include" / "cusparse.h").touch()
    assert setup_py.extra_includes(nvcc, [wheel]) == []


def test_libcudart_is_linked_where_only_a_wheel_has_it(
    setup_py: ModuleType, tmp_path: Path
) -> None:
    nvcc = setup_py.Nvcc(tmp_path / "cu13", "13.0")
    library = tmp_path / "cu13" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    library.write_text("the library")
    folder = tmp_path / "build"
    for _ in range(2):  # a second build finds the link there
        assert setup_py.link_cudart(nvcc, [nvcc.home], folder) == [str(folder)]
        assert (folder / "libcudart.so").read_text() == "the library"
    (library.parent / "libcudart.so").symlink_to(library)
    assert setup_py.link_cudart(nvcc, [nvcc.home], folder) == []


# ---- what is built


def test_every_folder_with_a_binding_is_an_op(setup_py: ModuleType, tmp_path: Path) -> None:
    for name in (
        *("common/checks.h", "common/launch.cuh", "common/helper.cpp"),
        *("b/b.cpp", "b/b_cuda.cu", "b/b_cpu.cpp", "b/b_kernels.cuh"),
        *("a/a.cpp", "half/half_cpu.cpp", "file.cpp"),
    ):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).touch()
    assert setup_py.find_ops(tmp_path) == [
        setup_py.Op("a", ["src/a/a.cpp"], []),
        setup_py.Op("b", ["src/b/b.cpp", "src/b/b_cpu.cpp"], ["src/b/b_cuda.cu"]),
    ]
    headers = ["src/b/b_kernels.cuh", "src/common/checks.h", "src/common/launch.cuh"]
    assert setup_py.find_headers(tmp_path) == headers


def test_this_build_holds_every_op(setup_py: ModuleType) -> None:
    config = json.loads((ROOT / "torch_ops" / "_ext" / "build_config.json").read_text())
    ops = setup_py.find_ops(ROOT)
    assert list(config["ops"]) == [op.name for op in ops]
    if config["cuda"]:
        assert config["ops"] == {op.name: {"cuda": bool(op.cu)} for op in ops}


def test_one_version(setup_py: ModuleType) -> None:
    assert setup_py.read_version(ROOT) == torch_ops.__version__


def test_build_requirements_do_not_name_torch() -> None:
    """With torch among them pip would fetch another one to build against."""
    text = (ROOT / "pyproject.toml").read_text()
    requires = re.search(r"^requires = \[(.*)\]$", text, re.MULTILINE)
    assert requires is not None
    assert "torch" not in requires[1]


# ---- building the toy


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "toy")


def built_config(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(
        (folder / "torch_ops" / "_ext" / "build_config.json").read_text()
    )
    return content


def test_build_prints_and_keeps_its_configuration(toy: Path) -> None:
    result = build(toy, TORCH_OPS_CPU_ONLY="1", MAX_JOBS="1")
    assert result.returncode == 0, result.stdout
    assert "kernels  CPU only: TORCH_OPS_CPU_ONLY is set" in result.stdout
    assert "jobs     1" in result.stdout
    config = built_config(toy)
    assert config["torch"] == torch.__version__
    assert config["torch_cuda"] == torch.version.cuda
    assert config["python"] == "{}.{}".format(*sys.version_info)
    assert config["cuda"] is False
    assert config["archs"] == []
    assert config["ops"] == {"toy": {"cuda": False}}


def test_build_again_compiles_what_changed(toy: Path) -> None:
    def compiled() -> list[str]:
        result = build(toy, TORCH_OPS_CPU_ONLY="1")
        assert result.returncode == 0, result.stdout
        return re.findall(r" -c (?:-c )?\S*/src/(\S+)", result.stdout)

    def answer() -> str:
        return run("-c", "import torch_ops; print(torch_ops.answer())", cwd=toy).stdout.strip()

    assert compiled() == ["toy/toy.cpp"]
    assert answer() == "42"
    assert compiled() == []
    (toy / "src/common/answer.h").write_text("#define ANSWER 43\n")
    assert compiled() == ["toy/toy.cpp"]
    assert answer() == "43"


def test_build_without_ninja(toy: Path, tmp_path: Path) -> None:
    """setuptools builds then; a header that changed and other flags still count."""
    hidden = tmp_path / "path"
    hidden.mkdir()
    # The compilers under the names that Python was built with, too: Debian's have a prefix.
    commands = [sysconfig.get_config_var(name) for name in ("CC", "CXX", "LDSHARED", "LDCXXSHARED")]
    compilers = {command.split()[0] for command in commands if command}
    for name in {"c++", "g++", "gcc", "cc", "as", "ld", "sh", "uname"} | compilers:
        if found := shutil.which(name):
            (hidden / name).symlink_to(found)
    (toy / "torch_ops" / "_ext" / "stale").touch()
    # setup.py would find the ninja that lies beside Python.
    text = (toy / "setup.py").read_text()
    line = "scripts = str(Path(sys.executable).parent)"
    assert line in text
    (toy / "setup.py").write_text(text.replace(line, f"scripts = {str(hidden)!r}"))

    for answer in (42, 43):
        (toy / "src/common/answer.h").write_text(f"#define ANSWER {answer}\n")
        result = build(toy, TORCH_OPS_CPU_ONLY="1", PATH=str(hidden))
        assert result.returncode == 0, result.stdout
        assert "could not find ninja" in result.stdout
        printed = run("-c", "import torch_ops; print(torch_ops.answer())", cwd=toy).stdout
        assert printed.strip() == str(answer)


def test_a_failed_build_leaves_nothing_that_imports(toy: Path) -> None:
    assert build(toy, TORCH_OPS_CPU_ONLY="1").returncode == 0
    (toy / "src/toy/toy.cpp").write_text("no C++")
    assert build(toy, TORCH_OPS_CPU_ONLY="1").returncode != 0
    result = run("-c", "import torch_ops", cwd=toy)
    assert "torch_ops.InstallationError" in result.stdout
    assert "its last build did not finish" in result.stdout


def test_an_op_that_is_gone_is_built_no_more(toy: Path) -> None:
    shutil.copytree(toy / "src" / "toy", toy / "src" / "other")
    text = (toy / "src/other/toy.cpp").read_text().replace("PyInit_toy", "PyInit_other")
    (toy / "src/other/other.cpp").write_text(text)
    (toy / "src/other/toy.cpp").unlink()
    assert build(toy, TORCH_OPS_CPU_ONLY="1").returncode == 0
    assert built_config(toy)["ops"] == {"other": {"cuda": False}, "toy": {"cuda": False}}
    shutil.rmtree(toy / "src" / "other")
    assert build(toy, TORCH_OPS_CPU_ONLY="1").returncode == 0
    assert built_config(toy)["ops"] == {"toy": {"cuda": False}}
    assert not list((toy / "torch_ops" / "_ext").glob("other*"))


def test_cuda_is_built_with_no_gpu_visible(toy: Path, setup_py: ModuleType) -> None:
    wheels = setup_py.nvidia_wheels(torch.version.cuda)
    if torch.version.cuda is None or setup_py.find_cuda_home(os.environ, wheels) is None:
        pytest.skip("needs nvcc and a CUDA build of torch")
    cuda_home = {name: os.environ[name] for name in ("CUDA_HOME",) if name in os.environ}
    result = build(toy, CUDA_VISIBLE_DEVICES="", **cuda_home)
    assert result.returncode == 0, result.stdout
    config = built_config(toy)
    assert config["cuda"] is True
    assert config["archs"] == ["9.0+PTX"]
    assert config["ops"] == {"toy": {"cuda": True}}
    result = run("-m", "torch_ops", cwd=toy, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stdout
    assert "CUDA kernels: toy" in result.stdout


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
    folder = toy if editable else tmp_path / "env"
    assert f"folder: {folder}" in result.stdout
    code = "from importlib.metadata import requires; print(requires('torch_ops')[0])"
    minor = ".".join(torch.__version__.split(".")[:2])
    assert run("-c", code, cwd=tmp_path, python=python).stdout.strip() == f"torch=={minor}.*"


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


def test_build_isolation_is_answered_in_one_line(toy: Path, tmp_path: Path) -> None:
    """Without --no-build-isolation pip builds in an environment of setuptools alone.

    Here that is made by hand, since pip would fetch setuptools, and asked what pip asks.
    """
    python = environment(tmp_path / "env", torch=False)
    hook = "prepare_metadata_for_build_wheel"
    code = f"from setuptools import build_meta; build_meta.{hook}('.')"
    result = run("-c", code, cwd=toy, python=python)
    assert result.returncode == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("torch_ops: ")]
    assert "pip install --no-build-isolation" in line
    assert "Traceback" not in result.stdout


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


# ---- the C library, in a toy


@pytest.fixture
def toy_with_library(toy: Path) -> Path:
    for name in ("common", "c_api", "gather", "scatter", "relu", "sigmoid"):
        for path in (ROOT / "src" / name).iterdir():
            # Of the ops' folders the kernels alone: with <op>.cpp there it would be an op.
            if path.is_file() and (name in ("common", "c_api") or path.suffix in (".h", ".cuh")):
                (toy / "src" / name).mkdir(exist_ok=True)
                shutil.copy(path, toy / "src" / name / path.name)
    for pattern in ("*.py*", "*.pxd", "py.typed", "include/*.h"):
        for path in (ROOT / "torch_ops_host").glob(pattern):
            target = toy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return toy


def test_the_c_library_installs(toy_with_library: Path, tmp_path: Path) -> None:
    """From a source archive, by a wheel, under both names; and it needs nothing that was left."""
    toy = toy_with_library
    result = run("setup.py", "-q", "sdist", cwd=toy)
    assert result.returncode == 0, result.stdout
    (archive,) = (toy / "dist").glob("torch_ops-*.tar.gz")
    target = tmp_path / "target"
    result = run(
        *("-m", "pip", "install", "-v", "--no-build-isolation", "--no-deps", "--no-index"),
        *("--target", target, archive),
        cwd=tmp_path,
        TORCH_OPS_CPU_ONLY="1",
        MAX_JOBS="2",
        CXXFLAGS="-O0",  # a third of the time
    )
    assert result.returncode == 0, result.stdout
    shutil.rmtree(toy)
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
"""
    result = run("-c", code, cwd=tmp_path, PYTHONPATH=str(target))
    assert result.stdout.split() == [str(package / "lib" / "libtorch_ops_c.so"), "[3]"]
    import_torch_ops = "import torch_ops.host as host; print(host.__name__)"
    (target / "torch_ops" / "host.py").write_text((ROOT / "torch_ops" / "host.py").read_text())
    result = run("-c", import_torch_ops, cwd=tmp_path, PYTHONPATH=str(target))
    assert result.stdout.strip() == "torch_ops_host", result.stdout


def test_the_c_library_is_built_again_where_it_changed(toy_with_library: Path) -> None:
    def compiled() -> list[str]:
        result = build(toy_with_library, TORCH_OPS_CPU_ONLY="1", MAX_JOBS="2", CXXFLAGS="-O0")
        assert result.returncode == 0, result.stdout
        return re.findall(r" -c \S*/src/(c_api/\S+)", result.stdout)

    assert len(compiled()) == len(list((ROOT / "src" / "c_api").glob("*.cpp")))
    assert compiled() == []
    with (toy_with_library / "src" / "c_api" / "hello.h").open("a") as header:
        header.write("// changed\n")
    assert compiled() == ["c_api/cpu_hello.cpp"]


def test_cython_is_missing(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup_py.setup_c_library, "has_cython", lambda: False)
    with pytest.raises(setup_py.Refusal) as error:
        setup_py.configure({"PATH": os.environ["PATH"]})
    assert "pip install cython" in refusal(error)
    monkeypatch.setattr(setup_py, "ROOT", tmp_path)  # a project without the library
    (tmp_path / "torch_ops").mkdir()
    shutil.copy(ROOT / "torch_ops" / "_version.py", tmp_path / "torch_ops")
    environ = {"PATH": os.environ["PATH"], "TORCH_OPS_CPU_ONLY": "1"}
    assert setup_py.configure(environ).nvcc is None


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
        for pattern in ("*.cpp", "*.cu", "*.cuh", "*.h", "*.hpp", "*.py", "*.pyx", "*.pxd")
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
    """As from a package index: pip builds a wheel of the sdist, for the CPU; it runs by itself."""
    (archive,) = sdist.glob("torch_ops-*.tar.gz")
    target = tmp_path / "target"
    result = run(
        *("-m", "pip", "install", "-v", "--no-build-isolation", "--no-deps", "--no-index"),
        *("--target", target, archive),
        cwd=tmp_path,
        TORCH_OPS_CPU_ONLY="1",
        MAX_JOBS="2",
    )
    assert result.returncode == 0, result.stdout
    result = run("-m", "torch_ops", cwd=tmp_path, PYTHONPATH=str(target))
    assert result.returncode == 0, result.stdout
    assert f"folder: {target}" in result.stdout
    assert "CUDA kernels: none" in result.stdout
    if torch.cuda.is_available():  # the one way to a tensor that this build has no kernels for
        for call in ("relu(x)", "sigmoid(x)", "gather(x, i)", "scatter_add(x, i, 2)"):
            code = "import torch, torch_ops as t; x = torch.ones(2, device='cuda'); i = x.int();"
            result = run("-c", f"{code} t.{call}", cwd=tmp_path, PYTHONPATH=str(target))
            assert "built without CUDA kernels" in result.stdout
            assert "pip install --no-build-isolation" in result.stdout
