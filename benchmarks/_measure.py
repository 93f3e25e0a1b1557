"""What the benchmarks share: timers, checks, the running report, JSON and the plot.

A benchmark describes its cases as `Result`s, fills each by `Benchmark.measure`, and sets its bars.
To draw the plot again from the figures: ``python -m benchmarks._measure build/bench/gather.json``.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

import torch_ops

COPY_BYTES = 2**30
FLUSH_BYTES = 2**28  # several times the L2 of any GPU so far
SLOW_SECONDS = 1.0  # a call longer than this is timed once

# ---- timing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median and the 10th and 90th percentile of the repeats."""

    median: float
    p10: float
    p90: float
    repeats: int

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        if len(seconds) == 1:
            return Timing(seconds[0], seconds[0], seconds[0], 1)
        deciles = statistics.quantiles(seconds, n=10, method="inclusive")
        return Timing(statistics.median(seconds), deciles[0], deciles[-1], len(seconds))


@dataclass(frozen=True)
class Once:
    """One call: its output, its time, and the memory it took beyond inputs and output."""

    output: Tensor
    seconds: float
    scratch_bytes: int | None


class Timer(Protocol):
    device: torch.device

    def once(self, call: Callable[[], Tensor]) -> Once: ...

    def repeat(self, call: Callable[[], Tensor], repeats: int) -> tuple[Timing, str]:
        """Returns the times and a note, empty when there is nothing to say of them."""

    def recover(self) -> None:
        """Frees what a failed call held; raises RuntimeError when the device is lost."""


class CudaTimer:
    """CUDA events around each call, all of them queued before any is read."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self._flush_buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def _flush(self) -> None:
        # A write and not a read: a call then starts with an L2 full of lines that must be written
        # back, as it leaves one behind, so that no write is counted twice or not at all.
        self._flush_buffer.zero_()

    def _events(self, count: int) -> list[torch.cuda.Event]:
        return [torch.cuda.Event(enable_timing=True) for _ in range(count)]

    def once(self, call: Callable[[], Tensor]) -> Once:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start, end = self._events(2)
        start.record()
        output = call()
        end.record()
        torch.cuda.synchronize()
        scratch = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        return Once(output, start.elapsed_time(end) * 1e-3, scratch)

    def repeat(self, call: Callable[[], Tensor], repeats: int) -> tuple[Timing, str]:
        starts, ends = self._events(repeats), self._events(repeats)
        # Each flush takes the GPU longer than a launch takes the CPU, and these first ones give the
        # CPU a head start: it runs ahead, and the events time the GPU alone.
        for _ in range(8):
            self._flush()
        for start, end in zip(starts, ends, strict=True):
            self._flush()
            start.record()
            call()
            end.record()
        waited = starts[-1].query()  # the GPU had nothing left to do while the CPU issued this call
        torch.cuda.synchronize()
        seconds = [start.elapsed_time(end) * 1e-3 for start, end in zip(starts, ends, strict=True)]
        return Timing.of(seconds), "the GPU waited for the CPU" if waited else ""

    def recover(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class WallTimer:
    """The wall clock. What a call reads may be in a cache; others' work on the machine counts."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def once(self, call: Callable[[], Tensor]) -> Once:
        start = time.perf_counter()
        output = call()
        return Once(output, time.perf_counter() - start, None)

    def repeat(self, call: Callable[[], Tensor], repeats: int) -> tuple[Timing, str]:
        return Timing.of([self.once(call).seconds for _ in range(repeats)]), ""

    def recover(self) -> None:
        pass


