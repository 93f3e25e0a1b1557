#!/usr/bin/env python3
"""Keeps the figures of benchmark runs, and writes those that are kept into the documents.

    make bench                                        # on a quiet machine
    python tools/benchmark_page.py build/bench/*.json # keeps these runs; writes the documents
    python tools/benchmark_page.py                    # writes the documents alone

A run takes the place of an earlier one of the same benchmark on the same device. Several files of
one benchmark and device are parts of one run, as for cases that were left out for time. Where the
sources had no git, as on a machine that they were copied to, say what was measured: --commit HASH.

docs/internals/runs.md has all cases. In other documents, this program writes what is between such a
comment and the next <!-- end -->:

    <!-- cases gather + torch_ops, planned + error: backward f32 * uniform; rows * -->
    <!-- summary gather: rows = rows *; sums, uniform = backward * uniform -->
    <!-- summary host_cost -->
    <!-- steps models -->
    <!-- losses -->

"cases" makes a table of the cases that the patterns name, as "case" or "panel: case"; * stands for
any text. Each + adds columns: "of copy", "error", "memory", or the times of a way by its name.
"summary" makes a row of each pattern, or of each panel if there is no pattern. "steps" sets
training steps beside torch's, as they are and compiled. "losses" counts the cases of all runs in
which torch is faster, and lists the worst. "gather on the CPU" is a run with --device cpu. Columns
of which the run has no figures are left out. A block without a kept run stays as it is.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
PAGE = DOCS / "internals" / "runs.md"
BENCHMARKS = [
    "gather",
    "gather_family",
    "activations",
    "messages",
    "messages_compiled",
    "message_models",
    "models",
    "segments",
    "random_shapes",
    "random_ops",
    "transforms",
    "jit",
    "c_api",
    "host_cost",
    "distributed",
]
MACHINE = ("device", "cores", "threads", "driver", "cuda", "torch", "torch_ops", "python")
LEAST = 0.95  # of torch's speed; small calls vary by some percent
MOST = 25  # losses that are listed where all runs are
OURS = ("torch_ops", "ElementwiseKernel")  # where a benchmark compares ours with ours

Case = dict[str, Any]
Run = dict[str, Any]


class Refusal(SystemExit):
    pass


# ---- keeping a run ------------------------------------------------------------------------------


def rounded(value: float | str | None, factor: float = 1, digits: int = 4) -> float | None:
    # JSON has no infinity: it is text there.
    return None if value is None else float(f"{float(value) * factor:.{digits}g}")


def microseconds(measurement: dict[str, Any] | None) -> float | None:
    return rounded(measurement["timing"]["median"], 1e6) if measurement else None


def timed(case: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The calls of a kind that gave the right result, the fastest first."""
    found = [
        each
        for each in case["measurements"]
        if each["kind"] == kind and each["timing"] and not each["failed"]
    ]
    return sorted(found, key=lambda each: each["timing"]["median"])


def kept_cases(run: dict[str, Any]) -> Iterator[Case]:
    for case in run["cases"]:
        missed = [bar["what"] for bar in case["bars"] if not bar["met"]]
        if "microseconds" in case:  # of the host: several calls to a case
            for call, times in case["microseconds"].items():
                ways = {name: rounded(time) for name, time in times.items() if name != "torch_ops"}
                torch, way = min((time, name) for name, time in ways.items())
                yield {
                    "panel": call,
                    "name": case["name"],
                    "ours": rounded(times["torch_ops"]),
                    "torch": torch,
                    "way": way,
                    "compiled": None,
                    "missed": [what for what in missed if what.startswith(f"{call}:")],
                    "ways": ways,
                }
            continue
        best = {kind: next(iter(timed(case, kind)), None) for kind in ("ours", "eager", "compiled")}
        yield {
            "panel": case["panel"],
            "name": case["name"],
            "ours": microseconds(best["ours"]),
            "torch": microseconds(best["eager"]),
            "way": best["eager"]["name"] if best["eager"] else "",
            "compiled": microseconds(best["compiled"]),
            "missed": missed,
            **figures_beside_time(case, best["ours"], best["eager"]),
        }


def figures_beside_time(
    case: dict[str, Any], ours: dict[str, Any] | None, torch: dict[str, Any] | None
) -> dict[str, Any]:
    """Ours before torch's: the worst error, and the memory beyond arguments and result."""
    both = [ours or {}, torch or {}]
    others = [each for kind in ("own", "eager") for each in timed(case, kind)]
    worst = [max(map(float, each.get("errors", {}).values()), default=None) for each in both]
    return {
        "of copy": rounded(both[0].get("copy_fraction"), digits=3) if case.get("bytes") else None,
        "error": [rounded(each, digits=2) for each in worst],
        "memory": [rounded(each.get("scratch_bytes"), 1e-6) for each in both],
        "own": [each["name"] for each in timed(case, "own")],
        "ways": {each["name"]: microseconds(each) for each in others},
    }


