"""Headers that kernels include: a change of one is seen, in a new process and in the same one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jit_tools import forget

from torch_ops import jit
from torch_ops.jit import ElementwiseKernel, ReductionKernel, op
from torch_ops.jit._compile import compile_host
from torch_ops.jit._source import Source, UserText


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A header in a folder of its own, and a cache of this test's own, empty."""
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", str(tmp_path / "kernels"))
    jit.clear_cache()
    path = tmp_path / "headers" / "factor.h"
    path.parent.mkdir()
    return path


def compile_and_count(text: str, *options: str) -> int:
    forget()
    code = text + '\nextern "C" int f() { return FACTOR; }'
    compile_host("kernel", Source.of(UserText("code", code)), options=options)
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
        assert compile_and_count(text, *options) == compiles


@pytest.mark.parametrize("path", [":", "{}:", ":{}", "{}::{}"])
def test_empty_name_in_the_environment_is_the_current_folder(
    header: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(header.parent)
    monkeypatch.setenv("CPATH", path.format("/nowhere", "/nowhere"))
    for value in (1, 2):
        header.write_text(f"#define FACTOR {value}\n")
        assert compile_and_count("#include <factor.h>") == value


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


def test_comments_hide_includes() -> None:
    """Also one that nothing ends, in no more time than it takes to read it."""
    from torch_ops.jit._headers import _includes_in

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
