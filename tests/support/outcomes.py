"""The outcomes of tests/framework/test_support.py as data: the cells of the table of support."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CELL = "cell"


def mark_cells(items: list[pytest.Item]) -> None:
    """Says of each test of test_support.py which device, subject, check, and op or layer it is."""
    for item in items:
        case = getattr(item, "callspec", None)
        if item.path.stem != "test_support" or case is None:
            continue
        described = case.params.get("op") or case.params.get("layer")
        subject = item.cls.__name__.removeprefix("Test")  # type: ignore[attr-defined]
        check = item.originalname.removeprefix("test_")  # type: ignore[attr-defined]
        device = str(case.params["device"])
        item.user_properties.append((CELL, [device, subject, check, str(described)]))


# device, subject, check, op or layer: outcome
Cells = dict[tuple[str, str, str, str], str]


def read(path: Path) -> Cells:
    """The cells that a file has; in it a line has all names of one outcome of a check."""
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {
        (device, subject, check, name): outcome
        for device, subjects in known.items()
        for subject, checks in subjects.items()
        for check, outcomes in checks.items()
        for outcome, names in outcomes.items()
        for name in names.split()
    }


def write(path: Path, cells: Cells) -> None:
    known: dict[str, Any] = {}
    for (device, subject, check, name), outcome in sorted(cells.items()):
        checks = known.setdefault(device, {}).setdefault(subject, {})
        outcomes = checks.setdefault(check, {})
        outcomes[outcome] = f"{outcomes.get(outcome, '')} {name}".strip()
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")


class Outcomes:
    """A plugin that keeps them; what the file had of tests that were not run stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: Cells = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        for name, cell in report.user_properties:
            if name == CELL:
                self.cells[tuple(cell)] = report.outcome

    def pytest_sessionfinish(self) -> None:
        write(self.path, {**read(self.path), **self.cells})