def copy_ceiling(timer: Timer) -> float:
    """The bytes a second, read and written, of a copy within the device's memory."""
    nbytes = COPY_BYTES if timer.device.type == "cuda" else COPY_BYTES >> 5
    source = torch.randint(256, (nbytes,), dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    # An idle GPU takes a moment to raise its clocks.
    ready = time.perf_counter() + 0.3
    while time.perf_counter() < ready:
        timer.once(lambda: target.copy_(source))
    timing, _ = timer.repeat(lambda: target.copy_(source), 30)
    if not torch.equal(source, target):
        raise RuntimeError("the copy differs from what was copied")
    return 2 * nbytes / timing.median


# ---- checks -------------------------------------------------------------------------------------


class Wrong(Exception):
    """An output is not what it must be."""


@dataclass(frozen=True)
class Check:
    """An input, and what tells of the output for it: raises Wrong, or returns the error."""

    input: Tensor
    judge: Callable[[Tensor], float]


def must_equal(expected: Tensor) -> Callable[[Tensor], float]:
    """A judge that allows no bit to differ."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def judge(output: Tensor) -> float:
        for what in ("shape", "dtype"):
            found, wanted = getattr(output, what), getattr(expected, what)
            if found != wanted:
                raise Wrong(f"the {what} is {found}, not {wanted}")
        bits = same_size[expected.element_size()]
        if not torch.equal(output.view(bits), expected.view(bits)):
            count = (output.view(bits) != expected.view(bits)).sum().item()
            raise Wrong(f"{count} of {expected.numel()} elements differ")
        return 0.0

    return judge


def relative_error(reference: Tensor) -> Callable[[Tensor], float]:
    """A judge that returns ‖output - reference‖ / ‖reference‖, all in the reference's float64."""

    def judge(output: Tensor) -> float:
        if output.shape != reference.shape:
            raise Wrong(f"the shape is {tuple(output.shape)}, not {tuple(reference.shape)}")
        # In slices, for a float64 copy of the whole may be too large.
        flat, expected = output.reshape(-1), reference.reshape(-1)
        error = norm = 0.0
        for part, wanted in zip(flat.split(2**27), expected.split(2**27), strict=True):
            error += (part.double() - wanted).square_().sum().item()
            norm += wanted.square().sum().item()
        return math.sqrt(error / norm)

    return judge


# ---- figures ------------------------------------------------------------------------------------


Kind = Literal["ours", "own", "eager", "compiled"]


@dataclass(frozen=True)
class Implementation:
    """A way to compute the output from the checks' input.

    Kinds: ours, what is judged; own, another setting of ours; eager and compiled, the rivals.
    """

    name: str
    kind: Kind
    call: Callable[[Tensor], Tensor]


@dataclass
class Measurement:
    name: str
    kind: Kind
    timing: Timing | None = None
    errors: dict[str, float] = field(default_factory=dict)
    scratch_bytes: int | None = None
    note: str = ""
    failed: bool = False  # raised, or gave something wrong; left out on purpose is no failure


@dataclass(frozen=True)
class Bar:
    """What a case should reach; value None when it was not measured."""

    what: str
    value: float | None
    required: float
    sense: Literal[">=", "<="] = ">="

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.required if self.sense == ">=" else self.value <= self.required

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{self.what}: {value}, bar {self.sense} {self.required:.4g}"


@dataclass
class Result:
    """One case. `labels` names the summaries it counts in; in the plot it is `tag` in `panel`."""

    group: str
    name: str
    panel: str
    tag: str
    labels: tuple[str, ...]
    parameters: dict[str, Any]
    bytes: int
    facts: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    error: str = ""

    def find(self, name: str) -> Measurement | None:
        return next((each for each in self.measurements if each.name == name), None)

    def timed(self, *kinds: Kind) -> list[Measurement]:
        return [each for each in self.measurements if each.kind in kinds and each.timing]

    def seconds(self, *kinds: Kind) -> float | None:
        """The median of the fastest of these kinds."""
        return min((each.timing.median for each in self.timed(*kinds) if each.timing), default=None)

    def ratio(self, *kinds: Kind) -> float | None:
        """How many times faster ours is than the fastest of these kinds."""
        ours, others = self.seconds("ours"), self.seconds(*kinds)
        return others / ours if ours and others else None

    def fastest_eager(self) -> str:
        fastest = self.seconds("eager")
        rivals = [each for each in self.timed("eager") if each.timing]
        return next((each.name for each in rivals if each.timing.median == fastest), "")

    def bytes_per_second(self, kind: Kind) -> float | None:
        seconds = self.seconds(kind)
        return self.bytes / seconds if seconds else None


def geometric_mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(list(values))


# ---- the machine --------------------------------------------------------------------------------


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return f"CPU, {platform.machine()}"


def describe_machine(device: torch.device) -> dict[str, Any]:
    machine: dict[str, Any] = {
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


class DeviceLost(Exception):
    """After an error such as an illegal access no call on the device works any more."""


def argument_parser(benchmark: str, description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{benchmark}", description=description
    )
    parser.add_argument("--quick", action="store_true", help="a subset that takes under a minute")
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="where figures and plot go"
    )
    parser.add_argument(
        "--filter", nargs="+", metavar="TEXT", help="only cases whose name contains one of these"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="time torch.compile too (default: yes, but not with --quick)",
    )
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="start no case after that; names those left"
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="what is measured (default: cuda)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of the CPU (default: torch's own choice)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="shrinks the shapes, to try the script itself"
    )
    return parser


