#!/usr/bin/env python3
"""Writes the table of support in docs/architecture.md from the outcomes of tests.

    python -m pytest tests/test_support.py --support docs/support.json   # on the CPU, and on a GPU
    python tools/support_table.py                                        # --check: is it up to date?

docs/support.json keeps what ran where: a run replaces the outcomes of its own tests alone. So a
machine without a GPU renews the CPU's column.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ROOT / "docs" / "support.json"
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- support: written by tools/support_table.py -->"
END = "<!-- end of support -->"

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


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
    if not any(name in outcomes for name in wanted):
        return "not run"
    passed = [name for name in wanted if outcomes.get(name) == "passed"]
    if passed == wanted:
        return f"all {len(wanted)}"
    words = {None: "not run", "skipped": "skipped"}
    others: dict[str, list[str]] = {}
    for name in wanted:
        if name not in passed:
            outcome = outcomes.get(name)
            others.setdefault(words.get(outcome, str(outcome)), []).append(f"`{name}`")
    said = "; ".join(f"{outcome}: {', '.join(names)}" for outcome, names in others.items())
    return f"{len(passed)} of {len(wanted)}; {said}"


def exemptions(check: str, described: list[Any]) -> str:
    reasons: dict[str, list[str]] = {}
    for each in described:
        if check in each.exempt:
            reasons.setdefault(each.exempt[check], []).append(f"`{each}`")
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def render(known: dict[str, Any]) -> str:
    found = subjects()
    names = {subject: ", ".join(f"`{each}`" for each in found[subject][1]) for subject in found}
    lines = [f"Ops: {names['Transforms']}.", "", f"Layers: {names['Layers']}.", ""]
    for subject, (checks, described) in found.items():
        lines += [f"| {subject.lower()} | what | CPU | CUDA | not for |", "| --- " * 5 + "|"]
        for check, function in checks_of(checks).items():
            wanted = [str(each) for each in described if check not in each.exempt]
            cells = [
                cell(known.get(device, {}).get(subject, {}).get(check, {}), wanted)
                for device in ("cpu", "cuda")
            ]
            if subject == "Cuda":
                cells[0] = ""
            what = (function.__doc__ or "").strip().partition("\n\n")[0]
            title = check.replace("_", " ")
            row = [title, " ".join(what.split()), *cells, exemptions(check, described)]
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def written(text: str, table: str) -> str:
    """The document with the table in its place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCUMENT} has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is out of date")
    arguments = parser.parse_args()
    text = DOCUMENT.read_text("utf-8")
    table = render(json.loads(OUTCOMES.read_text("utf-8")))
    new = written(text, table)
    if arguments.check:
        raise SystemExit(int(new != text))
    DOCUMENT.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
