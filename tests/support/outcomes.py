"""The outcomes of tests/test_support.py as data: the cells of the table of support."""

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


class Outcomes:
    """A plugin that keeps them: what the file had of devices that were not tested stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.devices: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        for name, cell in report.user_properties:
            if name == CELL:
                device, subject, check, described = cell
                checks = self.devices.setdefault(device, {}).setdefault(subject, {})
                checks.setdefault(check, {})[described] = report.outcome

    def pytest_sessionfinish(self) -> None:
        known = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        for device, subjects in self.devices.items():
            for subject, checks in subjects.items():
                for check, outcomes in checks.items():
                    kept = known.setdefault(device, {}).setdefault(subject, {})
                    kept.setdefault(check, {}).update(outcomes)
        text = json.dumps(known, indent=1, sort_keys=True)
        self.path.write_text(text + "\n", "utf-8")