def read_run(path: Path) -> dict[str, Any]:
    """What a benchmark has saved."""
    try:
        run: dict[str, Any] = json.loads(path.read_text("utf-8"))
        run["benchmark"], run["machine"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{path} does not hold the figures of a benchmark: {error!r}") from error
    return run


def full_name(case: Case) -> str:
    """A name alone may be that of cases in several panels."""
    return f"{case['panel']}: {case['name']}" if "panel" in case else case["name"]


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The run whose parts are given: their cases, and the facts of the first."""
    first = parts[0]
    machines = [part["machine"] for part in parts]
    differ = [
        name for name in (*MACHINE, "commit") if len({each.get(name) for each in machines}) > 1
    ]
    if differ:
        raise Refusal(f"{first['benchmark']}: parts of a run differ in {', '.join(differ)}")
    cases = {full_name(case): case for part in parts for case in part["cases"]}
    left_out = {name for part in parts for name in part["left_out"]} - cases.keys()
    stopped = next((part["stopped"] for part in parts if part["stopped"]), "")
    return {
        **first,
        "cases": list(cases.values()),
        "stopped": stopped if left_out else "",
        "left_out": sorted(left_out),
    }


def keep(run: dict[str, Any], commit: str | None) -> Path:
    """Writes what the documents need of a run to benchmarks/results."""
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
        "quick": run["options"].get("quick") == "True" or "[" in run["options"].get("filter", ""),
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


def kept_runs() -> list[Run]:
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(KEPT.glob("*.json"))]
    # GPUs first, in the order of the list above.
    return sorted(
        runs, key=lambda r: ("cuda" not in r["machine"], BENCHMARKS.index(r["benchmark"]))
    )


# ---- tables -------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three digits, as they are read: 0.972, 1.40, 302, 12590."""
    if value is None:
        return ""
    return f"{value:#.3g}".rstrip(".") if 1e-4 < value < 999.5 else f"{value:.0f}"


def small(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}" if 0 < value < 0.01 else number(value)


def ratio(case: Case, over: str = "torch") -> float | None:
    return case[over] / case["ours"] if case[over] and case["ours"] else None


def row(*texts: str) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def columns(cases: list[Case], more: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The heads and cells of a table's columns; those without any figure are left out later."""
    names = sorted({case["way"] for case in cases if case["way"]})
    torchs = names[0] if len(names) == 1 else "fastest rival"
    yield "ours, us", [number(case["ours"]) for case in cases]
    for over, head in (("torch", torchs), ("compiled", "torch.compile")):
        yield f"{head}, us", [number(case[over]) for case in cases]
        yield "ratio", [number(ratio(case, over)) for case in cases]
    for what in more:
        if what == "of copy":
            yield what, [number(case.get(what)) for case in cases]
        elif what in ("error", "memory"):
            heads = ("error", "torch's error") if what == "error" else ("MB", "torch's MB")
            values = [case.get(what, [None, None]) for case in cases]
            for side, head in enumerate(heads if any(map(any, values)) else ()):
                yield head, [small(each[side]) for each in values]
        else:
            times = [case.get("ways", {}).get(what) for case in cases]
            yield f"{what}, us", [number(time) for time in times]
    if len(names) > 1:
        yield "rival", [case["way"] for case in cases]


def table(cases: list[Case], head: str, label: str, more: list[str]) -> Iterator[str]:
    shown = [(name, cells) for name, cells in columns(cases, more) if any(cells)]
    heads = [head, *(name for name, _ in shown)]
    drawn = [str(place) for place, name in enumerate(heads, 1) if name == "ratio"]
    if drawn and len(cases) > 1:
        yield f"<!-- plot speed {' '.join(drawn)}: {label} -->"
    yield row(*heads)
    yield row("---", *("---" if name == "rival" else "---:" for name in heads[1:]))
    for case, *cells in zip(cases, *(cells for _, cells in shown), strict=True):
        yield row(case["name"], *cells)
    yield ""


def compared(run: Run) -> list[Case]:
    return [case for case in run["cases"] if ratio(case) and not case["way"].startswith(OURS)]


def title(run: Run) -> str:
    return f"{run['benchmark']}, {run['machine']['device']}"


def source(run: Run) -> str:
    """Where figures are from, for people and for the plots."""
    quick = ", a subset of the cases" if run["quick"] else ""
    return f"{title(run)}, {run['date'][:10]}, commit {run['commit']}{quick}"


def link(run: Run) -> str:
    anchor = re.sub(r"[^\w\- ]", "", title(run).lower()).replace(" ", "-")
    return f"runs.md#{anchor}"


# ---- all cases ----------------------------------------------------------------------------------

HEAD = """\
# Benchmark runs

Each section is one run, with its machine, date and commit. The cases in which torch is faster come
first. `tools/benchmark_page.py` writes this page from the figures that `make bench` saves.
[performance.md](../performance.md#how-it-was-measured) explains the words, and how calls are timed.

*Error* is ‖result - reference‖ / ‖reference‖ against float64, the worst of the inputs that were
checked; of activations it is the largest distance in ulp (units in the last place). *MB* is the
memory that a call allocates beyond its arguments and its result, at its peak.
"""
MISSING = "No run is kept of {}.\n"


def losses(
    named: list[tuple[str, Case]], rivals: list[str], least: float, most: int | None = None
) -> Iterator[str]:
    found = [
        (found_ratio, name, case, rival)
        for name, case in named
        for rival in rivals
        if (found_ratio := ratio(case, rival) or least) < least
    ]
    if not found:
        yield "In no case."
        return
    yield row("case", "ours, us", "torch, us", "ratio", "torch's way", "a bar is missed")
    yield row("---", "---:", "---:", "---:", "---", "---")
    for found_ratio, name, case, rival in sorted(found, key=lambda each: each[0])[:most]:
        times = number(case["ours"]), number(case[rival]), f"{found_ratio:.2f}"
        way = case["way"] if rival == "torch" else "torch.compile"
        yield row(name, *times, way, ", ".join(case["missed"]) or "no")


def panels(run: Run) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in run["cases"]:
        found.setdefault(case["panel"], []).append(case)
    return found


def all_cases(run: Run) -> Iterator[str]:
    for panel, cases in panels(run).items():
        own = dict.fromkeys(name for case in cases for name in case.get("own", []))
        label = f"{source(run)}, {panel}"
        yield from table(cases, panel, label, ["of copy", "error", "memory", *own])


def section(run: Run) -> Iterator[str]:
    machine = run["machine"]
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "device")
    slower = sum((ratio(case) or 1) < 1 for case in compared(run))
    yield f"## {title(run)}\n"
    yield (
        f"{run['date'][:10]}, commit `{run['commit']}`: {machine['device']}, {facts}"
        + (", a subset of the cases" if run["quick"] else "")
        + (f", stopped because {run['stopped']}" if run["stopped"] else "")
        + "."
    )
    if run["copy_gigabytes_per_second"]:
        yield f"A copy moved {run['copy_gigabytes_per_second']} GB/s, read and written."
    yield f"Torch is faster in {slower} of {len(compared(run))} cases.\n"
    yield f"### Where torch is faster: {title(run)}\n"
    named = [(f"{case['panel']}: {case['name']}", case) for case in compared(run)]
    yield from losses(named, ["torch"], 1)
    yield f"\n### All cases: {title(run)}\n"
    yield from all_cases(run)


def page(runs: list[Run]) -> str:
    missing = [name for name in BENCHMARKS if name not in {run["benchmark"] for run in runs}]
    lines = [HEAD]
    if missing:
        lines.append(MISSING.format(", ".join(f"`{name}`" for name in missing)))
    for run in runs:
        lines.extend(section(run))
    return "\n".join(lines).rstrip() + "\n"


# ---- blocks of other documents ------------------------------------------------------------------

BLOCK = re.compile(
    r"^(<!-- (cases|summary|steps|losses)\b([^>]*) -->\n)(.*?)(<!-- end -->)",
    re.MULTILINE | re.DOTALL,
)


def chosen(run: Run, pattern: str) -> list[Case]:
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    found = [
        case
        for case in run["cases"]
        if wanted.fullmatch(case["name"]) or wanted.fullmatch(full_name(case))
    ]
    if not found:
        names = "\n  ".join(f"{panel}: {cases[0]['name']}" for panel, cases in panels(run).items())
        raise Refusal(
            f"no case of the kept run of {title(run)} is named {pattern!r}; names are such as:\n"
            f"  {names}"
        )
    return found


def cases_block(run: Run, more: list[str], patterns: list[str]) -> Iterator[str]:
    cases = [case for pattern in patterns for case in chosen(run, pattern)]
    yield from table(cases, "case", source(run), more)
    yield f"From [{source(run)}]({link(run)})."


def summary_block(run: Run, patterns: list[str]) -> Iterator[str]:
    """A row of each `label = pattern`, or of each panel."""
    groups = panels(run)
    if patterns:
        named = [pattern.split(" = ", 1) for pattern in patterns]
        groups = {label: chosen(run, pattern) for label, pattern in named}
    compiled = any(case["compiled"] for cases in groups.values() for case in cases)
    heads = ["mean ratio", "worst", "below 1"]
    heads += ["over torch.compile: mean", "worst", "below 1"] if compiled else []
    yield row("", "cases", *heads)
    yield row("---", "---:", *["---:" for _ in heads])
    for label, cases in groups.items():
        cells = [str(len(cases))]
        for rival in ("torch", "compiled")[: 1 + compiled]:
            over = [each for case in cases if (each := ratio(case, rival))]
            cells.append(number(statistics.geometric_mean(over)) if over else "")
            cells += [number(min(over)), str(sum(each < 1 for each in over))] if over else ["", ""]
        yield row(label, *cells)
    yield f"\nGeometric means, from [{source(run)}]({link(run)})."


def steps_block(run: Run) -> Iterator[str]:
    """A row of each model: its training step beside torch's, also where both are compiled."""
    yield row("training step", "times as fast", "both compiled", "memory")
    yield row("---", "---:", "---:", "---:")
    for label, cases in panels(run).items():
        over = [
            [case["torch"] / case["ours"] for case in cases],
            [case["compiled"] / case["ways"]["torch_ops, compiled"] for case in cases],
            [case["memory"][0] / case["memory"][1] for case in cases],
        ]
        yield row(label, *(f"{statistics.geometric_mean(each):.2f}" for each in over))
    yield f"\nGeometric means, from [{source(run)}]({link(run)})."


def losses_block(runs: list[Run]) -> Iterator[str]:
    yield row("run", "cases", "ratio below 1", f"below {LEAST}")
    yield row("---", "---:", "---:", "---:")
    for run in runs:
        over = [ratio(case) or 1 for case in compared(run)]
        counts = [len(over), sum(each < 1 for each in over), sum(each < LEAST for each in over)]
        yield row(f"[{source(run)}]({link(run)})", *map(str, counts))
    yield f"\nThe lowest ratios below {LEAST}, over torch.compile too, {MOST} at most:\n"
    named = [
        (f"{run['benchmark']}: {case['name']}", case) for run in runs for case in compared(run)
    ]
    yield from losses(named, ["torch", "compiled"], LEAST, MOST)


def block(kind: str, words: str, old: str, runs: list[Run]) -> str:
    head, _, rest = " ".join(words.split()).partition(":")
    name, *more = head.split(" + ")
    patterns = [each.strip() for each in rest.split(";") if each.strip()]
    if kind == "losses":
        return "\n".join(losses_block(runs))
    benchmark = name.removesuffix(" on the CPU")
    if benchmark not in BENCHMARKS:
        raise Refusal(f"there is no benchmark {benchmark!r}")
    found = [
        run
        for run in runs
        if run["benchmark"] == benchmark and ("cuda" in run["machine"]) == (benchmark == name)
    ]
    if not found:
        return old.strip() or f"No run of {name} is kept."
    run = max(found, key=lambda run: run["date"])
    if kind == "steps":
        return "\n".join(steps_block(run))
    if kind == "cases":
        return "\n".join(cases_block(run, more, patterns))
    return "\n".join(summary_block(run, patterns))


def filled(text: str, runs: list[Run], name: str) -> str:
    """The text of a document with its blocks written anew; its name is its path."""
    to_runs = posixpath.relpath(PAGE.relative_to(ROOT).as_posix(), posixpath.dirname(name) or ".")

    def write(match: re.Match[str]) -> str:
        begin, kind, words, old, end = match.groups()
        try:
            lines = block(kind, words, old, runs).replace("](runs.md#", f"]({to_runs}#")
            return f"{begin}\n{lines}\n\n{end}"
        except Refusal as error:
            raise Refusal(f"{name}: {begin.strip()}: {error}") from None

    return BLOCK.sub(write, text)


def documents(runs: list[Run]) -> dict[Path, str]:
    """What each document that has figures should be."""
    paths = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    texts = {path: path.read_text("utf-8") for path in paths if path != PAGE}
    written = {
        path: filled(text, runs, path.relative_to(ROOT).as_posix())
        for path, text in texts.items()
        if BLOCK.search(text)
    }
    return {PAGE: page(runs), **written}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="figures that a benchmark has saved")
    parser.add_argument("--commit", help="what was measured, where the figures do not say it")
    options = parser.parse_args()
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in map(read_run, options.runs):
        parts.setdefault((run["benchmark"], run["machine"]["device"]), []).append(run)
    for runs in parts.values():
        print(f"kept: {keep(joined(runs), options.commit)}")
    for path, text in documents(kept_runs()).items():
        path.write_text(text, "utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
