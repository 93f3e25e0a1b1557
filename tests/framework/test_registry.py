"""What the package offers is registered, and says where it is from.

That every registered op has tests is checked in test_support.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from programs import ROOT, run_with_torch
from support.registry import is_no_op, registered

import torch_ops


def test_every_public_function_is_an_op() -> None:
    """But for those that are about all ops or about models, or keep plans."""
    functions = {
        name
        for name in torch_ops.__all__
        if name[0].islower() and not name.startswith("_") and not is_no_op(name)
    }
    assert {"gather", "relu"} <= functions
    assert functions <= registered()


def test_public_names_know_their_module() -> None:
    for name in torch_ops.__all__:
        if not name.startswith("_"):
            assert getattr(torch_ops, name).__module__ == "torch_ops", name
            assert getattr(torch_ops, name).__doc__, name


def test_modules_are_offered_before_they_are_loaded() -> None:
    """An interpreter's completion finds them, and import torch_ops does not wait for them."""
    code = """
import sys, torch_ops
for name in ("compat", "decompositions", "host", "jit"):
    assert name in dir(torch_ops), name
    assert f"torch_ops.{name}" not in sys.modules, name
    assert getattr(torch_ops, name) is sys.modules[f"torch_ops.{name}"], name
"""
    result = run_with_torch("-c", code, cwd=ROOT)
    assert result.returncode == 0, result.stdout


def types_of(header: Path) -> set[str]:
    """The classes and enums that a header defines, with their namespaces."""
    spaces, found = [], set()
    for line in header.read_text().splitlines():
        if begins := re.match(r"namespace (\S*) ?\{", line):
            spaces.append(begins[1])
        elif re.match(r"\}  // namespace", line):
            spaces.pop()
        elif (defines := re.match(r"(?:struct|class|enum class) ([\w:]+)(?! *<)", line)) and (
            not line.endswith(";")
        ):
            found.add("::".join([*spaces, defines[1]]))
    return found


def test_a_name_is_one_type() -> None:
    """In the headers of a folder: in one module two would be one symbol, by the linker's choice."""
    for folder in (ROOT / "src").iterdir():
        where = defaultdict(set)
        for header in [*folder.glob("*.h"), *folder.glob("*.cuh")]:
            for name in types_of(header):
                where[name].add(header.name)
        assert not {name: files for name, files in where.items() if len(files) > 1}, folder