class Benchmark:
    """One run: measures, prints each line as it comes, and saves the figures after each case."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.began = time.perf_counter()
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
        self.date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        for key, value in self.machine.items():
            self._print(f"{key:16} {value}")
        nothing = torch.empty(1, device=self.device)
        overhead, _ = self.timer.repeat(lambda: nothing, 30)
        self.copy = {"start": copy_ceiling(self.timer), "end": math.nan}
        self.machine["empty_timing_seconds"] = overhead.median
        self._print(f"{'empty timing':16} {overhead.median * 1e6:.1f} us, not subtracted")
        self._print(f"{'copy ceiling':16} {self.copy['start'] * 1e-9:.0f} GB/s, read and written")
        if options.scale != 1:
            self._print("A trial of the script: the bars are those of the full sizes.")

    # -- one implementation of one case

    def measure(
        self, result: Result, implementation: Implementation, checks: dict[str, Check]
    ) -> Measurement:
        """Checks each input's output, then times the first input; records whatever goes wrong."""
        measurement = Measurement(implementation.name, implementation.kind)
        result.measurements.append(measurement)
        try:
            self._measure(measurement, implementation, checks)
        except torch.OutOfMemoryError:
            measurement.note, measurement.failed = "out of memory", True
        except Wrong as error:
            measurement.note, measurement.failed = f"WRONG: {error}", True
        except Exception as error:
            measurement.note = f"{type(error).__name__}: {first_line(error)}"
            measurement.failed = True
        self._print(self._line(result, measurement))
        if measurement.failed:
            self._recover(measurement.note)
        return measurement

    def _measure(
        self, measurement: Measurement, implementation: Implementation, checks: dict[str, Check]
    ) -> None:
        for position, (label, check) in enumerate(checks.items()):
            once = self.timer.once(lambda check=check: implementation.call(check.input))
            if position == 0 and once.seconds > SLOW_SECONDS:
                # The first call of a kind may have spent its time on loading or compiling kernels.
                known = (implementation.name, check.input.dtype) in self._called
                if not known or implementation.kind == "compiled":
                    measurement.note = f"first call {once.seconds:.1f} s"
                    once = self.timer.once(lambda check=check: implementation.call(check.input))
            self._called.add((implementation.name, check.input.dtype))
            measurement.errors[label] = check.judge(once.output)
            measurement.scratch_bytes = once.scratch_bytes
            if once.seconds > SLOW_SECONDS:
                measurement.timing = Timing.of([once.seconds])
                measurement.note = "one call"
                return
            del once  # its output's memory is for the next call

        first = next(iter(checks.values()))

        def call() -> Tensor:
            return implementation.call(first.input)

        # Each check was a warm-up; with these there are three, but fewer where a call is long.
        seconds = self.timer.once(call).seconds
        if seconds <= 50e-3:
            seconds = self.timer.once(call).seconds
        repeats = 5 if seconds > 50e-3 else 20 if seconds > 0.5e-3 else 50
        measurement.timing, note = self.timer.repeat(call, repeats)
        measurement.note = "; ".join(filter(None, (measurement.note, note)))

    def skip(self, result: Result, implementation: Implementation, note: str) -> None:
        measurement = Measurement(implementation.name, implementation.kind, note=note)
        result.measurements.append(measurement)
        self._print(self._line(result, measurement))

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
                    self.save()
                    advance(result.name)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        except DeviceLost as error:
            self.stopped = f"the device is lost after: {error}"
        self.left_out = [result.name for result, _ in tasks[done:]]

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

    def finish(self, summary_bars: Callable[[str, dict[str, Any]], list[Bar]]) -> int:
        """Prints the summary, saves it and the plot; returns the exit status."""
        if not self.stopped.startswith("the device is lost"):
            self.copy["end"] = copy_ceiling(self.timer)
        self._summarize(summary_bars)
        self.save()
        path = self._path(".json")
        self._print(f"\nfigures: {path}")
        try:
            self._print(f"plot: {plot(json.loads(path.read_text()), self._path('.png'))}")
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
            line += f"{timing.median * 1e6:11.1f} us {spread:24}{rate * 1e-9:6.0f} GB/s"
            line += f"  {rate / self.copy['start']:5.3f} of copy"
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
            (result.name, str(bar)) for result in self.results for bar in result.bars if not bar.met
        ]
        missed += [
            (result.name, f"FAILED {result.error}") for result in self.results if result.error
        ]
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
            missed += [(label, str(bar)) for bar in self.summary_bars[label] if not bar.met]
        for label, figures in self.summary.items():
            each = ", ".join(f"{name} {value:.2f}" for name, value in figures["over_each"].items())
            if each:
                self._print(f"{label}: over {each}")
        judged = sum(len(result.bars) for result in self.results)
        judged += sum(len(bars) for bars in self.summary_bars.values())
        self._print(f"\nMISSED: {len(missed)}, of {judged} bars")
        for name, bar in missed:
            self._print(f"  {name}: {bar}")
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


