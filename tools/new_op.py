"""Writes the files of a new elementwise op; it builds and passes tests with a placeholder formula.

    python tools/new_op.py softplus    # or: make new-op NAME=softplus

The templates are in tools/new_op/: `@op@` becomes the name, `@Op@` the name of its classes.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from argparse import ArgumentParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "tools" / "new_op"
# Words of C++ that name nothing in Python.
CXX_WORDS = """
    alignas alignof and_eq asm auto bitand bitor case catch char char16_t char32_t char8_t
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit
    decltype default delete do double dynamic_cast enum explicit export extern friend goto
    inline long mutable namespace new noexcept not_eq nullptr operator or_eq private protected
    public register reinterpret_cast requires short signed sizeof static static_assert
    static_cast std struct switch template this thread_local throw typedef typeid typename union
    unsigned using virtual void volatile wchar_t xor xor_eq
"""


def templates() -> list[Path]:
    return sorted(path for path in TEMPLATES.rglob("*") if path.is_file())


def class_name(op: str) -> str:
    """As torch_ops/ops/_elementwise.py makes it."""
    return "".join(word.capitalize() for word in op.split("_"))


def filled(text: str, op: str) -> str:
    return text.replace("@op@", op).replace("@Op@", class_name(op))


def target(template: Path, op: str) -> Path:
    return ROOT / filled(template.relative_to(TEMPLATES).as_posix().removesuffix(".in"), op)


def insert(path: Path, before: str, text: str) -> None:
    """Puts text before the only place that says `before`."""
    content = path.read_text(encoding="utf-8")
    if content.count(before) != 1:
        raise SystemExit(f"{path.relative_to(ROOT)} no longer has one {before!r}")
    path.write_text(content.replace(before, text + before), encoding="utf-8")


def names_of(op: str) -> list[str]:
    """What the op adds to the package, in the order of its imports."""
    cls = class_name(op)
    return [cls, f"{cls}Function", op, f"{op}_"]


def exported(content: str) -> str:
    """The lines of __all__ in the text of torch_ops/__init__.py."""
    names = re.search(r'^__all__ = \[\n((?:    ".*",\n)+)\]$', content, re.MULTILINE)
    if names is None:
        raise SystemExit("torch_ops/__init__.py has no list __all__")
    return names[1]


def refusal(op: str) -> str | None:
    """Why no new op can have this name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*", op):
        return "is not a name such as softplus or soft_clip"
    if keyword.iskeyword(op) or hasattr(builtins, op) or op in CXX_WORDS.split():
        return "is a word of Python or C++"
    package = ROOT / "torch_ops"
    public = exported((package / "__init__.py").read_text(encoding="utf-8"))
    names = [name for name in names_of(op) if f'"{name}"' in public]
    if names:
        return f"is taken: torch_ops has {', '.join(names)}"
    paths = [ROOT / "src" / op, package / op, package / f"{op}.py"]
    paths += [target(template, op) for template in templates()]
    there = [str(path.relative_to(ROOT)) for path in paths if path.exists()]
    return f"is taken: there is {', '.join(there)}" if there else None


def add_to_package(op: str) -> None:
    """Imports and exports the op's four names."""
    path = ROOT / "torch_ops" / "__init__.py"
    content = path.read_text(encoding="utf-8")
    before = exported(content)
    new = [f'    "{name}",\n' for name in names_of(op)]
    # As ruff sorts them: by the words in capitals, classes, others.
    after = sorted([*before.splitlines(keepends=True), *new], key=order)
    content = content.replace(before, "".join(after))
    imports = re.findall(r"^    from torch_ops\.ops\.(\w+) import", content, re.MULTILINE)
    later = [module for module in imports if module > op]
    place = f"    from torch_ops.ops.{later[0]} import" if later else "except ModuleNotFoundError"
    line = f"    from torch_ops.ops.{op} import {', '.join(names_of(op))}\n"
    path.write_text(content.replace(place, line + place, 1), encoding="utf-8")


def order(name: str) -> tuple[bool, str]:
    word = name.strip(' ",\n')
    return not word[0].isupper(), word


def add_to_documents(op: str) -> None:
    cls = class_name(op)
    example = (
        f"print(torch_ops.{op}_(torch_ops.{op}(torch.zeros(1))).item())  # 0.0\n"
        f"print(torch_ops.{cls}Function.apply(x).equal(torch_ops.{cls}()(x)))  # True\n"
    )
    insert(ROOT / "docs" / "tour.md", "```\n\n## Modules\n", example)


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("op", help="lower case, with underscores between words")
    op = parser.parse_args().op
    if reason := refusal(op):
        parser.error(f"{op!r} {reason}")
    add_to_package(op)
    add_to_documents(op)
    for template in templates():
        path = target(template, op)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(template.read_text(encoding="utf-8"), op), encoding="utf-8")
    print(f"{op} computes input / (1 + |input|) now. To make it yours, edit")
    for name, what in EDITS.items():
        print(f"  {filled(name, op):40}{filled(what, op)}")
    print(f"Then: make build OP={op}, make test TEST_ARGS='-k {op}', make format.")


EDITS = {
    "src/@op@/@op@_kernels.h": "@Op@ and @Op@Backward: the formulas",
    "src/@op@/@op@.cpp": "kSavesOutput and slope(); the texts of forward and backward",
    "torch_ops/ops/@op@.py": "docstring, saves=, self_check, DECOMPOSITIONS",
    "tests/elementwise/test_@op@.py": "saves=, tolerance=, what is special about the op",
    "docs/tour.md": "the example",
    "changelog.d/@op@.added.md": "what the op is for",
}

if __name__ == "__main__":
    sys.exit(main())
