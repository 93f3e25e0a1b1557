#!/usr/bin/env python3
"""Keeps the figures of benchmark runs, and writes docs/runs.md from those that are kept.

    make bench                                        # on a quiet machine
    python tools/benchmark_page.py build/bench/*.json # keeps these runs; writes the page
    python tools/benchmark_page.py                    # writes the page alone

A run takes the place of an earlier one of the same benchmark on the same device. Where the sources
had no git, as on a machine that they were copied to, say what was measured: --commit HASH.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "runs.md"
BENCHMARKS = [
    "gather",
    "gather_family",
    "activations",
    "messages",
    "message_models",
    "models",
    "segments",
    "random_shapes",
    "transforms",
    "jit",
    "c_api",
    "host_cost",
    "distributed",
]
MACHINE = ("device", "cores", "threads", "driver", "cuda", "torch", "torch_ops", "python")


class Refusal(SystemExit):
    pass


# ---- keeping a run ------------------------------------------------------------------------------


def microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds * 1e6:.4g}")


def fastest(case: dict[str, Any], kind: str) -> tuple[float | None, str]:
    """The median of the fastest call of a kind that gave the right result, and its name."""
    timed = [
        (each["timing"]["median"], each["name"])
        for each in case["measurements"]
        if each["kind"] == kind and each["timing"] and not each["failed"]
    ]
    return min(timed, default=(None, ""))


def kept_cases(run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for case in run["cases"]:
        missed = [bar["what"] for bar in case["bars"] if not bar["met"]]
        if "microseconds" in case:  # of the host: several calls to a case
            for call, times in case["microseconds"].items():
                ours = times["torch_ops"]
                torch, name = min((t, name) for name, t in times.items() if name != "torch_ops")
                yield {
                    "panel": call,
                    "name": case["name"],
                    "ours": microseconds(ours / 1e6),
                    "torch": microseconds(torch / 1e6),
                    "way": name,
                    "compiled": None,
                    "missed": [what for what in missed if what.startswith(f"{call}:")],
                }
            continue
        torch, name = fastest(case, "eager")
        yield {
            "panel": case["panel"],
            "name": case["name"],
            "ours": microseconds(fastest(case, "ours")[0]),
            "torch": microseconds(torch),
            "way": name,
            "compiled": microseconds(fastest(case, "compiled")[0]),
            "missed": missed,
        }


def keep(run: dict[str, Any], commit: str | None) -> Path:
    """Writes what the page needs of a run to benchmarks/results."""
    machine = run["machine"]
    commit = commit or machine.get("commit", "unknown")
    if commit == "unknown":
        raise Refusal(f"{run['benchmark']}: of which commit is this run? Name it: --commit HASH")
    if float(run["options"].get("scale", 1)) != 1:
        raise Refusal(f"{run['benchmark']}: a run with --scale is a trial, and is not kept")
    copy = run.get("copy_bytes_per_second")
    content = {
        "benchmark": run["benchmark"],
        "date": run["date"],
        "commit": commit,
        "machine": {name: machine[name] for name in MACHINE if machine.get(name) is not None},
        "quick": run["options"].get("quick") == "True",
        "copy_gigabytes_per_second": round(copy["start"] / 1e9) if copy else None,
        "stopped": run.get("stopped", ""),
        "left_out": run.get("left_out", []),
        "cases": list(kept_cases(run)),
    }
    device = re.sub(r"\W+", "-", machine["device"]).strip("-").lower()
    path = KEPT / f"{run['benchmark']}-{device}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def kept_runs() -> list[dict[str, Any]]:
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(KEPT.glob("*.json"))]
    # GPUs first, in the order of the list above.
    return sorted(
        runs, key=lambda r: ("cuda" not in r["machine"], BENCHMARKS.index(r["benchmark"]))
    )


# ---- the page -----------------------------------------------------------------------------------

HEAD = """\
# Benchmark runs

