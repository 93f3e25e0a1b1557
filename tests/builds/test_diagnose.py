"""import torch_ops works whole or raises one InstallationError that says why and what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from programs import ROOT, run, run_with_torch
from toy_project import bindings, build, write_toy

import torch_ops
from torch_ops.__main__ import COMMANDS, main
from torch_ops._install import bindings as _bindings
from torch_ops._install import build as _build
from torch_ops._install import diagnose, supported

INSTALL = f"{sys.executable} -m pip install"
COMPILE = f"{sys.executable} -m torch_ops build"
MEND = f"{INSTALL} -e "


@pytest.fixture(scope="session")
def built_toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_toy(tmp_path_factory.mktemp("toy"))
    result = build(folder, TORCH_OPS_CPU_ONLY="1")
    assert result.returncode == 0, result.stdout
    return folder


@pytest.fixture
def toy(built_toy: Path, tmp_path: Path) -> Path:
    """A copy of the built toy, to be broken."""
    return Path(shutil.copytree(built_toy, tmp_path / "toy"))


def module_file(folder: Path) -> Path:
    (path,) = bindings(folder).glob("*.so")
    return path


def edit_config(folder: Path, **changes: object) -> None:
    path = bindings(folder) / "build_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def remove_built(folder: Path) -> None:
    module_file(folder).unlink()
    (bindings(folder) / "build_config.json").unlink()


def library_file(folder: Path) -> Path:
    (path,) = folder.glob("torch_ops_host/lib/libtorch_ops_c.so.*")
    return path


def break_symbol(folder: Path) -> None:
    """As a module looks that was built for another torch: whole, with a symbol that is nowhere."""
    path = module_file(folder)
    path.write_bytes(path.read_bytes().replace(b"PyModule_Create2", b"PyModule_Create9"))


def rename_bindings(folder: Path) -> None:
    """As an installation looks after torch was upgraded."""
    bindings(folder).rename(bindings(folder).parent / "torch2.1234")


def pretend(folder: Path, line: str) -> None:
    """As if another torch were installed."""
    path = folder / "torch_ops" / "__init__.py"
    path.write_text(f"import torch\n{line}\n{path.read_text()}")


def pretend_cuda(folder: Path, version: str | None) -> None:
    pretend(folder, f"torch.version.cuda = {version!r}")


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "never built": (remove_built, "is not built", MEND),
    "build broke off": (
        lambda toy: (bindings(toy) / "build_config.json").unlink(),
        "is not built, or its last build did not finish",
        MEND,
    ),
    "config damaged": (
        lambda toy: truncate(bindings(toy) / "build_config.json"),
        "is damaged",
        MEND,
    ),
    "config of another form": (
        lambda toy: edit_config(toy, ops=["toy"]),
        "is damaged",
        MEND,
    ),
    "another torch": (
        lambda toy: edit_config(toy, torch="2.9.1+cu130"),
        rf"built for torch 2\.9\.1\+cu130; torch {re.escape(torch.__version__)} is installed",
        MEND,
    ),
    "torch upgraded": (
        rename_bindings,
        rf"has bindings for torch 2\.1234; torch {re.escape(torch.__version__)} is installed",
        COMPILE,
    ),
    "torch downgraded": (
        lambda toy: pretend(toy, "torch.__version__ = '2.10.0'"),
        r"works with torch 2\.11, .*; torch 2\.10\.0 is installed",
        f"{INSTALL} 'torch==",
    ),
    "bindings without CUDA": (
        lambda toy: (edit_config(toy, cuda=True, torch_cuda=None), pretend_cuda(toy, "13.0")),
        r"bindings were compiled for a torch without CUDA; torch \S+ is for CUDA 13\.0",
        COMPILE,
    ),
    "a torch of an older CUDA": (
        lambda toy: (edit_config(toy, cuda=True, torch_cuda="13.0"), pretend_cuda(toy, "12.8")),
        r"kernels are for CUDA 13\.0; torch \S+ is for CUDA 12\.8",
        f"{INSTALL} --force-reinstall 'torch==",
    ),
    "kernels of an older CUDA": (
        lambda toy: (edit_config(toy, cuda=True, torch_cuda="12.8"), pretend_cuda(toy, "13.0")),
        r"kernels are for CUDA 12\.8; torch \S+ is for CUDA 13\.0",
        MEND,
    ),
    "another Python": (
        lambda toy: edit_config(toy, python="3.7"),
        r"built for Python 3\.7",
        COMPILE,
    ),
    "another version": (
        lambda toy: edit_config(toy, version="0.0.1"),
        r"are of version 0\.0\.1",
        MEND,
    ),
    "module missing": (lambda toy: module_file(toy).unlink(), "module for toy is missing", MEND),
    "module cut short": (
        lambda toy: truncate(module_file(toy)),
        "module for toy is damaged",
        MEND,
    ),
    "library missing": (
        lambda toy: library_file(toy).unlink(),
        r"kernel library is missing: \S+libtorch_ops_c",
        MEND,
    ),
    "library cut short": (
        lambda toy: truncate(library_file(toy)),
        r"kernel library is damaged: \S+libtorch_ops_c",
        MEND,
    ),
    "Python file missing": (
        lambda toy: (toy / "torch_ops/ops/toy.py").unlink(),
        r"module torch_ops\.ops\.toy is missing",
        "git -C ",
    ),
    "new op": (
        lambda toy: (toy / "torch_ops/ops/toy.py").write_text("import torch_ops._ext.newer"),
        r"module torch_ops\._ext\.newer is missing",
        "make -C ",
    ),
    "module empty": (
        lambda toy: module_file(toy).write_bytes(b""),
        "module for toy is damaged",
        MEND,
    ),
    "symbol missing": (
        break_symbol,
        "module for toy does not load: .*undefined symbol: PyModule_Create9",
        MEND,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_broken_installation(name: str, toy: Path) -> None:
    break_it, reason, mend = BROKEN[name]
    break_it(toy)
    result = run_with_torch("-c", "import torch_ops", cwd=toy)
    assert result.returncode == 1, result.stdout  # not a signal
    assert re.search(
        rf"^torch_ops\.InstallationError: torch_ops {torch_ops.__version__} cannot be "
        rf"used\. .*{reason}",
        result.stdout,
        re.MULTILINE,
    ), result.stdout
    mend = f"{mend}{toy}" if mend == MEND else mend
    assert re.search(rf"^    {re.escape(mend)}", result.stdout, re.MULTILINE)
    # One command, and no other.
    text = result.stdout.rpartition("torch_ops.InstallationError: ")[2]
    assert len(re.findall(r"^    \S", text, re.MULTILINE)) == 1
    # The text is the diagnosis: both sides of what does not fit.
    assert re.search(r"^ +built for +runs with$", result.stdout, re.MULTILINE)
    assert re.search(r"^torch .* (\S+)$", result.stdout, re.MULTILINE)


def test_a_broken_wheel_is_installed_again(toy: Path) -> None:
    """Where there are no sources to build."""
    (toy / "setup.py").unlink()
    module_file(toy).unlink()
    result = run_with_torch("-c", "import torch_ops", cwd=toy)
    again = f"{INSTALL} --force-reinstall --no-deps torch_ops=={torch_ops.__version__}"
    assert f"Install it again:\n    {again}\n" in result.stdout


def test_a_python_that_is_too_old(toy: Path) -> None:
    pretend(toy, "import sys; sys.version_info = (3, 9, 0)")
    result = run_with_torch("-c", "import torch_ops", cwd=toy)
    assert "It works with Python 3.11, " in result.stdout
    assert "; this is 3.9." in result.stdout
    newest = supported.PYTHON[-1]
    assert f"\n    python{newest} -m pip install -e {toy}\n" in result.stdout


def test_torch_missing(toy: Path) -> None:
    result = run("-S", "-c", "import torch_ops", cwd=toy)  # -S: without site-packages
    assert result.returncode == 1
    assert "InstallationError" in result.stdout
    assert "torch does not import: No module named 'torch'" in result.stdout
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"{INSTALL} 'torch=={minor}.*'" in result.stdout
    result = run("-S", "-m", "torch_ops", "build", cwd=toy)
    assert result.returncode == 1
    assert f"No module named 'torch'. Install it: {INSTALL} torch\n" in result.stdout


@pytest.mark.parametrize(
    ("leftover", "reason"),
    [
        ("torch/lib/leftover.so", "holds no torch"),  # what an uninstalled torch leaves behind
        ("torch/__init__.py", "torch does not import: cannot open libtorch"),
    ],
)
def test_torch_broken(toy: Path, leftover: str, reason: str) -> None:
    (toy / leftover).parent.mkdir(parents=True)
    (toy / leftover).write_text("raise OSError('cannot open libtorch')")
    result = run("-S", "-c", "import torch_ops", cwd=toy)
    assert result.returncode == 1
    assert "InstallationError" in result.stdout
    assert reason in result.stdout


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert diagnose.diagnosis().startswith(f"torch_ops {torch_ops.__version__} is installed")
    with pytest.raises(_build._Refusal, match="set XDG_CACHE_HOME"):
        _build._find_user_folder()


class TestBuild:
    """`python -m torch_ops build`, where torch was upgraded."""

    @pytest.fixture
    def upgraded(self, toy: Path) -> Path:
        rename_bindings(toy)
        return toy

    @pytest.fixture(autouse=True)
    def user_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache" / "torch_ops_bindings"

    def test_it_mends(self, upgraded: Path, user_folder: Path) -> None:
        killed = user_folder / diagnose.USERS / "tmpabc"  # a build of long ago
        killed.mkdir(parents=True)
        os.utime(killed, (0, 0))
        result = run_with_torch("-m", "torch_ops", "build", cwd=upgraded)
        assert result.returncode == 0, result.stdout
        assert f"compiling bindings for torch {torch.__version__}, for the CPU" in result.stdout
        assert f"the bindings are in {user_folder}" in result.stdout
        result = run_with_torch("-m", "torch_ops", cwd=upgraded)
        assert result.returncode == 0, result.stdout
        assert f"bindings: {user_folder}" in result.stdout
        # Nothing is left of the compilation, and nothing after --clean.
        (version,) = user_folder.iterdir()
        assert [path.name for path in version.iterdir()] == [bindings(upgraded).name]
        result = run_with_torch("-m", "torch_ops", "build", "--clean", cwd=upgraded)
        assert f"removed {user_folder}" in result.stdout
        assert not user_folder.exists()
        assert "-m torch_ops build" in run_with_torch("-c", "import torch_ops", cwd=upgraded).stdout

    def test_the_last_build_counts(self, toy: Path, user_folder: Path) -> None:
        """Sources may have changed since the one before, in either place."""
        result = run_with_torch("-m", "torch_ops", "build", cwd=toy)
        assert "there are bindings for this torch" in result.stdout and not user_folder.exists()
        result = run_with_torch("-m", "torch_ops", "build", "--force", cwd=toy)
        assert result.returncode == 0, result.stdout
        config = bindings(toy) / "build_config.json"
        for is_later, parent in ((False, user_folder), (True, toy)):
            seconds = config.stat().st_mtime + 3600 * is_later
            os.utime(config, (seconds, seconds))
            shown = run_with_torch("-m", "torch_ops", cwd=toy).stdout
            assert f"bindings: {parent}" in shown

    def test_a_compiler_that_fails(self, upgraded: Path, user_folder: Path) -> None:
        (upgraded / "src/toy/toy.cpp").write_text("no C++")
        result = run_with_torch("-m", "torch_ops", "build", cwd=upgraded)
        assert result.returncode == 1
        assert "the compiler failed: the errors above say why" in result.stdout
        assert "Traceback" not in result.stdout
        assert list(next(user_folder.iterdir()).iterdir()) == []

    @pytest.mark.parametrize(
        ("missing", "variables", "text"),
        [
            (None, {"CXX": "no-such-compiler -m64"}, "C++ compiler (no-such-compiler): install g"),
            ("src", {}, "the sources of the bindings are missing"),
            ("torch_ops_host/lib", {}, "there is no kernel library"),
        ],
    )
    def test_something_is_missing(
        self, upgraded: Path, missing: str | None, variables: dict[str, str], text: str
    ) -> None:
        if missing:
            shutil.rmtree(upgraded / missing)
        result = run_with_torch("-m", "torch_ops", "build", cwd=upgraded, **variables)
        assert result.returncode == 1
        assert text in result.stdout

    @pytest.mark.slow
    def test_the_module_for_cuda_needs_no_toolkit(self, tmp_path: Path) -> None:
        """Its sources include those headers alone that come with torch: nvcc brings more."""
        own = [
            wheel / "include"
            for wheel in _bindings.nvidia_wheels(torch.version.cuda)
            if not (wheel / "include" / "crt").exists()  # where pip has installed nvcc
        ]
        if not own:
            pytest.skip("needs a CUDA build of torch, without the compiler that pip installs")
        for_torch = _bindings.Torch(torch.__version__, Path(torch.__file__).parent, own)
        ops = [op for op in _bindings.find_ops(ROOT / "src") if op.name == _bindings.CUDA_MODULE]
        steps = _bindings.binding_steps(
            *(ROOT / "src", ops, tmp_path / "made", tmp_path, for_torch),
            *(tmp_path / "libtorch_ops_c.so", True, str(tmp_path), os.environ),
        )
        for step in steps[:-1]:  # all but the link
            step.output.parent.mkdir(parents=True, exist_ok=True)
            command = [*step.command, "-fsyntax-only"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr

    def test_it_is_no_module_of_another_package(self, upgraded: Path) -> None:
        """`python -m other build`, where `other` imports torch_ops."""
        (upgraded / "other.py").write_text("import torch_ops")
        result = run_with_torch("-m", "other", "build", cwd=upgraded)
        assert "has bindings for torch 2.1234" in result.stdout


def test_import_leaves_gpus_alone(toy: Path) -> None:
    """A process that has asked for a GPU's name cannot fork any more."""
    code = """
import sys, torch
torch.cuda.device_count = lambda: sys.exit("asked how many there are")
import torch_ops
"""
    result = run_with_torch("-c", code, cwd=toy)
    assert result.returncode == 0, result.stdout


