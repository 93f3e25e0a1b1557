"""What setup.py decides on which machine: whether it builds, for which GPUs, and what."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from programs import ROOT, load_setup_py
from toy_project import bindings

import torch_ops


@pytest.fixture(scope="session")
def setup_py() -> ModuleType:
    return load_setup_py()


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


@contextmanager
def refused(*texts: str) -> Iterator[None]:
    """Checks the text of a refusal: one line that names the project, and has these parts."""
    with pytest.raises(SystemExit, match=r"\Atorch_ops: .*\Z") as error:
        yield
    for text in texts:
        assert text in str(error.value)


# ---- the platform, torch and compilers


@pytest.mark.parametrize("system", ["Windows", "Darwin"])
def test_other_systems_are_refused(setup_py: ModuleType, system: str) -> None:
    with refused(f"not on {system}"):
        setup_py.refuse_platform(system, "x86_64", "3.12")


@pytest.mark.parametrize(
    ("machine", "python", "warning"),
    [
        ("x86_64", "3.11", None),
        ("aarch64", "3.12", "not on aarch64"),
        ("x86_64", "3.99", "not with 3.99"),
        ("x86_64", "3.14t", "Python 3.14t has no GIL, and turns it on"),
    ],
)
def test_what_may_work_gets_a_warning(
    setup_py: ModuleType, machine: str, python: str, warning: str | None
) -> None:
    warnings = setup_py.refuse_platform("Linux", machine, python)
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


def test_old_python_is_refused(setup_py: ModuleType) -> None:
    with refused("needs Python 3.11 or newer, not 3.10"):
        setup_py.refuse_platform("Linux", "x86_64", "3.10")


def test_rocm_is_refused(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = setup_py.Torch("2.11.0+rocm7.0", None, "7.0.51831")
    monkeypatch.setattr(setup_py, "find_torch", lambda: rocm)
    with refused("ROCm"):
        setup_py.configure({})


def test_other_torch_gets_a_warning(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    other = setup_py.Torch("2.99.1+cpu", None)
    monkeypatch.setattr(setup_py, "find_torch", lambda: other)
    configuration = setup_py.configure({"PATH": os.environ["PATH"]})
    assert any("not with 2.99.1+cpu" in warning for warning in configuration.warnings)
    assert configuration.torch.minor == "2.99"


def test_old_torch_is_refused(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_py, "find_torch", lambda: setup_py.Torch("2.10.0+cpu", None))
    with refused("needs torch 2.11 or newer, not 2.10.0+cpu"):
        setup_py.configure({"PATH": os.environ["PATH"]})


def test_another_cuda_gets_a_warning(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = setup_py.Torch("2.11.0+cu128", "12.8")
    monkeypatch.setattr(setup_py, "find_torch", lambda: other)
    toolkit = fake_toolkit(tmp_path / "cuda", "12.8")
    environ = {"PATH": os.environ["PATH"], "CUDA_HOME": str(toolkit)}
    (warning,) = setup_py.configure(environ).warnings
    assert warning == "tested with CUDA 13 only, not 12.8"


def test_compiler_is_missing(setup_py: ModuleType, tmp_path: Path) -> None:
    with refused("install g++"):
        setup_py.check_compiler({"PATH": str(tmp_path)})
    with refused("no-such-compiler"):
        setup_py.check_compiler({"PATH": os.environ["PATH"], "CXX": "no-such-compiler -m64"})


# ---- finding a CUDA toolkit


def test_cuda_home_goes_first(setup_py: ModuleType, tmp_path: Path) -> None:
    named, on_path = fake_toolkit(tmp_path / "named"), fake_toolkit(tmp_path / "on_path")
    environ = {"CUDA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert setup_py.find_cuda_home(environ, []) == named


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_cuda_home_without_nvcc_is_refused(setup_py: ModuleType, tmp_path: Path, name: str) -> None:
    with refused(f"{name} is {tmp_path}"):
        setup_py.find_cuda_home({name: str(tmp_path)}, [])


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
    with refused("names no release"):
        setup_py.read_nvcc(tmp_path)


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
        with refused("TORCH_OPS_CPU_ONLY=1", "install nvcc 13.0"):
            setup_py.choose_nvcc({"PATH": str(tmp_path)}, cuda_torch, [], True)

    def test_forced_without_nvcc(
        self, setup_py: ModuleType, tmp_path: Path, cuda_torch: object
    ) -> None:
        environ = {"PATH": str(tmp_path), "FORCE_CUDA": "1"}
        with refused("FORCE_CUDA is set, but there is no nvcc"):
            setup_py.choose_nvcc(environ, cuda_torch, [], False)

    def test_forced_without_cuda_torch(
        self, setup_py: ModuleType, tmp_path: Path, cpu_torch: object
    ) -> None:
        environ = {"CUDA_HOME": str(fake_toolkit(tmp_path)), "FORCE_CUDA": "1"}
        with refused("a build without CUDA"):
            setup_py.choose_nvcc(environ, cpu_torch, [], False)

    def test_forced_both_ways(self, setup_py: ModuleType, cuda_torch: object) -> None:
        environ = {"TORCH_OPS_CPU_ONLY": "1", "FORCE_CUDA": "1"}
        with refused("unset one of them"):
            setup_py.choose_nvcc(environ, cuda_torch, [], True)

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
        with refused(f"of CUDA {version}", "of CUDA 13.0"):
            setup_py.choose_nvcc(environ, cuda_torch, [], True)


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
    with refused("7.5"):
        setup_py.choose_archs({"TORCH_CUDA_ARCH_LIST": listed}, gpus)


# ---- what the compiler and the linker need beside the toolkit


def test_missing_headers_come_from_torchs_wheels(setup_py: ModuleType, tmp_path: Path) -> None:
    nvcc, wheel = setup_py.Nvcc(tmp_path / "cuda", "13.0"), tmp_path / "cu13"
    own = tmp_path / "cuda" / "include"
    assert setup_py.cuda_includes(nvcc, [wheel]) == [own, wheel / "include"]
    # The compiler installed from a wheel lies among those headers already.
    nvcc = setup_py.Nvcc(wheel, "13.0")
    assert setup_py.cuda_includes(nvcc, [wheel]) == [wheel / "include"]


# ---- what is built


def test_every_folder_with_a_binding_is_an_op(setup_py: ModuleType, tmp_path: Path) -> None:
    for name in (
        *("common/checks.h", "common/launch.cuh", "common/helper.cpp"),
        *("b/b.cpp", "b/rules/more.cpp", "b/kernels/b_cuda.cu", "b/b_cpu.cpp", "b/b_kernels.cuh"),
        *("a/a.cpp", "half/half_cpu.cpp", "file.cpp"),
    ):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).touch()
    src = tmp_path / "src"
    assert setup_py.bindings.find_ops(src) == [
        setup_py.Op("a", [src / "a/a.cpp"], has_cuda=False),
        setup_py.Op("b", [src / "b/b.cpp", src / "b/rules/more.cpp"], has_cuda=True),
    ]
    kernel_sources = setup_py.setup_c_library.kernel_sources
    assert kernel_sources(tmp_path, ".cpp") == [src / "b/b_cpu.cpp", src / "half/half_cpu.cpp"]
    assert kernel_sources(tmp_path, ".cu") == [src / "b/kernels/b_cuda.cu"]


def test_sources_of_a_module_are_compiled_together(setup_py: ModuleType, tmp_path: Path) -> None:
    src, temp = tmp_path / "src", tmp_path / "temp"
    lines = {"a/a.cpp": 1400, "a/b.cpp": 1600, "a/c.cpp": 3100, "a/d.cpp": 1, "a/rules/r.cpp": 1}
    for name, count in lines.items():
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_text("\n" * count)
    units = setup_py.bindings.units_of([src / name for name in reversed(lines)])
    names = [[path.relative_to(src).as_posix() for path in unit] for unit in units]
    assert names == [["a/a.cpp", "a/b.cpp"], ["a/c.cpp"], ["a/d.cpp", "a/rules/r.cpp"]]
    files = [setup_py.bindings.write_unit(unit, temp, src) for unit in units]
    assert files == [temp / "a/a-b.cpp", src / "a/c.cpp", temp / "a/d-r.cpp"]
    assert files[0].read_text() == '#include "a/a.cpp"\n#include "a/b.cpp"\n'
    before = files[0].stat().st_mtime_ns
    setup_py.bindings.write_unit(units[0], temp, src)
    assert files[0].stat().st_mtime_ns == before, "ninja would compile it again"


def test_this_build_holds_every_op(setup_py: ModuleType) -> None:
    config = json.loads((bindings(ROOT) / "build_config.json").read_text())
    ops = setup_py.bindings.find_ops(ROOT / "src")
    if not config["cuda"]:
        ops = [op for op in ops if op.name != setup_py.bindings.CUDA_MODULE]
    assert list(config["ops"]) == [op.name for op in ops]
    if config["cuda"]:
        assert config["ops"] == {op.name: {"cuda": op.has_cuda} for op in ops}


def test_one_version(setup_py: ModuleType) -> None:
    assert setup_py.read_version(ROOT) == torch_ops.__version__


def test_build_requirements_do_not_name_torch() -> None:
    """With torch among them pip would fetch another one to build against."""
    text = (ROOT / "pyproject.toml").read_text()
    requires = re.search(r"^requires = \[(.*)\]$", text, re.MULTILINE)
    assert requires is not None
    assert "torch" not in requires[1]


def test_cython_is_missing(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_py.setup_c_library, "has_cython", lambda: False)
    with refused("pip install cython"):
        setup_py.configure({"PATH": os.environ["PATH"]})


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("target", ["demo", "test", "bench", "docs"])
def test_make_sees_what_is_missing_before_it_builds(target: str, tmp_path: Path) -> None:
    python = write_script(tmp_path / "python", "echo torch")  # one that has it
    printed = make("--dry-run", "--always-make", f"PYTHON={python}", target).stdout
    assert 0 < printed.index("lacks: ") < printed.index("setup.py build_ext")


def test_make_with_a_python_that_is_not_there() -> None:
    printed = make("test", "PYTHON=nosuchpython").stderr
    assert "nosuchpython is not there. Name another, or leave PYTHON out" in printed
