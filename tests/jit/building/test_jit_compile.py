"""Compilation: what a kernel's key depends on, errors, compilers that are missing."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from jit_tools import forget, in_processes, needs_cuda_core, run_python
from programs import ROOT, run

from torch_ops import jit
from torch_ops._ext import jit as _ext
from torch_ops.jit import CompileError
from torch_ops.jit.building import compilation, includes, toolchain
from torch_ops.jit.building.cache import Artefact
from torch_ops.jit.building.compilation import compile_cuda, compile_host
from torch_ops.jit.building.source import Source, UserText
from torch_ops.jit.generation.text import shared_options


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, empty."""
    path = tmp_path / "kernels"
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", str(path))
    jit.clear_cache()
    return path


def host(code: str, *options: str) -> Artefact:
    return compile_host("kernel", Source.of(UserText("code", code)), options=options)


def cuda(code: str, *options: str, **others: Any) -> Artefact:
    return compile_cuda("kernel", Source.of(UserText("code", code)), options=options, **others)


def call(artefact: Artefact, name: str = "f") -> int:
    address = _ext.host_symbol(_ext.load_host_library(artefact.data), name)
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


def compiles() -> int:
    return jit.cache_info().compiles


# ---- the host's compiler


def test_host_code_runs() -> None:
    """Each library is another, though their paths may be alike."""
    for value in (1, 2, 3):
        assert call(host(f'extern "C" int f() {{ return {value}; }}')) == value
    with pytest.raises(ValueError, match='no function "g"'):
        call(host('extern "C" int f() { return 1; }'), "g")
    with pytest.raises(RuntimeError, match="does not load"):
        _ext.load_host_library(b"no library")


def test_host_options(folder: Path) -> None:
    code = 'extern "C" int f() { return VALUE; }'
    assert [call(host(code, f"-DVALUE={value}")) for value in (1, 2, 1)] == [1, 2, 1]
    assert compiles() == 2
    warned = host('extern "C" int f() { int unused; return 1; }', "-Wall")
    assert "unused" in warned.facts["log"] and "code:1" in warned.facts["log"]


def test_cxx_names_the_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = 'extern "C" int f() { return VALUE; }'
    monkeypatch.setenv("CXX", "g++ -DVALUE=7")
    assert call(host(code)) == 7
    monkeypatch.setenv("CXX", "g++ -DVALUE=8")
    assert call(host(code)) == 8


def test_another_compiler_is_another_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'extern "C" int f() { return 1; }'
    script = tmp_path / "my_compiler"
    for content in ("#!/bin/sh\nexec g++ $*\n", "#!/bin/sh\n# newer\nexec g++ $*\n"):
        script.write_text(content)
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        assert call(host(code)) == 1
    assert compiles() == 2


def script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "named", ["launch my_cxx", "my_cxx", "{}/wrappers/my_cxx", "launch {}/bin/my_cxx"]
)
def test_compiler_behind_another_program_counts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """As ccache stands before the compiler, in the command or under its name on PATH."""
    compiler = shutil.which("g++")
    monkeypatch.setenv("PATH", f"{tmp_path / 'wrappers'}:{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CXX", named.format(tmp_path, tmp_path))
    script(tmp_path / "wrappers" / "launch", 'exec "$@"')
    script(tmp_path / "wrappers" / "my_cxx", f'exec {tmp_path / "bin" / "my_cxx"} "$@"')
    for value in (1, 2, 1):
        script(tmp_path / "bin" / "my_cxx", f'exec {compiler} -DVALUE={value} "$@"')
        os.utime(tmp_path / "bin" / "my_cxx", (value, value))
        assert call(host('extern "C" int f() { return VALUE; }')) == value
    assert compiles() == 2


