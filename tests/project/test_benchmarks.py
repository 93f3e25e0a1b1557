"""What the benchmarks' figures rest on: calls in turn, checks before times; and that they run."""

from __future__ import annotations

import importlib
import itertools
import json
import math
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


def test_calls_are_timed_in_turn_and_outputs_freed(
    measure: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for all calls on a busy machine too, where one may seem far slower than the other.
    bench.case_seconds = 60.0
    monkeypatch.setattr("benchmarks._measure.run.FAR", math.inf)
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


def test_infinity_is_right_where_the_dtype_ends(measure: ModuleType) -> None:
    exact = torch.tensor([3.0, 1e6, -1e6], dtype=torch.float64)
    judge = measure.relative_error(exact)
    assert judge(exact.half()) == 0
    assert judge(torch.tensor([3, torch.inf, torch.inf], dtype=torch.float16)) == torch.inf
    assert judge(torch.tensor([torch.inf, torch.inf, -torch.inf]).half()) == torch.inf
    assert judge(torch.tensor([3.0, 65504, -torch.inf]).half()) > 0.5


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gather", ["--quick"]),
        ("gather_family", ["--quick", "--only", "scatter", "points"]),
        ("random_shapes", ["--quick"]),
        ("random_ops", ["--quick"]),
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


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--threads", "0", "it must be an integer above 0, not '0'"),
        ("--threads", "-2", "it must be an integer above 0, not '-2'"),
        ("--out", "/dev/null/there", "/dev/null/there cannot be made"),
    ],
)
def test_wrong_options(
    measure: ModuleType, option: str, value: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        measure.argument_parser("trial", "").parse_args([f"{option}={value}"])
    assert stopped.value.code == 2
    assert f"error: argument {option}: {reason}" in capsys.readouterr().err


# ---- runs that are kept --------------------------------------------------------------------------


def saved_run(measure: ModuleType, bench: Any, folder: Path) -> dict[str, Any]:
    """The JSON of a run with a case in which ours is faster, and one in which it is slower."""
    from benchmarks._measure.timing import Timing

    ways = {
        "torch_ops": ("ours", 0, 1e-7, 2e6),
        "torch.take": ("eager", 2e-6, 0.5, 0),
        "torch_ops, planned": ("own", 3e-6, 0, 0),
    }
    for name, ours in (("faster", 1e-6), ("slower", 4e-6)):
        result = empty_result(measure)
        result.name = name
        for way, (kind, seconds, error, scratch) in ways.items():
            timing = Timing.of([seconds or ours])
            errors = {"mixed": error, "positive": error / 2}
            measured = measure.Measurement(way, kind, timing, errors, int(scratch))
            result.measurements.append(measured)
        result.bars = [measure.Bar("over fastest eager", result.ratio("eager"), 1.0)]
        bench.results.append(result)
    bench.name = "gather"
    bench.save()
    return json.loads((folder / "gather.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("benchmark_page")


def test_documents_are_written_from_the_runs_that_are_kept(pages: ModuleType) -> None:
    found = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
    assert sorted({name.removesuffix("_compiled") for name in pages.BENCHMARKS}) == found
    written = pages.documents(pages.kept_runs())
    assert {"runs.md", "performance.md", "jit.md", "c_api.md"} <= {path.name for path in written}
    for path, text in written.items():
        assert path.read_text("utf-8") == text, (
            f"{path} is out of date: python tools/benchmark_page.py"
        )


def test_a_run_that_is_kept_shows_its_losses_first(
    pages: ModuleType, measure: ModuleType, bench: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pages, "KEPT", tmp_path / "results")
    run = saved_run(measure, bench, tmp_path)
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
    loss = "slower | 4.00 | 2.00 | 0.50 | torch.take | over fastest eager |"
    case = "| faster | 1.00 | 2.00 | 2.00 |"
    assert text.index(loss) < text.index("<!-- plot speed 4: ") < text.index(case)
    run["options"]["scale"] = "0.02"
    with pytest.raises(SystemExit, match="trial"):
        pages.keep(run, "0123456789")


def test_parts_of_a_run_are_kept_as_one(
    pages: ModuleType, measure: ModuleType, bench: Any, tmp_path: Path
) -> None:
    run = saved_run(measure, bench, tmp_path)
    faster, slower = run["cases"]
    namesake = {**slower, "panel": "another"}
    left_out = ["another: faster", "another: third", pages.full_name(slower)]
    first = {**run, "cases": [faster], "stopped": "in time", "left_out": left_out}
    whole = pages.joined([first, {**run, "cases": [slower, namesake]}])
    assert whole["cases"] == [faster, slower, namesake]
    assert (whole["stopped"], whole["left_out"]) == ("in time", left_out[:2])
    assert pages.joined([first]) == first
    other = {**run, "machine": {**run["machine"], "torch": "1.0"}}
    with pytest.raises(pages.Refusal, match="differ in torch"):
        pages.joined([first, other])


@pytest.mark.parametrize("text", [None, "no figures", "[]", "{}"])
def test_a_file_without_figures_is_refused(
    pages: ModuleType, text: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(pages.Refusal, match=r"run\.json does not hold the figures of a benchmark"):
        pages.read_run(path)


def block(comment: str, text: str = "by hand") -> str:
    return f"Before.\n\n<!-- {comment} -->\n\n{text}\n\n<!-- end -->\nAfter.\n"


@pytest.fixture
def kept(
    pages: ModuleType, measure: ModuleType, bench: Any, tmp_path: Path, monkeypatch: Any
) -> list[dict[str, Any]]:
    monkeypatch.setattr(pages, "KEPT", tmp_path / "results")
    run = saved_run(measure, bench, tmp_path)
    run["machine"].update(device="Some GPU", cuda="13.0")
    pages.keep(run, "0123456789")
    return pages.kept_runs()


def test_blocks_of_a_document_are_written_from_a_run(pages: ModuleType, kept: Any) -> None:
    text = pages.filled(
        block("cases gather + error + memory + torch_ops, planned:\nfast*; panel: slower"), kept, ""
    )
    assert text.startswith("Before.\n\n<!-- cases") and text.endswith("<!-- end -->\nAfter.\n")
    assert "by hand" not in text and "(docs/internals/runs.md#gather-some-gpu)" in text
    head = "| case | ours, us | torch.take, us | ratio | error | torch's error | MB | torch's MB |"
    assert f"{head} torch_ops, planned, us |\n" in text
    assert "| faster | 1.00 | 2.00 | 2.00 | 1e-07 | 0.500 | 2.00 | 0 | 3.00 |\n| slower |" in text
    assert pages.filled(text, kept, "") == text

    text = pages.filled(block("summary gather: one = slower; both = panel: *"), kept, "")
    assert "| one | 1 | 0.500 | 0.500 | 1 |\n| both | 2 | 1.00 | 0.500 | 1 |" in text
    text = pages.filled(block("losses"), kept, "docs/internals/kernels/gather.md")
    assert "(../runs.md#gather-some-gpu) | 2 | 1 | 1 |" in text
    assert "| gather: slower | 4.00 | 2.00 | 0.50 | torch.take |" in text
    assert "gather: faster" not in text


def test_a_column_without_figures_is_left_out(pages: ModuleType, kept: Any) -> None:
    for case in kept[0]["cases"]:  # as in a run that was kept before there were such figures
        for name in ("of copy", "error", "memory", "own", "ways"):
            del case[name]
    comment = "cases gather + of copy + error + memory + torch_ops, planned: *"
    assert "| case | ours, us | torch.take, us | ratio |\n" in pages.filled(
        block(comment), kept, ""
    )


def test_a_block_names_a_case_and_a_benchmark(pages: ModuleType, kept: Any) -> None:
    with pytest.raises(
        SystemExit, match=r"page\.md: .*'fastest'; names are such as:\n  panel: fas"
    ):
        pages.filled(block("cases gather: faster; fastest"), kept, "page.md")
    with pytest.raises(SystemExit, match="there is no benchmark 'gathers'"):
        pages.filled(block("summary gathers"), kept, "page.md")
    for name in ("gather on the CPU", "models"):
        assert pages.filled(block(f"summary {name}"), kept, "") == block(f"summary {name}")
        missing = pages.filled(block(f"summary {name}", ""), kept, "")
        assert f"No run of {name} is kept." in missing
