"""`python -m torch_ops explain`, and the choices of kernels that it tells."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from programs import ROOT, run_with_torch

from torch_ops._explain import main, plan_gather, plan_sum, ways_table


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    return dict(line.split(None, 1) for line in lines)


def test_sum(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("scatter_add", "float32", "16x120000x4", "30000", "--multiprocessors", "132")
    told = report(capsys, *call)
    assert told["way"] == "entries" and told["kernels"] == "zero_kernel, add_entries_kernel"
    assert told["scratch"] == "0 bytes" and "float32" in told["why"]
    assert "may differ" in told["guarantee"] and "132" in told["gpu"]
    told = report(capsys, *call, "--deterministic")
    assert told["way"] == "fixed point" and told["guarantee"] == "the same bits on every run"
    assert told["kernels"].startswith("zero_kernel, bin_tiles_kernel")
    assert report(capsys, "scatter_add", "float32", "9x300", "8", "--dim", "0")["way"] == "small"


def test_gather(capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, "gather", "float32", "16x30000x4", "16x120000")
    assert told["way"] == "flat" and told["words"] == "of 16 bytes"
    assert plan_gather([30000, 33], [120000])["way"] == "short"
    assert plan_gather([8, 30000, 33], [120000], dim=1)["way"] == "short"


def test_whose_limits(capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, "scatter_add", "float32", "384000", "1000", "--shared-bytes", "3999")
    whose = "H200" if not torch.cuda.is_available() else torch.cuda.get_device_name()
    assert whose in told["gpu"] and told["gpu"].endswith(", but shared bytes 3999")
    assert told["way"] == "entries"  # no room for a table


@pytest.mark.parametrize(
    "arguments",
    [
        ("scatter_add", "float32", "16x120000x4"),
        ("scatter_add", "float33", "16x120000x4", "9"),
        ("scatter_add", "float32", "16,120000", "9"),
        ("scatter_add", "float32", "16x9", "9x9"),
        ("scatter_add", "float32", "16x9", "9", "--dim", "2"),
        ("gather", "float32", "16x9", "8x9"),
        ("gather", "float32", "16", "16x9"),
        ("relu", "float32", "16x9", "9"),
        ("gather", "float32", "0x5", "3"),
        ("scatter_add", "float32", "3x4", "0"),
        ("scatter_add", "float32", "3x4", f"{2**70}"),
        ("scatter", "float32", "1000x4", "5", "--multiprocessors", "0"),
        ("gather", "float32", "1000x4", "5", "--l2-bytes", "-1"),
        ("gather", "float32", "1000x4", "5", "--compute-capability", "9.x"),
        ("scatter_add", "float32", "1000x4", "5", "--reduce", "amax"),
        ("scatter", "float32", "1000x4", "5", "--positions"),
        ("gather", "float32", "1000x4", "5", "--reduce", "amax"),
        ("gather", "float32", "1000x4", "5", "--plan"),
        ("gather", "float32", "1000x4", "5", "--deterministic"),
        ("ways", "float32"),
        ("ways", "--plan"),
        ("scatter_add", "bool", "1000x4", "5"),
        ("scatter_add_", "float8_e4m3fn", "1000x4", "5"),
        ("scatter", "complex64", "1000x4", "5", "--reduce", "amax"),
        ("gather", "quint8", "1000x4", "5"),
    ],
)
def test_what_cannot_be_read(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2 and "error" in capsys.readouterr().err


@pytest.mark.parametrize("capability", ["90", "9.0"])
def test_compute_capability(capability: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = ("scatter", "float32", "1000x4", "5", "--reduce", "amax", "--positions")
    told = report(capsys, *call, "--compute-capability", capability)
    assert told["gpu"].endswith(", but compute capability 9.0")


def test_names_of_dtypes(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("1000x4", "5")
    assert report(capsys, "gather", "torch.int8", *call) == report(capsys, "gather", "int8", *call)


def test_from_the_command_line() -> None:
    assert run_with_torch("-m", "torch_ops", "explain", "ways", cwd=ROOT).stdout == ways_table()


def test_the_documents_table_is_the_codes() -> None:
    """Write it anew with `python -m torch_ops explain ways`."""
    text = (ROOT / "docs/internals/kernels/README.md").read_text("utf-8")
    assert ways_table() in text


def plan(axis_size: int, entries: int, inner: int, **options: Any) -> dict[str, Any]:
    from torch_ops._ext.scatter import plan

    return dict(plan(axis_size, entries, inner, **options))


def test_every_row_of_the_table_is_met() -> None:
    """A row that none of these calls meets would be one that no call needs."""
    from torch_ops._ext.scatter import ways

    calls = [
        plan(100, 1 << 17, 3, repeatable=True),
        plan(1000, 4000, 1, repeatable=True),
        plan(200_000, 500, 64, repeatable=True),
        plan(100, 500, 3, repeatable=True),
        plan(1000, 1 << 19, 64, repeatable=True),
        plan(500, 2000, 1),
        plan(1024, 16384, 1, batch=1024),
        plan(100, 1 << 18, 3),
        plan(256, 1 << 18, 4),
        plan(200_000, 1000, 3, value_bytes=2),
        plan(256, 512, 256),
        plan(1 << 19, 1000, 16, value_bytes=2),
        plan(1 << 19, 1 << 17, 64, value_bytes=2),
        plan(1000, 1 << 19, 64),
        plan(1 << 21, 1 << 20, 9, value_bytes=2),
        plan(256, 1 << 20, 3),
        plan(1000, 96 * 4000, 1),
        plan(2048, 8188, 1, batch=256, floats=False),
        plan(1000, 4000, 1, floats=False),
        plan(1000, 4000, 4),
        plan(1000, 4000, 64),
        plan(1000, 4000, 3),
        plan(1000, 1 << 19, 63),
    ]
    met = {(call["way"], call["why"]) for call in calls}
    assert met == {(way, why) for _, way, why in ways()}


def test_scratch_is_within_the_bound() -> None:
    """16 bytes per entry and row of the result and a tenth of the values, or 64 MB."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(3000):
        powers = torch.rand(4, generator=generator).tolist()
        batch, rows, entries, inner = (
            int(2 ** (top * power)) for top, power in zip((6, 22, 22, 8), powers, strict=True)
        )
        for value_bytes in (2, 4, 8):
            for repeatable in (False, True):
                sizes = {"batch": batch, "value_bytes": value_bytes, "repeatable": repeatable}
                told = plan(rows, entries, inner, **sizes)
                values = batch * entries * inner * value_bytes
                most = max(16 * batch * (entries + rows) + values // 10, 64 * 10**6)
                assert told["scratch"] <= most, (rows, entries, inner, sizes, told)


def test_in_place() -> None:
    """Only atomics add to what a tensor holds, and only where its numbers need no rounding."""
    for axis_size, entries, inner in [(100, 500, 3), (1000, 1 << 19, 64), (256, 1 << 18, 3)]:
        told = plan(axis_size, entries, inner, in_place=True, repeatable=True)
        assert told["way"] in ("values", "tiles", "streamed") and told["scratch"] == 0
        assert "zero_kernel" not in told["kernels"]
    assert plan_sum([500, 3], 100, torch.bfloat16, in_place=True)["way"] == "small"


def test_nothing_to_launch() -> None:
    for sizes in [(0, 1, 1), (1, 0, 1), (1, 1, 0)]:
        with pytest.raises(ValueError, match="nothing is launched"):
            plan(*sizes)


def test_numbers_are_in_one_place() -> None:
    """No launcher and no choice has fitted numbers of its own."""
    for path in (ROOT / "src" / "scatter" / "sum").glob("*"):
        text = path.read_text("utf-8")
        if path.name != "tuning.h":
            assert not re.search(r"int64_t\{1\} << (1[7-9]|2\d)\b|1 << (1[7-9]|2\d)\b", text), path
