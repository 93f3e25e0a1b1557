"""What the benchmarks share: timers, checks, the running report, JSON and the plot.

A benchmark describes its cases as `Result`s, fills each by `Benchmark.measure`, and sets its bars.
"""

from benchmarks._measure.figures import (
    Bar,
    Check,
    Implementation,
    Measurement,
    Result,
    Wrong,
    must_equal,
    relative_error,
)
from benchmarks._measure.plot import plot_ratios
from benchmarks._measure.run import Benchmark, argument_parser, positive

__all__ = [
    "Bar",
    "Benchmark",
    "Check",
    "Implementation",
    "Measurement",
    "Result",
    "Wrong",
    "argument_parser",
    "must_equal",
    "plot_ratios",
    "positive",
    "relative_error",
]
