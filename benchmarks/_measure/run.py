"""One run of a benchmark: options, machine, the running report, and the figures in the end."""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_ops
from benchmarks._measure.figures import (
    Bar,
    Check,
    Implementation,
    Measurement,
    Result,
    Wrong,
    geometric_mean,
)
from benchmarks._measure.plot import plot
from benchmarks._measure.timing import CudaTimer, Timer, Timing, WallTimer, copy_ceiling

SLOW_SECONDS = 1.0  # a call longer than this is timed once
CASE_SECONDS = 0.75  # what the calls of a case may take, where that leaves enough of them
SAVE_SECONDS = 5.0  # figures are saved so often, for a run may be killed
FAR = 10  # a call that takes so many times as long as the fastest is repeated no further

# ---- the machine --------------------------------------------------------------------------------


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return f"CPU, {platform.machine()}"


def find_commit() -> str:
    """What is measured; "unknown" where the sources were copied without their git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=10"]
    folder = Path(torch_ops.__file__).parent
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return run.stdout.strip()


def describe_machine(device: torch.device) -> dict[str, Any]:
    machine: dict[str, Any] = {
        "commit": find_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_ops": torch_ops.__version__,
    }
    if device.type != "cuda":
        return {
            "device": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "l2_bytes": None,
            **machine,
        }
    properties = torch.cuda.get_device_properties(device)
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        version = driver.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        version = "unknown"
    return {
        "device": properties.name,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "driver": version,
        "cuda": torch.version.cuda,
        **machine,
    }


# ---- a run --------------------------------------------------------------------------------------


def choose_repeats(
    seconds: Sequence[float], most: int, case_seconds: float = CASE_SECONDS
) -> list[int]:
    """How often to repeat calls that take these times: alike, but for those that are far off."""
    fastest = min(seconds)
    least = 5 if fastest > 50e-3 else 20
    near = [each for each in seconds if each <= FAR * fastest]
    rounds = min(most, max(least, int(case_seconds / sum(near))))
    return [rounds if each <= FAR * fastest else min(rounds, 3) for each in seconds]


class DeviceLost(Exception):
    """After an error such as an illegal access no call on the device works any more."""


def positive(text: str) -> int:
    """The type of an option that counts something."""
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text):
        raise argparse.ArgumentTypeError(f"it must be an integer above 0, not {text!r}")
    return int(text)


def folder(text: str) -> Path:
    """The type of an option for results: made before the run, which would be in vain without."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be made: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written to")
    return path


def argument_parser(benchmark: str, description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{benchmark}", description=description
    )
    parser.add_argument("--quick", action="store_true", help="a subset that takes under a minute")
    parser.add_argument(
        "--out", type=folder, default="build/bench", help="where figures and plot go"
    )
    parser.add_argument(
        "--filter", nargs="+", metavar="TEXT", help="only cases whose name contains one of these"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="time torch.compile too (default: on CUDA, but not with --quick; messages: never)",
    )
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="start no case after that; names those left"
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="what is measured (default: cuda)"
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="of the CPU (default: torch's own choice)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="shrinks the shapes, to try the script itself"
    )
    return parser


