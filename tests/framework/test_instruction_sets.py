"""The CPU's loops for narrower vectors than this CPU has: the other tests run the widest."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from programs import ROOT

# By file, words of the names of the tests whose loops exist once for each instruction set.
TESTS = {
    "elementwise/test_relu.py": "all_16_bit or agrees",
    "elementwise/test_sigmoid.py": "every_exponent or dense or all_16_bit or lower_tail or float64",
    "gather/test_embedding_bag.py": "test_widths",
    "gather/test_gather_ways.py": "of_each_length",
    "segments/test_segments.py": "row_sizes",
    "scatter/test_scatter_reduce.py": "agrees or nan_infinity or ties or extremes",
}


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_instruction_sets(capability: str) -> None:
    """Of all files in one process, since its start takes longer than most of them."""
    # A run of its own, which must not take itself for a worker of the run that it is started by.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    tests = f"cpu and ({' or '.join(TESTS.values())})"
    files = [ROOT / "tests" / name for name in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k", tests, *files],
        env={**environment, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