def test_error_is_an_import_error_with_its_cause(toy: Path) -> None:
    break_symbol(toy)
    code = """
try:
    import torch_ops
except ImportError as error:
    assert type(error).__name__ == "InstallationError", type(error)
    assert isinstance(error.__cause__, ImportError), error.__cause__
    assert "undefined symbol" in str(error.__cause__)
else:
    raise AssertionError
import sys
assert "torch_ops" not in sys.modules, "half an import"
"""
    result = run_with_torch("-c", code, cwd=toy)
    assert result.returncode == 0, result.stdout


def test_main_on_toy(toy: Path) -> None:
    result = run_with_torch("-m", "torch_ops", cwd=toy)
    assert result.returncode == 0, result.stdout
    assert "is installed and loads" in result.stdout
    assert "CUDA kernels: none" in result.stdout
    assert "CPU only: toy" in result.stdout
    assert re.search(r"^toy +cpu +ok: the answer is 42$", result.stdout, re.MULTILINE)


def test_main_reports_each_failure(toy: Path) -> None:
    (toy / "torch_ops/ops/bad.py").write_text("def self_check(device): raise ValueError('wrong')")
    (toy / "torch_ops/ops/worse.py").write_text("import not_there")
    result = run_with_torch("-m", "torch_ops", cwd=toy)
    assert result.returncode == 1
    assert re.search(r"^bad +cpu +FAILED: ValueError: wrong$", result.stdout, re.MULTILINE)
    assert re.search(r"^worse +cpu +FAILED: ModuleNotFoundError", result.stdout, re.MULTILINE)
    assert re.search(r"^toy +cpu +ok", result.stdout, re.MULTILINE)
    assert "2 of 3 checks failed" in result.stdout