class Benchmark:
    """One run: measures, prints each line as it comes, and saves the figures as they come."""

    def __init__(
        self, name: str, options: argparse.Namespace, case_seconds: float = CASE_SECONDS
    ) -> None:
        self.began = time.perf_counter()
        self.case_seconds = case_seconds
        self._saved = self.began
        if options.device == "cuda" and not torch.cuda.is_available():
            sys.exit("No CUDA device is visible. To measure the CPU: --device cpu")
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self.name = name
        self.options = options
        self.timer: Timer = CudaTimer() if options.device == "cuda" else WallTimer()
        self.device = self.timer.device
        self.results: list[Result] = []
        self.left_out: list[str] = []
        self.stopped = ""
        self.summary: dict[str, dict[str, Any]] = {}
        self.summary_bars: dict[str, list[Bar]] = {}
        self._called: set[tuple[str, torch.dtype]] = set()
        self._print: Callable[[str], None] = lambda line: print(line, flush=True)

        self.machine = describe_machine(self.device)
        self.date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        for key, value in self.machine.items():
            self._print(f"{key:16} {value}")
        nothing = torch.empty(1, device=self.device)
        ((overhead, _),) = self.timer.in_turn([lambda: nothing], [30])
        self.copy = {"start": copy_ceiling(self.timer), "end": math.nan}
        self.machine["empty_timing_seconds"] = overhead.median
        self._print(f"{'empty timing':16} {overhead.median * 1e6:.1f} us, not subtracted")
        self._print(f"{'copy ceiling':16} {self.copy['start'] * 1e-9:.0f} GB/s, read and written")
        if options.scale != 1:
            self._print("A trial of the script: the bars are those of the full sizes.")

    # -- the implementations of one case

    def measure(
        self,
        result: Result,
        implementations: Iterable[Implementation],
        checks: dict[str, Check],
    ) -> list[Measurement]:
        """Checks all outputs for each input, then times the calls on the first input in turn.

        Whatever goes wrong in a check is recorded.
        """
        measurements, right = [], []
        for implementation in implementations:
            measurement = Measurement(implementation.name, implementation.kind)
            result.measurements.append(measurement)
            measurements.append(measurement)
            try:
                if self._check(measurement, implementation, checks):
                    right.append((measurement, implementation.call))
            except torch.OutOfMemoryError:
                measurement.note, measurement.failed = "out of memory", True
            except Wrong as error:
                measurement.note, measurement.failed = f"WRONG: {error}", True
            except Exception as error:
                measurement.note = f"{type(error).__name__}: {first_line(error)}"
                measurement.failed = True
            if measurement.failed:
                self._recover(measurement.note)
        if right:
            self._time(right, next(iter(checks.values())).input, result.reads_only)
        for measurement in measurements:
            self._print(self._line(result, measurement))
        return measurements

    def _check(
        self, measurement: Measurement, implementation: Implementation, checks: dict[str, Check]
    ) -> bool:
        """Whether the call is short enough to be timed again."""
        for position, (label, check) in enumerate(checks.items()):
            once = self.timer.once(lambda check=check: implementation.call(check.input))
            if position == 0 and once.seconds > SLOW_SECONDS:
                # The first call of a kind may have spent its time on loading or compiling kernels;
                # ours are never that long, so something else was.
                known = (implementation.name, check.input.dtype) in self._called
                if not known or implementation.kind != "eager":
                    measurement.note = f"first call {once.seconds:.1f} s"
                    once = self.timer.once(lambda check=check: implementation.call(check.input))
            self._called.add((implementation.name, check.input.dtype))
            measurement.errors[label] = check.judge(once.output)
            measurement.scratch_bytes = once.scratch_bytes
            if once.seconds > SLOW_SECONDS:
                measurement.timing = Timing.of([once.seconds])
                measurement.note = "one call"
                return False
            del once  # its output's memory is for the next call
        return True

    def _time(
        self,
        right: list[tuple[Measurement, Callable[[Tensor], Tensor]]],
        given: Tensor,
        reads_only: bool,
    ) -> None:
        calls = [partial(call, given) for _, call in right]
        # The checks were a warm-up, and this is another.
        seconds = [self.timer.once(call).seconds for call in calls]
        repeats = choose_repeats(seconds, self.timer.most_rounds, self.case_seconds)
        timings = self.timer.in_turn(calls, repeats, reads_only)
        for (measurement, _), (timing, note) in zip(right, timings, strict=True):
            measurement.timing = timing
            measurement.note = "; ".join(filter(None, (measurement.note, note)))

    def add(self, result: Result, measurement: Measurement) -> None:
        """Records what a case has measured by itself: the host's time, say."""
        result.measurements.append(measurement)
        self._print(self._line(result, measurement))

    def skip(self, result: Result, implementation: Implementation, note: str) -> None:
        self.add(result, Measurement(implementation.name, implementation.kind, note=note))

    def _recover(self, note: str) -> None:
        try:
            if note:
                gc.collect()  # what a failed call held
            self.timer.recover()
        except RuntimeError as error:
            raise DeviceLost(note) from error

    # -- all cases

    def run(self, tasks: Sequence[tuple[Result, Callable[[], None]]]) -> None:
        """Fills each result by its function. One that fails is recorded, and the next is run."""
        # `timeout` sends SIGTERM; then too the run is to end in order, with summary and plot.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        done = 0
        try:
            with self._progress(len(tasks)) as advance:
                for result, fill in tasks:
                    elapsed = time.perf_counter() - self.began
                    if self.options.budget is not None and elapsed > self.options.budget:
                        self.stopped = f"the budget of {self.options.budget:g} s is spent"
                        break
                    self._print(f"\n[{done + 1}/{len(tasks)}, {elapsed:.0f} s] {header(result)}")
                    self.results.append(result)
                    done += 1
                    self._run_one(result, fill)
                    if time.perf_counter() > self._saved + SAVE_SECONDS:
                        self.save()
                    advance(result.name)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        except DeviceLost as error:
            self.stopped = f"the device is lost after: {error}"
        self.left_out = [f"{result.panel}: {result.name}" for result, _ in tasks[done:]]

    def _run_one(self, result: Result, fill: Callable[[], None]) -> None:
        try:
            fill()
        except (DeviceLost, KeyboardInterrupt) as error:
            result.error = result.error or f"{type(error).__name__}: {first_line(error)}"
            raise
        except Exception as error:
            result.error = f"{type(error).__name__}: {first_line(error)}"
        if result.error:
            self._print(f"  FAILED {result.error}")
        else:
            for bar in result.bars:
                if not bar.met:
                    self._print(f"  MISSED {bar}")
        # Here and not where the error was caught: by now nothing holds the case's tensors.
        self._recover(result.error)

    def finish(
        self,
        summary_bars: Callable[[str, dict[str, Any]], list[Bar]],
        draw: Callable[[dict[str, Any], Path], Path] = plot,
    ) -> int:
        """Prints the summary, saves it and the plot; returns the exit status."""
        if not self.stopped.startswith("the device is lost"):
            self.copy["end"] = copy_ceiling(self.timer)
        self._summarize(summary_bars)
        self.save()
        path = self._path(".json")
        self._print(f"\nfigures: {path}")
        try:
            self._print(f"plot: {draw(json.loads(path.read_text()), self._path('.png'))}")
        except Exception as error:  # the figures are worth more than the plot
            self._print(f"no plot: {type(error).__name__}: {first_line(error)}")
        # A bar that is missed is a figure. A failure of ours is a failure of the run.
        broken = any(
            each.failed for r in self.results for each in r.measurements if each.kind == "ours"
        )
        return int(broken or any(r.error for r in self.results))

    # -- what is printed

    def _line(self, result: Result, measurement: Measurement) -> str:
        line = f"  {measurement.name:34}"
        if measurement.timing:
            timing = measurement.timing
            rate = result.bytes / timing.median
            spread = f"({timing.p10 * 1e6:.1f} .. {timing.p90 * 1e6:.1f})"
            line += f"{timing.median * 1e6:11.1f} us {spread:24}"
            if result.bytes:
                line += f"{rate * 1e-9:6.0f} GB/s  {rate / self.copy['start']:5.3f} of copy"
            ours = result.seconds("ours")
            if ours and measurement.kind != "ours":
                line += f"  ours {timing.median / ours:6.2f}x"
        errors = {label: error for label, error in measurement.errors.items() if error or label}
        if errors:
            line += f"  error {' '.join(f'{label} {error:.1e}' for label, error in errors.items())}"
        if measurement.scratch_bytes and measurement.timing:
            line += f"  scratch {measurement.scratch_bytes / 1e6:.1f} MB"
        return f"{line}  {measurement.note}".rstrip()

    def _summarize(self, summary_bars: Callable[[str, dict[str, Any]], list[Bar]]) -> None:
        copy = self.copy
        missed = [
            (result.name, bar) for result in self.results for bar in result.bars if not bar.met
        ]
        failed = [result for result in self.results if result.error]
        labels = dict.fromkeys(label for result in self.results for label in result.labels)
        if labels:
            self._print("\nGeometric means (worst case): ours over others' time, > 1 is faster")
            self._print(
                f"{'':28}{'cases':>5}{'of copy':>16}{'over fastest eager':>21}{'over compiled':>18}"
            )
        for label in labels:
            results = [result for result in self.results if label in result.labels]
            figures = summarize(results, copy["start"])
            self.summary[label] = figures
            self._print(
                f"{label:28}{len(results):5}{shown(figures['copy_fraction']):>16}"
                f"{shown(figures['over_fastest_eager']):>21}{shown(figures['over_compiled']):>18}"
            )
            self.summary_bars[label] = summary_bars(label, figures)
            missed += [(label, bar) for bar in self.summary_bars[label] if not bar.met]
        for label, figures in self.summary.items():
            each = ", ".join(f"{name} {value:.2f}" for name, value in figures["over_each"].items())
            if each:
                self._print(f"{label}: over {each}")
        judged = sum(len(result.bars) for result in self.results)
        judged += sum(len(bars) for bars in self.summary_bars.values())
        self._print(f"\nMISSED: {len(missed)}, of {judged} bars")
        for name, bar in sorted(missed, key=lambda each: each[1].margin):
            self._print(f"  {name}: {bar}")
        if failed:
            self._print(f"\nFAILED: {len(failed)} cases")
            for result in failed:
                self._print(f"  {result.name}: {result.error}")
        if self.left_out:
            self._print(f"\nNOT RUN ({self.stopped}), {len(self.left_out)} cases:")
            for name in self.left_out:
                self._print(f"  {name}")
        elif self.stopped:
            self._print(f"\nSTOPPED: {self.stopped}")
        drift = copy["end"] / copy["start"]
        self._print(
            f"\ncopy ceiling {copy['start'] * 1e-9:.0f} GB/s at the start, "
            f"{copy['end'] * 1e-9:.0f} GB/s at the end"
            + (": IT MOVED, compare with care" if abs(drift - 1) > 0.03 else "")
        )

    @contextmanager
    def _progress(self, total: int) -> Iterator[Callable[[str], None]]:
        """A bar on stderr where that is a terminal; the lines themselves tell where it is not."""
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            yield lambda name: None
            return
        console = Console(stderr=True)
        if not console.is_terminal:
            yield lambda name: None
            return
        # Lines go above the bar if they go to the terminal too, and else where they always went.
        with Progress(console=console, redirect_stdout=sys.stdout.isatty()) as progress:
            task = progress.add_task(self.name, total=total)
            yield lambda name: progress.update(task, advance=1, description=name)

    # -- what is saved

    def _path(self, suffix: str) -> Path:
        return Path(self.options.out) / f"{self.name}{suffix}"

    def save(self) -> None:
        """Writes all figures so far, so that whatever ends the run, a whole file is there."""
        data = {
            "benchmark": self.name,
            "date": self.date,
            "options": {key: str(value) for key, value in vars(self.options).items()},
            "machine": self.machine,
            "copy_bytes_per_second": self.copy,
            "seconds": time.perf_counter() - self.began,
            "stopped": self.stopped,
            "left_out": self.left_out,
            "cases": [as_json(result, self.copy["start"]) for result in self.results],
            "summary": self.summary,
            "summary_bars": {
                label: [{**asdict(bar), "met": bar.met} for bar in bars]
                for label, bars in self.summary_bars.items()
                if bars
            },
        }
        path = self._path(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".json.part")
        unfinished.write_text(json.dumps(without_infinities(data), indent=1) + "\n")
        os.replace(unfinished, path)
        self._saved = time.perf_counter()


