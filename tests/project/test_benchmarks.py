"""What the benchmarks' figures rest on: calls in turn, checks before times; and that they run."""

from __future__ import annotations

import importlib
import itertools
import json
import weakref
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from programs import ROOT, run_with_torch
from torch import Tensor


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        import benchmarks._measure

        return benchmarks._measure


@pytest.fixture
def bench(measure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from benchmarks._measure import timing

    monkeypatch.setattr(timing, "COPY_BYTES", 2**20)
    options = measure.argument_parser("trial", "").parse_args(
        ["--device", "cpu", "--out", str(tmp_path)]
    )
    return measure.Benchmark("trial", options)


def empty_result(measure: ModuleType) -> Any:
    return measure.Result("group", "name", "panel", "tag", ("label",), {}, 8)


@pytest.mark.parametrize("repeats", [[5, 5, 5], [20, 3], [1], [7, 7, 2, 5]])
def test_turns_are_spread_over_the_rounds(measure: ModuleType, repeats: list[int]) -> None:
    from benchmarks._measure.timing import turns

    order = list(turns(repeats))
    assert Counter(order) == Counter(dict(enumerate(repeats)))
    for which, count in enumerate(repeats):
        # At any time each has had its share of the calls, but for the round that goes on.
        for end in range(len(order)):
            share = count * end / len(order)
            assert abs(order[:end].count(which) - share) <= 2


def test_rounds_differ_in_their_order(measure: ModuleType) -> None:
    from benchmarks._measure.timing import turns

    order = list(turns([50, 50, 50]))
    before = Counter(itertools.pairwise(order))
    for first in range(3):
        for second in set(range(3)) - {first}:
            assert before[first, second] > 10


def test_far_slower_calls_are_repeated_less(measure: ModuleType) -> None:
    from benchmarks._measure.run import choose_repeats

    assert choose_repeats([1e-6, 2e-6], most=200) == [200, 200]
    assert choose_repeats([5e-3, 5e-3, 0.5], most=200) == [75, 75, 3]
    assert choose_repeats([40e-3, 60e-3], most=200) == [20, 20]
    assert choose_repeats([0.2, 0.3, 0.9], most=200) == [5, 5, 5]


def test_scratch_on_the_cpu_is_what_is_freed_again(measure: ModuleType) -> None:
    from benchmarks._measure.timing import host_scratch

    x = torch.ones(2**18)
    # Operators allocate a few bytes of their own.
    assert 0 <= host_scratch(lambda: x.repeat(4)[:1].clone()) - 4 * x.nbytes < 1000
    assert 0 <= host_scratch(lambda: x.repeat(4)) < 1000


def test_calls_are_timed_in_turn_and_outputs_freed(measure: ModuleType, bench: Any) -> None:
    bench.case_seconds = 60.0  # enough for all calls on a busy machine too
    alive: list[weakref.ref[Tensor]] = []
    order: list[str] = []

    def way(name: str) -> Any:
        def call(given: Tensor) -> Tensor:
            assert all(output() is None for output in alive), "an output outlives its call"
            order.append(name)
            output = given + 1
            alive.append(weakref.ref(output))
            return output

        return measure.Implementation(name, "ours" if name == "a" else "eager", call)

    given = torch.zeros(4)
    check = measure.Check(given, measure.must_equal(torch.ones(4)))
    result = empty_result(measure)
    found = bench.measure(result, [way("a"), way("b")], {"": check})
    assert [each.name for each in found] == ["a", "b"]
    assert [each.timing.repeats for each in found] == [200, 200]
    timed = order[-400:]
    for start in range(0, 400, 2):
        assert set(timed[start : start + 2]) == {"a", "b"}


def test_what_is_wrong_is_not_timed(measure: ModuleType, bench: Any) -> None:
    def raises(given: Tensor) -> Tensor:
        raise RuntimeError("no such kernel\nmore")

    implementations = [
        measure.Implementation("right", "ours", lambda given: given + 1),
        measure.Implementation("wrong", "eager", lambda given: given + 2),
        measure.Implementation("raises", "eager", raises),
    ]
    given = torch.zeros(4)
    check = measure.Check(given, measure.must_equal(torch.ones(4)))
    result = empty_result(measure)
    right, wrong, raised = bench.measure(result, implementations, {"": check})
    assert right.timing is not None and not right.failed
    assert wrong.timing is None and wrong.failed and wrong.note == "WRONG: 4 of 4 elements differ"
    assert raised.timing is None and raised.failed
    assert raised.note == "RuntimeError: no such kernel"
    assert result.measurements == [right, wrong, raised]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gather", ["--quick"]),
        ("gather_family", ["--quick", "--only", "scatter", "points"]),
        ("random_shapes", ["--quick"]),
        ("activations", ["--quick", "--filter", "bf16"]),
        ("models", ["--quick"]),
        ("message_models", ["--quick"]),
    ],
)
def test_a_small_run_checks_and_times_all(name: str, arguments: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--device", "cpu", "--scale", "0.02", "--threads", "1", "--out", str(tmp_path)]
    result = run_with_torch("-m", f"benchmarks.{name}", *options, *arguments, cwd=ROOT)
    assert result.returncode == 0, result.stdout[-4000:]
    figures = json.loads((tmp_path / f"{name}.json").read_text())
    assert len(figures["cases"]) > 3 and not figures["left_out"]
    for case in figures["cases"]:
        assert not case["error"]
        ours, *others = case["measurements"]
        assert ours["kind"] == "ours" and not ours["failed"]
        assert others and all(each["timing"] for each in (ours, *others))
    assert (tmp_path / f"{name}.png").stat().st_size > 0


# ---- runs that are kept --------------------------------------------------------------------------


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("benchmark_page")


def test_page_is_written_from_the_runs_that_are_kept(pages: ModuleType) -> None:
    found = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
    assert sorted(pages.BENCHMARKS) == found
    assert pages.PAGE.read_text("utf-8") == pages.page(pages.kept_runs()), (
        "docs/runs.md is out of date: python tools/benchmark_page.py"
    )


def test_a_run_that_is_kept_shows_its_losses_first(
    pages: ModuleType, measure: ModuleType, bench: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pages, "KEPT", tmp_path / "results")
    from benchmarks._measure.timing import Timing

    for name, seconds in (("faster", 1e-6), ("slower", 4e-6)):
        result = empty_result(measure)
        result.name = name
        times = {"torch_ops": ("ours", seconds), "torch.take": ("eager", 2e-6)}
        for way, (kind, median) in times.items():
            timing = Timing.of([median])
            result.measurements.append(measure.Measurement(way, kind, timing))
        result.bars = [measure.Bar("over fastest eager", result.ratio("eager"), 1.0)]
        bench.results.append(result)
    bench.name = "gather"
    bench.save()
    run = json.loads((tmp_path / "gather.json").read_text())
    commit = run["machine"]["commit"]
    assert commit == "unknown" or len(commit.removesuffix("-dirty")) >= 10
    run["machine"]["commit"] = "unknown"
    with pytest.raises(SystemExit, match="--commit"):
        pages.keep(run, None)
    assert pages.keep(run, "0123456789").parent == tmp_path / "results"

    text = pages.page(pages.kept_runs())
    assert "commit `0123456789`" in text and run["date"][:10] in text
    assert run["machine"]["device"] in text and "`activations`" in text
    assert "Torch is faster in 1 of 2 cases." in text
    loss = "slower | 4 | 2 | 0.50 | torch.take | over fastest eager |"
    assert (
        text.index(loss) < text.index("<!-- plot speed 4: ") < text.index("| faster | 1 | 2 | 2 |")
    )
    run["options"]["scale"] = "0.02"
    with pytest.raises(SystemExit, match="trial"):
        pages.keep(run, "0123456789")
