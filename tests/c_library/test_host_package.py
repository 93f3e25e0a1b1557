"""The package torch_ops_host: what importing it loads, its facts, and TORCH_OPS_LIBRARY."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from host_arrays import environ
from programs import output_of

import torch_ops
import torch_ops_host as host


def test_torch_is_not_imported() -> None:
    code = "import torch_ops_host, sys; assert 'torch' not in sys.modules, 'torch'"
    output_of(sys.executable, "-c", code, env=environ())


def test_without_numpy() -> None:
    """Programs in C are built all the same; the functions say what they need."""
    code = """
import sys
class NoNumPy:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")
sys.meta_path.insert(0, NoNumPy())
import torch_ops_host as host
print(host.get_include(), host.get_library_dir(), host.get_prefix(), host.library_path())
try:
    from torch_ops_host import gather
except ModuleNotFoundError as error:
    print(error)
print(hasattr(host, "no_such_name"))
"""
    text = output_of(sys.executable, "-c", code, env=environ())
    paths = (host.get_include(), host.get_library_dir(), host.get_prefix(), host.library_path())
    needs_numpy = (
        "torch_ops_host.gather needs NumPy, which is not installed: pip install numpy\nFalse\n"
    )
    assert text == " ".join(paths) + "\n" + needs_numpy


def test_torch_ops_has_it_too() -> None:
    assert torch_ops.host is host
    import torch_ops.host as module

    assert module is host
    from torch_ops.host import gather

    assert gather is host.gather


def test_facts() -> None:
    assert host.version() == torch_ops.__version__
    config = host.build_config()
    assert set(config) == {"cuda", "archs", "compiler"}
    assert (config["cuda"] == "none") == (config["archs"] == "")
    assert Path(host.get_include(), "torch_ops.h").is_file()
    assert Path(host.get_library_dir(), "libtorch_ops_c.so.1").is_file()


class TestLibraryVariable:
    """What TORCH_OPS_LIBRARY may be."""

    def load(self, value: str | Path) -> subprocess.CompletedProcess[str]:
        code = "import torch_ops_host; print(torch_ops_host.library_path())"
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environ(TORCH_OPS_LIBRARY=str(value)),
            capture_output=True,
            text=True,
            check=False,
        )

    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        path = tmp_path / Path(host.library_path()).name
        path.write_bytes(Path(host.library_path()).read_bytes())
        return path

    def test_a_file_a_folder_a_link(self, copy: Path, tmp_path: Path) -> None:
        link, folder = tmp_path / "link", tmp_path / "folder"
        link.symlink_to(copy)
        folder.symlink_to(tmp_path)
        for value in (copy, tmp_path, link, folder):
            result = self.load(value)
            assert result.stdout.strip() == str(copy), result.stderr

    def test_what_is_refused(self, copy: Path, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        dangling = tmp_path / "dangling"
        dangling.symlink_to(tmp_path / "gone")
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        text = tmp_path / "text"
        text.write_text("INPUT(libtorch_ops_c.so.1)")  # as libtorch_ops_c.so is, for the linker
        damaged = tmp_path / "damaged"
        damaged.write_bytes(b"\x7fELF")
        other = tmp_path / "other.so"
        compile_c("int answer(void) { return 42; }", other, "-shared", "-fPIC")
        for value, reason in (
            (copy.name, "it must be an absolute path"),
            ("./" + copy.name, "it must be an absolute path"),
            (tmp_path / "gone", "it does not lead to a file or folder"),
            (dangling, "it does not lead to a file or folder"),
            (loop, "it does not lead to a file or folder"),
            (empty, "this folder holds no libtorch_ops_c.so"),
            ("/dev/null", "is not a regular file"),
            (text, "is not a shared library; name libtorch_ops_c.so.1 or its folder"),
            (damaged, "cannot be loaded"),
            (other, "is it libtorch_ops_c?"),
        ):
            result = self.load(value)
            assert result.returncode == 1
            assert "ImportError" in result.stderr
            assert reason in result.stderr

    def test_another_version_of_the_interface(self, tmp_path: Path) -> None:
        other = tmp_path / "old.so"
        compile_c("int torch_ops_api_version(void) { return 999; }", other, "-shared", "-fPIC")
        assert "has version 999 of the library's interface" in self.load(other).stderr

    def test_a_library_that_was_built_again_is_taken(self, copy: Path) -> None:
        """The module is not linked with it: what lies there when it is imported is loaded."""
        assert self.load(copy).returncode == 0
        copy.unlink()
        assert "does not lead to" in self.load(copy).stderr
        copy.write_bytes(Path(host.library_path()).read_bytes())
        assert self.load(copy).returncode == 0


def compile_c(code: str, output: Path, *flags: str) -> None:
    subprocess.run(["cc", "-x", "c", "-", "-o", output, *flags], input=code, text=True, check=True)
