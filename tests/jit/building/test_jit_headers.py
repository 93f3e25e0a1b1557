"""Headers that kernels include: a change of one is seen, in a new process and in the same one."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from jit_tools import forget, needs_cuda_core

from torch_ops import jit
from torch_ops._ext import jit as _ext
from torch_ops.jit import ElementwiseKernel, ReductionKernel, op
from torch_ops.jit.building.compilation import compile_cuda, compile_host
from torch_ops.jit.building.source import Source, UserText


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A header in a folder of its own, and a cache of this test's own, empty."""
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", str(tmp_path / "kernels"))
    jit.clear_cache()
    path = tmp_path / "headers" / "factor.h"
    path.parent.mkdir()
    return path


def compile_and_count(text: str, *options: str, value: int) -> int:
    """How often it was compiled so far; what is compiled now must give the value."""
    forget()
    code = text + '\nextern "C" int f() { return FACTOR; }'
    made = compile_host("kernel", Source.of(UserText("code", code)), options=options)
    address = _ext.host_symbol(_ext.load_host_library(made.data), "f")
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == value
    return jit.cache_info().compiles


@pytest.mark.parametrize(
    "include",
    [
        '#include "{name}"',
        '/**/ #include "{name}"',
        '/* of\ntwo * lines **/ #/**/include /* <none.h> */ "{name}"',
        '%:include "{name}"',
        '#import "{name}"',
        '#inc\\\nlude "{name}"',
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_every_form_of_include_is_followed(header: Path, include: str, absolute: bool) -> None:
    text = include.format(name=header if absolute else header.name)
    options = [] if absolute else [f"-I{header.parent}"]
    for value, compiles in ((1, 1), (2, 2), (1, 2)):
        header.write_text(f"#define FACTOR {value}\n")
        assert compile_and_count(text, *options, value=value) == compiles


@pytest.mark.parametrize("path", [":", "{}:", ":{}", "{}::{}"])
def test_empty_name_in_the_environment_is_the_current_folder(
    header: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(header.parent)
    monkeypatch.setenv("CPATH", path.format("/nowhere", "/nowhere"))
    for value in (1, 2):
        header.write_text(f"#define FACTOR {value}\n")
        assert compile_and_count("#include <factor.h>", value=value) == value


@pytest.mark.slow
@pytest.mark.parametrize("where", ["option", "absolute", "before", "macro"])
def test_kernel_that_is_made_again(header: Path, where: str) -> None:
    """In one process, though its text is the same; and one that was made before keeps its code."""
    preamble = {
        "option": "#include <factor.h>",
        "absolute": f'#include "{header}"',
        "before": "#include <outer.h>",
        "macro": f'#define NAMED "{header}"\n#include NAMED',
    }[where]
    (header.parent / "outer.h").write_text('#include "factor.h"\n')
    folder = f"-I{header.parent}"

    def make() -> tuple[ElementwiseKernel, ReductionKernel]:
        times = ElementwiseKernel(
            "T x", "T y", "y = x * FACTOR", "times", preamble=preamble, options=(folder,)
        )
        total = ReductionKernel(
            "T x", "T y", "x * FACTOR", "a + b", "y = a", 0, preamble=preamble, options=(folder,)
        )
        return times, total

    header.write_text("#define FACTOR 2\n")
    before, total_before = make()
    x = torch.ones(3)
    assert before(x).tolist() == [2] * 3 and total_before(x).item() == 6
    named = op("mine::times")(before)
    header.write_text("#define FACTOR 3\n")
    after, total_after = make()
    assert after(x).tolist() == [3] * 3 and total_after(x).item() == 9
    assert op("mine::times")(after)(x).tolist() == [3] * 3
    assert before(x).tolist() == named(x).tolist() == [2] * 3
    leaf = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(after(leaf).sum(), leaf)[0].tolist() == [3] * 3


@needs_cuda_core
@pytest.mark.parametrize("where", ["source", "option"])
def test_header_in_the_working_folder(
    header: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Where NVRTC looks for a quoted one first; there is another in a folder that is named."""
    monkeypatch.chdir(header.parent)
    Path("named").mkdir()
    Path("named", header.name).write_text("#define FACTOR 9\n")
    include = f'#include "{header.name}"' if where == "source" else ""
    options = ["-Inamed", *([f"--pre-include={header.name}"] if where == "option" else [])]
    found, ops = [], []
    for value in (1, 2, 1):
        header.write_text(f"#define FACTOR {value}\n")
        forget()
        code = f"{include}\n__device__ int named_{where} = FACTOR;"
        source = Source.of(UserText("code", code))
        found.append(compile_cuda("kernel", source, options=options, target="ptx").data)
        text = {"preamble": include, "options": options}
        ops.append(ElementwiseKernel("T x", "T y", "y = x * FACTOR", "times", **text)._op)
    assert found[0] == found[2] != found[1] and b"= 2;" in found[1]
    assert ops[0] is ops[2] is not ops[1]


def test_headers_that_exchange_their_contents(header: Path) -> None:
    text = '#include "first.h"\n#include "second.h"\n#define FACTOR (10 * FIRST + SECOND)'
    first, second = header.with_name("first.h"), header.with_name("second.h")
    define = "#ifndef FIRST\n#define FIRST {0}\n#else\n#define SECOND {0}\n#endif\n"
    for compiles, (one, other) in enumerate(((1, 2), (2, 1)), 1):
        first.write_text(define.format(one))
        second.write_text(define.format(other))
        value = 10 * one + other
        assert compile_and_count(text, f"-I{header.parent}", value=value) == compiles


def test_every_header_of_a_name_counts(header: Path) -> None:
    """The compiler searches -I before -isystem, and #include_next goes on to the next folder."""
    for kind in ("system", "user"):
        header.with_name(kind).mkdir()
    options = [f"-isystem{header.parent}/system", f"-I{header.parent}/user"]
    user, system = (header.parent / kind / header.name for kind in ("user", "system"))
    system.write_text("#define FACTOR 1\n")
    for value, text in ((2, "#define FACTOR 2"), (3, "#define FACTOR 3"), (1, "#include_next")):
        user.write_text(text.replace("next", "next <factor.h>") + "\n")
        compile_and_count("#include <factor.h>", *options, value=value)
    system.write_text("#define FACTOR 4\n")
    assert compile_and_count("#include <factor.h>", *options, value=4) == 4


def test_header_behind_a_link(header: Path) -> None:
    """What it includes in quotes lies beside the link."""
    header.with_name("kept").mkdir()
    header.with_name("kept").joinpath("outer.h").write_text(f'#include "{header.name}"\n')
    header.with_name("outer.h").symlink_to(header.with_name("kept") / "outer.h")
    text = f'#include "{header.with_name("outer.h")}"'
    for value in (1, 2):
        header.write_text(f"#define FACTOR {value}\n")
        assert compile_and_count(text, value=value) == value


OPTIONS = [
    ("-imacros", "{}"),
    ("-DINCLUDE", "-idirafter", "{folder}"),
    ("@{folder}/options",),
    ("-imacros{}",),
    ("--imacros={}",),
    ("-include{}",),
    ("-DINCLUDE", "-idirafter{folder}"),
    ("-Wp,-imacros,{}",),
    ("-Xpreprocessor", "-imacros", "-Xpreprocessor", "{}"),
]


@pytest.mark.parametrize(
    ("given", "options"),
    # CXX's are read in the same way.
    [*(("options", each) for each in OPTIONS), *(("CXX", each) for each in OPTIONS[:3])],
)
def test_header_of_an_option(
    header: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], given: str
) -> None:
    header.with_name("outer.h").write_text(f'#include "{header.name}"\n')
    header.with_name("options").write_text(f"@{header.parent}/inner\n")
    header.with_name("inner").write_text(f"-DINCLUDE '-I{header.parent}'\n")
    options = tuple(o.format(header.with_name("outer.h"), folder=header.parent) for o in options)
    if given == "CXX":
        monkeypatch.setenv("CXX", shlex.join(["g++", *options]))
        options = ()
    text = "#ifdef INCLUDE\n#include <outer.h>\n#endif"
    ops = []
    for value in (1, 2):
        header.write_text(f"#define FACTOR {value}\n")
        assert compile_and_count(text, *options, value=value) == value
        ops.append(ElementwiseKernel("T x", "T y", "y = x", preamble=text, options=options)._op)
    assert ops[0] is not ops[1]


@pytest.mark.parametrize("options", [("{0}/f.o",), ("-L{0}", "-lf"), ("-L", "{0}", "-l:libf.a")])
def test_object_of_an_option(header: Path, options: tuple[str, ...]) -> None:
    folder, text = header.parent, 'extern "C" int factor();\n#define FACTOR factor()'
    # Archives stand before the source that needs them.
    named = ["-Wl,-u,factor", *(option.format(folder) for option in options)]
    for value, compiles in ((1, 1), (2, 2), (1, 2)):
        (folder / "f.cpp").write_text(f'extern "C" int factor() {{ return {value}; }}\n')
        subprocess.run(["g++", "-fPIC", "-c", "f.cpp"], cwd=folder, check=True)
        subprocess.run(["ar", "rcD", "libf.a", "f.o"], cwd=folder, check=True)
        assert compile_and_count(text, *named, value=value) == compiles


def test_comments_hide_includes() -> None:
    """Also one that nothing ends, in no more time than it takes to read it."""
    from torch_ops.jit.building.includes import _includes_in

    text = b"""/*
# import numpy
#include MACRO
*/ #include "a.h" // #include "b.h"
char path[] = "/*"; // "
#include <c//d.h>
#import "e.h" /* and */
# /* a
blank */ include <f.h>
"""
    assert [name for name, _ in _includes_in(text, None)] == ["a.h", "c//d.h", "e.h", "f.h"]
    assert _includes_in(b"/* a\n" * 200_000 + b"#include <never.h>", None) == []
