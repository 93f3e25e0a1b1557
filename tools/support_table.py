#!/usr/bin/env python3
"""Writes the table of support in docs/support.md from the outcomes of tests.

    python -m pytest tests/framework/test_support.py --support docs/internals/support.json
    python tools/support_table.py

The first is for a machine with a GPU and, where that has none, for any other.

docs/internals/support.json keeps what ran where: a run replaces the outcomes of its own tests
alone. So a machine without a GPU renews the CPU's column.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ROOT / "docs" / "internals" / "support.json"
DOCUMENT = ROOT / "docs" / "support.md"
BEGIN = "<!-- support: written by tools/support_table.py -->"
END = "<!-- end of support -->"

sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "framework")]

from support.outcomes import Cells, read  # noqa: E402


def subjects() -> dict[str, tuple[type, list[Any]]]:
    """Each subject's checks, and what they are run for."""
    import test_support as tests
    from support.streams import CudaChecks

    found = {
        name.removeprefix("Test"): (value.__mro__[1], tests.OPS)
        for name, value in vars(tests).items()
        if name.startswith("Test")
    }
    found["Layers"] = (found["Layers"][0], tests.LAYERS)
    return {**found, "Cuda": (CudaChecks, tests.OPS)}


def checks_of(checks: type) -> dict[str, Callable[..., None]]:
    return {
        name.removeprefix("test_"): function
        for name, function in vars(checks).items()
        if name.startswith("test_")
    }


def cell(outcomes: dict[str, str], wanted: list[str]) -> str:
    """What a row says of one device."""
    others: dict[str, list[str]] = {}
    for name in wanted:
        outcome = outcomes.get(name, "not run")
        if outcome != "passed":
            others.setdefault(outcome, []).append(f"`{name}`")
    passed = len(wanted) - sum(map(len, others.values()))
    if passed == len(wanted):
        return f"all {passed}"
    if passed == 0 and len(others) == 1:
        return next(iter(others))
    said = "; ".join(f"{outcome}: {', '.join(names)}" for outcome, names in others.items())
    return f"{passed} of {len(wanted)}; {said}"


def exemptions(check: str, described: list[Any], notes: list[str]) -> str:
    """The numbers of the notes that say what a check is not for."""
    reasons: dict[str, list[str]] = {}
    for each in described:
        if check in each.exempt:
            reasons.setdefault(each.exempt[check], []).append(f"`{each}`")
    numbers = []
    for reason, names in reasons.items():
        note = f"{', '.join(names)}: {reason}."
        if note not in notes:
            notes.append(note)
        numbers.append(str(notes.index(note) + 1))
    return ", ".join(numbers)


def render(cells: Cells) -> str:
    found = subjects()
    names = {subject: ", ".join(f"`{each}`" for each in found[subject][1]) for subject in found}
    lines = [f"Ops: {names['Transforms']}.", "", f"Layers: {names['Layers']}.", ""]
    notes: list[str] = []
    for subject, (checks, described) in found.items():
        lines += [f"| {subject.lower()} | what | CPU | CUDA | not for |", "| --- " * 5 + "|"]
        for check, function in checks_of(checks).items():
            wanted = [str(each) for each in described if check not in each.exempt]
            said = [
                cell({name: cells[at] for name in wanted if (at := (*row, name)) in cells}, wanted)
                for row in ((device, subject, check) for device in ("cpu", "cuda"))
            ]
            if subject == "Cuda":
                said[0] = ""
            what = " ".join((function.__doc__ or "").partition("\n\n")[0].split())
            title = check.replace("_", " ")
            row = [title, what, *said, exemptions(check, described, notes)]
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    lines += ["Not for:", ""]
    lines += [f"{number}. {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join(lines)


def written(text: str, table: str) -> str:
    """The document with the table in its place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCUMENT} has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is old")
    arguments = parser.parse_args()
    text = DOCUMENT.read_text("utf-8")
    table = render(read(OUTCOMES))
    new = written(text, table)
    if arguments.check:
        raise SystemExit(int(new != text))
    DOCUMENT.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