Each section is one run, with its machine, date and commit. The cases in which torch is faster come
first. `tools/benchmark_page.py` writes this page from the figures that `make bench` saves.
[performance.md](performance.md#how-it-was-measured) explains the words, and how calls are timed.
"""
MISSING = """\
No run is kept of {}.
The tables in [figures.md](figures.md) and [performance.md](performance.md) were copied by hand from
runs whose files were not kept: they name the machine, but not the commit.
"""


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def ratio(case: dict[str, Any], over: str = "torch") -> float | None:
    return case[over] / case["ours"] if case[over] and case["ours"] else None


def row(*texts: str) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def losses(run: dict[str, Any]) -> list[str]:
    slower = [case for case in run["cases"] if (ratio(case) or 1) < 1]
    if not slower:
        return ["In no case."]
    lines = [
        row("case", "ours, us", "torch, us", "ratio", "torch's way", "a bar is missed"),
        row("---", "---:", "---:", "---:", "---", "---"),
    ]
    for case in sorted(slower, key=lambda case: ratio(case) or 1):
        times = number(case["ours"]), number(case["torch"]), f"{ratio(case):.2f}"
        name = f"{case['panel']}: {case['name']}"
        lines.append(row(name, *times, case["way"], ", ".join(case["missed"]) or "no"))
    return lines


def all_cases(run: dict[str, Any], label: str) -> Iterator[str]:
    panels: dict[str, list[dict[str, Any]]] = {}
    for case in run["cases"]:
        panels.setdefault(case["panel"], []).append(case)
    for panel, cases in panels.items():
        compiled = any(case["compiled"] for case in cases)
        if any(ratio(case) for case in cases):
            columns = "4 6" if compiled else "4"
            yield f"<!-- plot speed {columns}: {label}, {panel} -->"
        head = ["ours, us", "fastest of torch's, us", "ratio"]
        head += ["torch.compile, us", "ratio"] if compiled else []
        yield row(panel, *head)
        yield row("---", *["---:"] * len(head))
        for case in cases:
            texts = [number(case["ours"]), number(case["torch"]), number(ratio(case))]
            texts += [number(case["compiled"]), number(ratio(case, "compiled"))] if compiled else []
            yield row(case["name"], *texts)
        yield ""


def section(run: dict[str, Any]) -> Iterator[str]:
    machine = run["machine"]
    title = f"{run['benchmark']}, {machine['device']}"
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "device")
    compared = [case for case in run["cases"] if ratio(case)]
    slower = sum((ratio(case) or 1) < 1 for case in compared)
    yield f"## {title}\n"
    yield (
        f"{run['date'][:10]}, commit `{run['commit']}`: {machine['device']}, {facts}"
        + (", a subset of the cases (`--quick`)" if run["quick"] else "")
        + (f", stopped because {run['stopped']}" if run["stopped"] else "")
        + "."
    )
    if run["copy_gigabytes_per_second"]:
        yield f"A copy moved {run['copy_gigabytes_per_second']} GB/s, read and written."
    yield f"Torch is faster in {slower} of {len(compared)} cases.\n"
    yield f"### Where torch is faster: {title}\n"
    yield from losses(run)
    yield f"\n### All cases: {title}\n"
    yield from all_cases(run, f"{title}, {run['date'][:10]}, commit {run['commit']}")


def page(runs: list[dict[str, Any]]) -> str:
    missing = [name for name in BENCHMARKS if name not in {run["benchmark"] for run in runs}]
    lines = [HEAD]
    if missing:
        lines.append(MISSING.format(", ".join(f"`{name}`" for name in missing)))
    for run in runs:
        lines.extend(section(run))
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="figures that a benchmark has saved")
    parser.add_argument("--commit", help="what was measured, where the figures do not say it")
    options = parser.parse_args()
    for path in options.runs:
        print(f"kept: {keep(json.loads(path.read_text('utf-8')), options.commit)}")
    PAGE.write_text(page(kept_runs()), "utf-8")
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
