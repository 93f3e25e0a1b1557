"""Builds in place, of a toy project: what is compiled, what is kept, what a failure leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from programs import load_setup_py, run_with_torch
from toy_project import bindings, build, write_toy

pytestmark = pytest.mark.slow


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "toy")


def compiled(toy: Path) -> list[str]:
    """The sources that a build compiles, below src/."""
    result = build(toy, TORCH_OPS_CPU_ONLY="1")
    assert result.returncode == 0, result.stdout
    objects = r"^\[\d+/\d+\] (?:torch[\d.]+/)?(\S+\.cpp)\.o$"
    return sorted(re.findall(objects, result.stdout, re.MULTILINE))


def answer(toy: Path) -> str:
    code = "import torch_ops; print(torch_ops.answer())"
    return run_with_torch("-c", code, cwd=toy).stdout.strip()


def built_config(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((bindings(folder) / "build_config.json").read_text())
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
    assert compiled(toy) == ["c_api/api.cpp", "toy/toy.cpp"]
    assert answer(toy) == "42"
    assert compiled(toy) == []
    (toy / "src/common/answer.h").write_text("#define ANSWER 43\n")
    assert compiled(toy) == ["toy/toy.cpp"]
    assert answer(toy) == "43"


def test_build_without_ninja(toy: Path, tmp_path: Path) -> None:
    """All is compiled then, each time."""
    hidden = tmp_path / "path"
    hidden.mkdir()
    # The compilers under the names that Python was built with, too: Debian's have a prefix.
    commands = [sysconfig.get_config_var(name) for name in ("CC", "CXX", "LDSHARED", "LDCXXSHARED")]
    compilers = {command.split()[0] for command in commands if command}
    # ccache by the names of compilers, in a folder of its own, would look for them on PATH.
    folders = [each for each in os.environ["PATH"].split(os.pathsep) if "ccache" not in each]
    for name in {"c++", "g++", "gcc", "cc", "as", "ld", "sh", "uname"} | compilers:
        if found := shutil.which(name, path=os.pathsep.join(folders)):
            (hidden / name).symlink_to(found)
    # setup.py would find the ninja that lies beside Python.
    text = (toy / "setup.py").read_text()
    line = "scripts = str(Path(sys.executable).parent)"
    assert line in text
    (toy / "setup.py").write_text(text.replace(line, f"scripts = {str(hidden)!r}"))

    for number in ("42", "43"):
        (toy / "src/common/answer.h").write_text(f"#define ANSWER {number}\n")
        result = build(toy, TORCH_OPS_CPU_ONLY="1", PATH=str(hidden))
        assert result.returncode == 0, result.stdout
        assert "[1/" in result.stdout
        assert "ninja" not in result.stdout
        assert answer(toy) == number


TEXT = """
#include <sstream>
#include <stdexcept>
static PyObject* text(PyObject*, PyObject*) {
  std::ostringstream text;
  text << "it is " << ANSWER << ".";
  try {
    throw std::runtime_error(text.str());
  } catch (const std::exception& error) {
    return PyUnicode_FromString(error.what());
  }
}
"""


@pytest.mark.parametrize("drops_ours", [False, True])
def test_a_compiler_that_links_libstdcxx_statically(
    toy: Path, tmp_path: Path, drops_ours: bool
) -> None:
    """Two copies in a process: torch's, and one that then writes no numbers."""
    compiler = tmp_path / "static-c++"
    drop = 'for a do shift; case "$a" in *libstdc++.so*) ;; *) set -- "$@" "$a";; esac; done\n'
    flags = "-static-libstdc++ -Wl,-Bsymbolic-functions"
    compiler.write_text(f'#!/bin/sh\n{drop if drops_ours else ""}exec c++ "$@" {flags}\n')
    compiler.chmod(0o755)
    source = toy / "src/toy/toy.cpp"
    code = source.read_text().replace("static PyMethodDef", TEXT + "static PyMethodDef")
    source.write_text(code.replace("{}};", '{"text", text, METH_NOARGS, ""}, {}};'))
    result = build(toy, TORCH_OPS_CPU_ONLY="1", CXX=str(compiler))
    if drops_ours:
        assert result.returncode != 0
        assert re.search(
            r"libtorch_ops_c\S+ does not need libstdc\+\+\.so\.6, so the compiler", result.stdout
        )
        return
    assert result.returncode == 0, result.stdout
    code = "import torch_ops; print(torch_ops.ops.toy.answer.__self__.text())"
    assert run_with_torch("-c", code, cwd=toy).stdout == "it is 42.\n"


def test_a_failed_build_leaves_nothing_that_imports(toy: Path) -> None:
    assert build(toy, TORCH_OPS_CPU_ONLY="1").returncode == 0
    (toy / "src/toy/toy.cpp").write_text("no C++")
    assert build(toy, TORCH_OPS_CPU_ONLY="1").returncode != 0
    result = run_with_torch("-c", "import torch_ops", cwd=toy)
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
    assert not list(bindings(toy).glob("other*"))


def test_cuda_is_built_with_no_gpu_visible(toy: Path) -> None:
    setup_py = load_setup_py()
    wheels = setup_py.bindings.nvidia_wheels(torch.version.cuda)
    if torch.version.cuda is None or setup_py.find_cuda_home(os.environ, wheels) is None:
        pytest.skip("needs nvcc and a CUDA build of torch")
    cuda_home = {name: os.environ[name] for name in ("CUDA_HOME",) if name in os.environ}
    result = build(toy, CUDA_VISIBLE_DEVICES="", **cuda_home)
    assert result.returncode == 0, result.stdout
    config = built_config(toy)
    assert config["cuda"] is True
    assert config["archs"] == ["9.0+PTX"]
    assert config["ops"] == {"toy": {"cuda": True}}
    result = run_with_torch("-m", "torch_ops", cwd=toy, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stdout
    assert "CUDA kernels: toy" in result.stdout


def test_the_c_library_is_built_again_where_it_changed(toy: Path) -> None:
    (toy / "src/c_api/more.h").write_text("#define MORE 1\n")
    (toy / "src/c_api/more.cpp").write_text('#include "c_api/more.h"\nint more = MORE;\n')

    assert compiled(toy) == ["c_api/api.cpp", "c_api/more.cpp", "toy/toy.cpp"]
    assert compiled(toy) == []
    (toy / "src/c_api/more.h").write_text("#define MORE 2\n")
    assert compiled(toy) == ["c_api/more.cpp"]