def test_a_compiler_that_links_libstdcxx_statically(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies in a process: torch's, and one that then writes no numbers."""
    script(tmp_path / "cxx", 'exec g++ -static-libstdc++ -Wl,-Bsymbolic-functions "$@"')
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    code = "std::ostringstream text; text << 1234; return text.str().size();"
    assert call(host(f'#include <sstream>\nextern "C" int f() {{ {code} }}')) == 4


def test_another_of_two_compilers_behind_one_launcher(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin" / "launch", 'exec "$@"')
    for value in (1, 2):
        script(tmp_path / "bin" / f"cxx{value}", f'exec {shutil.which("g++")} -DVALUE={value} "$@"')
        os.utime(tmp_path / "bin" / f"cxx{value}", (0, 0))
        monkeypatch.setenv("CXX", f"{tmp_path / 'bin' / 'launch'} {tmp_path / 'bin'}/cxx{value}")
        assert call(host('extern "C" int f() { return VALUE; }')) == value


def test_cxx_that_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "'g++")
    with pytest.raises(
        RuntimeError, match=r"CXX is \"'g\+\+\", which is not a command: No closing"
    ):
        host("")


def test_cxx_that_is_no_compiler(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-program").write_bytes(b"\0")
    (tmp_path / "no-program").chmod(0o700)
    for command in ("true", str(tmp_path / "no-program")):
        monkeypatch.setenv("CXX", command)
        with pytest.raises(RuntimeError, match=f"not compiled by .*{command}.*CXX"):
            host("")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_full_folder_for_temporary_files(
    code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the compiler's fault."""

    def no_space(**options: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", no_space)
    with pytest.raises(
        RuntimeError, match=rf"{os.strerror(code)}\. TMPDIR must name a folder with"
    ):
        host('extern "C" int f() { return 1; }')


def test_limit_that_is_no_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told before the compiler works in vain, and again the next time."""
    monkeypatch.setenv("TORCH_OPS_CACHE_LIMIT", "much")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must be a number of bytes, but it is 'much'"):
            host('extern "C" int f() { return 1; }')


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        (["-D", "K=3", "-I", "inc", "-U", "L"], ["-DK=3", "-Iinc", "-UL"]),
        (["-D K=3", "-DK=3", "-D=K=3", "-DK"], ["-DK=3", "-DK=3", "-DK=3", "-DK"]),
        (["--define-macro=K=3", "--undefine-macro", "L"], ["-DK=3", "-UL"]),
        (["--include-path=inc", "-I inc", "--include-path", "inc"], ["-Iinc"] * 3),
        (["--std=c++20", "-std=c++14"], ["-std=c++20", "-std=c++14"]),
        (["--use_fast_math", "-lineinfo", "-default-device", "--fmad=true"], []),
    ],
)
def test_options_of_both_compilers(options: list[str], shared: list[str]) -> None:
    assert shared_options(options) == shared


def test_options_in_two_words() -> None:
    kernel = jit.ElementwiseKernel(
        "int32 x", "int64 y", "y = x * K + (__cplusplus > 201703)",
        options=("-D", "K=3", "--std=c++20"),
    )  # fmt: skip
    assert kernel(torch.tensor([1, 2], dtype=torch.int32)).tolist() == [4, 7]


def test_no_host_compiler(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match=r"there is none: install g\+\+ \(.*apt install g\+\+"):
        host("")
    monkeypatch.setenv("CXX", "my-compiler -O2")
    with pytest.raises(RuntimeError, match=r"CXX names, but there is no 'my-compiler'"):
        host("")


@pytest.mark.skipif(not shutil.which("clang++"), reason="clang++ is not installed")
def test_clang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    assert call(host('extern "C" int f() { return 5; }')) == 5
    with pytest.raises(CompileError) as error:
        host("\nint f() { return x; }")
    assert (error.value.name, error.value.line) == ("code", 2)


# ---- keys


def test_key_has_all_that_matters(folder: Path) -> None:
    code = 'extern "C" int f() { return 1; }'
    for _ in range(2):
        host(code)
        host(code + " ")
        host(code, "-O1")
        compile_host("kernel", Source.of(UserText("other", code)))
        forget()
    assert compiles() == 4
    assert jit.cache_info().hits == 4


@needs_cuda_core
def test_key_of_cuda_has_all_that_matters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "__global__ void f() {}"
    for _ in range(2):
        cuda(code)
        cuda(code, "-lineinfo")
        cuda(code, arch="sm_80")
        cuda(code, name_expressions=["f"])
        cuda(code, target="ptx")
        forget()
    assert compiles() == 5
    newer = toolchain.Nvrtc(None, "another version", toolchain.find_nvrtc().include)
    monkeypatch.setattr(compilation, "find_nvrtc", lambda: newer)
    cuda(code)
    assert compiles() == 6


@pytest.mark.parametrize("name", ['"outer.h"', "<outer.h>"])
@pytest.mark.parametrize("given", ["-I{}", "-I {}", "-isystem={}", "--include-path={}", "two"])
def test_headers_count_by_their_contents(
    folder: Path, tmp_path: Path, name: str, given: str
) -> None:
    headers = tmp_path / "headers"
    (headers / "deep").mkdir(parents=True)
    (headers / "outer.h").write_text('#if 1\n  #  include "deep/inner.h"\n#endif\n')
    options = ("-I", str(headers)) if given == "two" else (given.format(headers),)
    if given in ("-I {}", "--include-path={}", "-isystem={}"):
        keys = []
        for content in ("1", "2", "1"):
            (headers / "deep" / "inner.h").write_text(f"#define VALUE {content}\n")
            keys.append(compilation._key([], f"#include {name}\n", options))
        assert keys[0] == keys[2] != keys[1]
        return
    code = f'#include {name}\nextern "C" int f() {{ return VALUE; }}'
    for content in ("1", "2", "1"):
        (headers / "deep" / "inner.h").write_text(f"#define VALUE {content}\n")
        assert call(host(code, *options)) == int(content)
    assert compiles() == 2
    assert jit.cache_info().hits == 1


def test_header_before_the_source(folder: Path, tmp_path: Path) -> None:
    header = tmp_path / "before.h"
    for value in (1, 2):
        header.write_text(f"#define VALUE {value}\n")
        assert call(host('extern "C" int f() { return VALUE; }', "-include", str(header))) == value


def test_headers_of_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPATH", str(tmp_path))
    for value in (1, 2):
        (tmp_path / "mine.h").write_text(f"#define VALUE {value}\n")
        assert call(host('#include <mine.h>\nextern "C" int f() { return VALUE; }')) == value


def test_header_that_hides_another(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (second / "mine.h").write_text("#define VALUE 2\n")
    code = '#include "mine.h"\nextern "C" int f() { return VALUE; }'
    options = (f"-I{first}", f"-I{second}")
    assert call(host(code, *options)) == 2
    (first / "mine.h").write_text("#define VALUE 1\n")
    assert call(host(code, *options)) == 1


def test_include_by_a_macro_is_not_kept(folder: Path, tmp_path: Path) -> None:
    """Which file it is only the compiler knows, so a change of it would go unnoticed."""
    for value in (1, 2):
        (tmp_path / "mine.h").write_text(f"#define VALUE {value}\n")
        code = '#define MINE "mine.h"\n#include MINE\nextern "C" int f() { return VALUE; }'
        assert call(host(code, f"-I{tmp_path}")) == value
    assert jit.cache_info().entries == 0


@needs_cuda_core
def test_headers_of_cuda(folder: Path, tmp_path: Path) -> None:
    """Those of the toolkit are found without being named, and the user's count by contents."""
    code = '#include <cuda_bf16.h>\n#include "mine.cuh"\n__global__ void f(T* x) {}'
    found = []
    for ctype in ("float", "__nv_bfloat16"):
        (tmp_path / "mine.cuh").write_text(f"using T = {ctype};\n")
        found.append(cuda(code, f"-I{tmp_path}", target="ptx", name_expressions=["f"]))
    assert [artefact.facts["names"]["f"] for artefact in found] == [
        "_Z1fPf",
        "_Z1fP13__nv_bfloat16",
    ]


def test_headers_of_the_compiler_count_by_their_contents(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that they include too; they are read again only where the file system says so."""
    library, inner = tmp_path / "library", tmp_path / "library" / "deep" / "inner.h"
    inner.parent.mkdir(parents=True)
    (library / "outer.h").write_text('#include "deep/inner.h"\n#include NAMED\n#include <none.h>\n')

    def fingerprints() -> list[str]:
        text = "#include <outer.h>\n"
        return includes.header_fingerprints(text, [], [str(library)])

    def write(text: str) -> None:
        inner.write_text(text)
        os.utime(inner, (0, 0))

    write("one")
    first = fingerprints()
    assert fingerprints() == first
    write("two")  # as long as before, and as old
    second = fingerprints()
    assert second != first
    write("one")
    assert fingerprints() == first
    inner.unlink()
    assert fingerprints() not in (first, second)
    write("one")
    assert fingerprints() == first
    for note in folder.glob("*.note"):
        note.write_bytes(note.read_bytes()[:-1])
    assert fingerprints() == first
    assert jit.cache_info().entries == 0 and jit.cache_info().bytes > 0
    with monkeypatch.context() as patch:
        patch.setattr(includes, "contents_of", None)
        assert fingerprints() == first
    jit.clear_cache()
    assert not list(folder.glob("*.note"))


# ---- errors


@needs_cuda_core
@pytest.mark.parametrize("compile", [compile_cuda, compile_host])
def test_error_names_the_string_and_the_line(compile: Any) -> None:
    source = Source.of(
        "// ours\n// ours",
        UserText("preamble", "// fine\n\n"),
        "namespace ours {",
        UserText("operation", "\n".join(f"static const int a{n} = {n};" for n in range(9))
                 + "\nstatic const int bad = missing;\n// after\n// more\n// last"),
        "}",
    )  # fmt: skip
    with pytest.raises(CompileError) as found:
        compile("my kernel", source)
    error = found.value
    assert (error.name, error.line) == ("operation", 10)
    assert "missing" in error.message
    assert str(error).startswith(f"my kernel does not compile: operation, line 10: {error.message}")
    shown = (
        "\n\n   8 | static const int a7 = 7;\n   9 | static const int a8 = 8;\n"
        "> 10 | static const int bad = missing;\n  11 | // after\n  12 | // more\n\n"
    )
    assert shown in str(error)
    assert "operation" in error.log and error.log in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.name, again.line, again.log) == (
        str(error), error.name, error.line, error.log
    )  # fmt: skip


@needs_cuda_core
@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("__global__ void f() {\n  int x = 1\n}", 3, 'expected a ";"'),
        ("__global__ void f() {\n  g();\n}", 2, 'identifier "g" is undefined'),
        ("\n\n#error this is wrong\n", 3, "this is wrong"),
        ("#include <no_such_header.h>", 1, "cannot open source file"),
        ("template <class T> __device__ T f(T x) { return x.y; }\n__global__ void g() { f(1); }",
         1, "expression must have class type"),
        ("__global__ void f() {\n", 1, 'expected a "}"'),
        ("__global__ void f() { asm(\"nonsense;\"); }", None, None),
    ],
)  # fmt: skip
def test_errors_of_nvrtc(code: str, line: int | None, message: str | None) -> None:
    with pytest.raises(CompileError) as found:
        cuda(code)
    assert found.value.line == line
    assert message is None or message in found.value.message
    assert len(found.value.log) > 10


@needs_cuda_core
def test_error_in_a_header(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("\n__device__ int f() { return x; }\n")
    with pytest.raises(CompileError, match=r'mine\.cuh\(2\): error: identifier "x" is undefined'):
        cuda('#include "mine.cuh"\n', f"-I{tmp_path}")


@needs_cuda_core
def test_name_that_means_nothing() -> None:
    with pytest.raises(CompileError, match=r"name_expressions, line 1: .*\(g<float>\)") as found:
        cuda("__global__ void f() {}", name_expressions=["f", "g<float>"])
    assert found.value.name == "name_expressions"
    assert found.value.line == 1
    artefact = cuda("__global__ void f() {}", name_expressions=["f", "g"], optional=["g"])
    assert artefact.facts["names"] == {"f": "_Z1fv"}


@needs_cuda_core
def test_unknown_option_is_named() -> None:
    with pytest.raises(CompileError, match="unrecognized option --nonsense"):
        cuda("__global__ void f() {}", "--nonsense")


# ---- architectures


@needs_cuda_core
def test_gpu_newer_than_the_compiler() -> None:
    """It gets PTX of the newest architecture that the compiler knows, which its driver compiles."""
    artefact = cuda("__global__ void f() {}", arch="sm_999")
    assert artefact.facts["format"] == "ptx"
    assert artefact.facts["arch"].startswith("compute_")
    assert b".entry" in artefact.data
    with pytest.raises(CompileError, match="arch"):
        cuda("__global__ void f() {}", arch="sm_20")


@needs_cuda_core
@pytest.mark.parametrize(
    "options",
    [("-arch=sm_80",), ("-arch", "sm_80"), ("--gpu-architecture=sm_80",), ("-arch sm_80",)],
)
def test_option_names_the_architecture(options: tuple[str, ...]) -> None:
    assert cuda("__global__ void f() {}", *options).facts["arch"] == "sm_80"


# ---- what a warm cache does without

WARM = """
import sys
sys.modules["cuda.core"] = None  # importing it raises
import torch_ops, torch_ops.jit
from torch_ops.jit.building.compilation import compile_cuda, compile_host
from torch_ops.jit.building.source import Source, UserText
compile_cuda("kernel", Source.of(UserText("code", "__global__ void f() {}")))
compile_host("kernel", Source.of(UserText("code", "int f() { return 1; }")))
assert "cuda.bindings.nvrtc" not in sys.modules
info = torch_ops.jit.cache_info()
print(info.hits, info.misses, info.compiles)
try:
    compile_cuda("my kernel", Source.of(UserText("code", "__global__ void g() {}")))
except ModuleNotFoundError as error:
    print(error)
"""


@needs_cuda_core
def test_warm_cache_needs_no_compiler(folder: Path) -> None:
    cuda("__global__ void f() {}")
    host("int f() { return 1; }")
    counts, error = run_python(WARM).splitlines()
    assert counts == "2 0 0"
    assert error.startswith(
        "my kernel must be compiled, which needs NVRTC and the package cuda-core"
    )
    assert 'pip install "cuda-core' in error


def test_torch_ops_does_not_load_jit() -> None:
    code = "import sys, torch_ops; print('torch_ops.jit' in sys.modules, torch_ops.jit.__name__)"
    assert run_python(code) == "False torch_ops.jit\n"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        sys.modules["torch_ops"].nothing  # noqa: B018


# ---- many processes


def compile_in_process(number: int) -> tuple[bytes, int]:
    artefact = host('extern "C" int f() { return 11; }')
    return artefact.data, compiles()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_sixteen_processes_compile_once(folder: Path) -> None:
    found = in_processes("fork", 16, compile_in_process, 0)
    assert len({data for data, _ in found}) == 1
    assert sum(count for _, count in found) == 1


@needs_cuda_core
def test_compiled_in_another_process(folder: Path) -> None:
    """The same key in each process, whatever the order of its dictionaries and its hash seed."""
    code = (
        "from torch_ops import jit; jit.RawModule('__global__ void f(T* x) {}',"
        "constants={'A': 1, 'T': __import__('torch').float16}).get_function('f');"
        "print(jit.cache_info().compiles)"
    )
    assert run_python(code) == "1\n"
    assert run("-c", code, cwd=ROOT, PYTHONHASHSEED="1").stdout == "0\n"  # the other's is random


def test_killed_compiler(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error like others, leaves no temporary file, and the next call tries again."""
    script, temporary = tmp_path / "killed", tmp_path / "temporary"
    script.write_text('#!/bin/sh\n[ $1 = --version ] || touch "$TMPDIR/part.s"\nkill -9 $$\n')
    script.chmod(0o755)
    temporary.mkdir()
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(CompileError, match="does not compile"):
        host('extern "C" int f() { return 1; }')
    assert list(temporary.iterdir()) == []