def test_main_on_torch_ops() -> None:
    result = run_with_torch("-m", "torch_ops", cwd=ROOT)
    assert result.returncode == 0, result.stdout
    config = diagnose.build_config()
    assert config["torch"] in result.stdout
    ops = {path.stem for path in (ROOT / "torch_ops" / "ops").rglob("[a-z]*.py")}
    devices = ["cpu", *(["cuda"] if config["cuda"] and torch.cuda.is_available() else [])]
    checked = re.findall(r"^(\w+) +(cpu|cuda) +ok: ", result.stdout, re.MULTILINE)
    wanted = [("errors", "cpu"), *((op, device) for op in ops for device in devices)]
    assert sorted(checked) == sorted(wanted)


@pytest.mark.parametrize("word", ["foo", "versions", "--foo", "Explain"])
def test_main_refuses_other_words(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([word])
    assert stopped.value.code == 2
    text = capsys.readouterr()
    assert text.out == "" and word in text.err


@pytest.mark.parametrize("arguments", [["--help"], ["build", "--help"], ["explain", "--help"]])
def test_main_shows_its_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(" ".join(["usage: python -m torch_ops", *arguments[:-1]]) + " ")
    if len(arguments) == 1:
        assert all(f"    {name} " in text for name in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("raise IndexError(f'gather: dim is {dim}.')", "ok: .*'gather: dim is 7654321.'"),
        ("raise IndexError('gather: dim is ')", "FAILED: .* came 'gather: dim is', .*status 0"),
        ("os.kill(os.getpid(), 11)", "FAILED: .* came '', and the exit status -11"),
    ],
)
def test_main_sees_errors_that_do_not_arrive(toy: Path, body: str, result: str) -> None:
    (toy / "torch_ops/ops/gather.py").write_text("def self_check(device): return 'fine'")
    with (toy / "torch_ops/__init__.py").open("a") as file:
        file.write(f"import os\ndef gather(source, index, dim): {body}\n")
    output = run_with_torch("-m", "torch_ops", cwd=toy)
    assert output.returncode == (0 if result.startswith("ok") else 1)
    assert re.search(rf"^errors +cpu +{result}", output.stdout, re.MULTILINE), output.stdout


