"""The CPU's loops for narrower vectors than this CPU has: the other tests run the widest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT

# By file, words of the names of the tests whose loops exist once for each instruction set.
TESTS = {
    "elementwise/test_relu.py": "all_16_bit or agrees",
    "elementwise/test_sigmoid.py": "every_exponent or dense or all_16_bit or lower_tail or float64 "
    "or agrees",
    "gather/test_embedding_bag.py": "test_widths",
    "gather/test_gather_ways.py": "of_each_length",
    "segments/test_segments.py": "row_sizes",
    "segments/test_softmax.py": "test_values",
    "scatter/test_scatter_reduce.py": "agrees or nan_infinity or ties or extremes",
}


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_instruction_sets(capability: str) -> None:
    """Of all files in one process, since its start takes longer than most of them."""
    # A run of its own, which must not take itself for a worker of the run that it is started by.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    # Of each file its own words: "float64" stands in the names of most tests of the others.
    tests = " or ".join(f"{Path(file).name} and ({words})" for file, words in TESTS.items())
    options = ["-q", "-p", "no:xdist", "-k", f"cpu and ({tests})"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(ROOT / "tests" / name for name in TESTS)],
        env={**environment, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