def header(result: Result) -> str:
    facts = [f"{result.bytes / 1e6:.1f} MB"]
    for name, value in result.facts.items():
        shown_value = f"{value:.3f}" if isinstance(value, float) else str(value)
        facts.append(f"{name.replace('_', ' ')} {shown_value}")
    return f"{result.name}: {', '.join(facts)}"


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


# ---- the plot -----------------------------------------------------------------------------------


def plot(data: dict[str, Any], path: Path) -> Path:
    """Draws the fraction of the copy ceiling over the bytes moved, in several panels."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels: dict[str, list[dict[str, Any]]] = {}
    for case in data["cases"]:
        panels.setdefault(case["panel"], []).append(case)
    if not panels:
        raise ValueError("no case was run")
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(6 * columns, 4.5 * rows), squeeze=False, layout="constrained"
    )
    legend: dict[str, Any] = {}
    for axis, (panel, cases) in zip(axes.flat, panels.items(), strict=False):
        _draw_panel(axis, panel, cases)
        handles, labels = axis.get_legend_handles_labels()
        legend.update(zip(labels, handles, strict=True))
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    machine, copy = data["machine"], float(data["copy_bytes_per_second"]["start"])
    figure.suptitle(
        f"{data['benchmark']}, {machine['device']}, torch {machine['torch']}, "
        f"copy {copy * 1e-9:.0f} GB/s, {data['date'][:10]}"
    )
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


# Kind, text, marker, colour; the colours can be told apart by the colour-blind too.
SERIES = [
    ("eager", "torch, the fastest eager way", "s", "#d55e00"),
    ("compiled", "torch.compile", "^", "#009e73"),
    ("own", "torch_ops, the faster of other settings", "D", "#56b4e9"),
    ("ours", "torch_ops", "o", "#0072b2"),
]


def _draw_panel(axis: Any, title: str, cases: list[dict[str, Any]]) -> None:
    cases = sorted(cases, key=lambda case: case["bytes"])
    positions = _apart([case["bytes"] for case in cases])
    drawn: list[list[float]] = [[] for _ in cases]
    for kind, label, marker, colour in SERIES:
        points = []
        for position, case, fractions in zip(positions, cases, drawn, strict=True):
            of_kind = [entry for entry in case["measurements"] if entry["kind"] == kind]
            best = max((entry.get("copy_fraction", 0) for entry in of_kind), default=0)
            if best:
                fractions.append(best)
                points.append((position, best))
        if points:
            x, y = zip(*points, strict=True)
            axis.plot(x, y, marker, color=colour, label=label, ms=6, alpha=0.85)
    for position, case, fractions in zip(positions, cases, drawn, strict=True):
        if fractions:
            axis.plot([position] * 2, [min(fractions), max(fractions)], "0.8", lw=1, zorder=0)
        ceiling = case["facts"].get("sector_ceiling")
        if ceiling:
            axis.plot(position, ceiling, "k_", ms=14, label="ceiling of whole 32-byte sectors")
        axis.annotate(
            case["tag"],
            (position, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=6.5,
            color="0.3",
        )
    axis.axhline(1, color="k", lw=0.8, ls="--", label="copy")
    axis.set_xscale("log")
    # Room at the foot of the panel for the tags.
    lowest = min((fraction for fractions in drawn for fraction in fractions), default=1.0)
    top = max((fraction for fractions in drawn for fraction in fractions), default=1.0)
    if lowest < 0.1:
        axis.set_yscale("log")
        top = max(top, 1.0) * 1.3
        axis.set_ylim(lowest * (lowest / top) ** 0.5, top)
    else:
        top = max(top, 1.0) * 1.08
        axis.set_ylim(-0.4 * top, top)
        axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= top])
    axis.set_title(title)
    axis.set_xlabel("bytes moved")
    axis.set_ylabel("fraction of the copy ceiling")
    axis.grid(True, which="major", alpha=0.3)


def _apart(positions: Sequence[float]) -> list[float]:
    """Moves what would lie on one another to the right: each a step beyond the one before."""
    span = max(math.log(positions[-1] / positions[0]), 0.7)
    step = math.exp(0.8 * span / max(len(positions), 12))
    moved: list[float] = []
    for position in positions:
        moved.append(max(position, moved[-1] * step if moved else position))
    return moved


if __name__ == "__main__":
    for argument in map(Path, sys.argv[1:]):
        print(plot(json.loads(argument.read_text()), argument.with_suffix(".png")))