def test_diagnosis_of_this_installation() -> None:
    text = diagnose.diagnosis()
    assert text.startswith(f"torch_ops {torch_ops.__version__} is installed and loads.")
    assert sys.executable in text
    assert issubclass(torch_ops.InstallationError, ImportError)


@pytest.mark.parametrize(
    ("archs", "gpu", "covered"),
    [
        (["9.0"], (9, 0), True),
        (["8.0"], (8, 6), True),  # machine code runs on later minor versions
        (["8.6"], (8, 0), False),
        (["8.0"], (9, 0), False),
        (["8.0+PTX"], (9, 0), True),
        (["9.0+PTX"], (8, 0), False),
        (["9.0a"], (9, 0), True),
        (["10.0a"], (10, 3), False),
        (["7.5", "9.0"], (9, 0), True),
        (["Hopper"], (9, 0), True),
        ([], (9, 0), False),
    ],
)
def test_covers(archs: list[str], gpu: tuple[int, int], covered: bool) -> None:
    assert diagnose._covers(archs, gpu) is covered


class TestChoice:
    """Of bindings for one version of torch: this installation's, or those that the user made."""

    @pytest.fixture
    def users(self, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The same bindings as the toy's, in the user's folder."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folder = tmp_path / "cache" / "torch_ops_bindings" / diagnose.USERS / bindings(toy).name
        shutil.copytree(bindings(toy), folder)
        # Theirs would be linked with the toy's library; these look for it three folders above.
        (tmp_path / "cache" / "torch_ops_host").symlink_to(toy / "torch_ops_host")
        return folder

    @pytest.mark.parametrize(
        ("changes", "chosen"),
        [
            ({}, "installation"),
            ({"python": "3.7"}, "user"),
            ({"version": "0.0.1"}, "user"),
            ({"cuda": True, "torch_cuda": "12.8"}, "user"),  # now of a torch with another
        ],
    )
    def test_the_installations_where_they_fit(
        self, toy: Path, users: Path, changes: dict[str, object], chosen: str
    ) -> None:
        edit_config(toy, **changes)
        pretend_cuda(toy, "13.0")
        result = run_with_torch("-m", "torch_ops", cwd=toy)
        assert result.returncode == 0, result.stdout
        folders = {"installation": bindings(toy), "user": users}
        assert f"\nbindings: {folders.pop(chosen)}\n" in result.stdout
        (other,) = folders.values()
        assert f"\nothers: {other.name} in {other.parent}\n" in result.stdout

    def test_the_users_are_damaged(self, toy: Path, users: Path) -> None:
        edit_config(toy, python="3.7")
        truncate(next(users.glob("*.so")))
        result = run_with_torch("-c", "import torch_ops", cwd=toy)
        assert f"module for toy is damaged: {users}" in result.stdout
        assert f"\n    {COMPILE}\n" in result.stdout


@pytest.mark.parametrize(
    ("has_gpu", "shown"),
    [(False, "none visible"), (True, "none visible: Found no NVIDIA driver on your system")],
)
def test_a_gpu_without_a_driver(monkeypatch: pytest.MonkeyPatch, has_gpu: bool, shown: str) -> None:
    def init() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system. Please install it.\nMore.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(diagnose, "_has_nvidia_gpu", lambda: has_gpu)
    monkeypatch.setattr(diagnose, "_check_and_load", lambda: None)
    (line,) = re.findall(r"^GPU .*$", diagnose.diagnosis(), re.MULTILINE)
    assert re.search(rf" {shown}", line)
    assert line.endswith(("none visible", "Please install it."))
