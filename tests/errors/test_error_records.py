"""The records of bad index entries and the keys of plans, where no GPU is needed."""

from __future__ import annotations

from pathlib import Path

from programs import ROOT, needs, output_of

FILES = Path(__file__).parent / "cuda_host"
SOURCES = f"-I{ROOT / 'src'}"


@needs("c++")
def test_kernels_and_host_share_a_record(tmp_path: Path) -> None:
    """Late kernels record nothing, a graph's do at each replay, and threads lose no error."""
    program = tmp_path / "records"
    flags = ["-std=c++20", "-O2", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-pthread"]
    output_of("c++", *flags, f"-I{FILES}", SOURCES, FILES / "records.cpp", "-o", program)
    assert output_of(program) == "all checks passed\n"


@needs("nvcc")
def test_what_is_no_row_of_a_plan_is_none_in_any_slice(tmp_path: Path) -> None:
    program = tmp_path / "plan_keys"
    output_of("nvcc", "-std=c++17", SOURCES, FILES / "plan_keys.cu", "-o", program)
    assert output_of(program) == "all checks passed\n"