# ---- the figures as text and as JSON ------------------------------------------------------------


def header(result: Result) -> str:
    facts = [f"{result.bytes / 1e6:.1f} MB"] if result.bytes else []
    for name, value in result.facts.items():
        shown_value = f"{value:.3f}" if isinstance(value, float) else str(value)
        facts.append(f"{name.replace('_', ' ')} {shown_value}")
    return f"{result.name}: {', '.join(facts)}" if facts else result.name


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def shown(figure: dict[str, float] | None) -> str:
    return f"{figure['mean']:.3f} ({figure['worst']:.3f})" if figure else "-"


def summarize(results: Sequence[Result], copy: float) -> dict[str, Any]:
    """Geometric means over the cases where both sides were timed."""

    def of(values: Iterable[float | None]) -> dict[str, float] | None:
        known = [value for value in values if value]
        if not known:
            return None
        return {"mean": geometric_mean(known), "worst": min(known), "cases": len(known)}

    over_each: dict[str, list[float]] = {}
    for result in results:
        ours = result.seconds("ours")
        for rival in result.timed("own", "eager", "compiled"):
            if ours and rival.timing:
                over_each.setdefault(rival.name, []).append(rival.timing.median / ours)
    rates = [result.bytes_per_second("ours") for result in results]
    return {
        "cases": len(results),
        "copy_fraction": of(rate / copy if rate else None for rate in rates),
        "over_fastest_eager": of(result.ratio("eager") for result in results),
        "over_compiled": of(result.ratio("compiled") for result in results),
        "over_each": {name: geometric_mean(ratios) for name, ratios in over_each.items()},
    }


def as_json(result: Result, copy: float) -> dict[str, Any]:
    """The case's figures, with those that follow from them."""
    data = asdict(result)
    data["fastest_eager"] = result.fastest_eager()
    data["over_fastest_eager"] = result.ratio("eager")
    data["over_compiled"] = result.ratio("compiled")
    for bar, entry in zip(result.bars, data["bars"], strict=True):
        entry["met"] = bar.met
    ours = result.seconds("ours")
    for entry in data["measurements"]:
        if entry["timing"]:
            seconds = entry["timing"]["median"]
            entry["bytes_per_second"] = result.bytes / seconds
            entry["copy_fraction"] = result.bytes / seconds / copy
            entry["time_over_ours"] = seconds / ours if ours else None
    return data


def without_infinities(data: Any) -> Any:
    """JSON has no infinity and no NaN: they are written as text."""
    if isinstance(data, dict):
        return {key: without_infinities(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [without_infinities(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    return data
