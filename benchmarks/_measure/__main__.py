"""Draws the plot again: ``python -m benchmarks._measure build/bench/gather.json``."""

import json
import sys
from pathlib import Path

from benchmarks._measure.plot import plot

for argument in map(Path, sys.argv[1:]):
    print(plot(json.loads(argument.read_text()), argument.with_suffix(".png")))
