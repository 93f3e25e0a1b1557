"""Kernels compiled at run time, beside CuPy's and torch's.

Groups: launch, first compilation, from disk in a new process; call of an elementwise kernel,
contiguous, broadcast, strided, generated backward, reduction.
"""

from __future__ import annotations

import sys

from benchmarks._jit import host, kernels
from benchmarks._measure import Benchmark, argument_parser


def main() -> int:
    parser = argument_parser("jit", __doc__ or "")
    options = parser.parse_args()
    if options.device != "cuda":
        parser.error("raw kernels run on CUDA alone")
    bench = Benchmark("jit", options)
    tasks = [
        (result, fill)
        for result, fill in [*host.tasks(bench), *kernels.tasks(bench)]
        if not options.filter or any(text in result.name for text in options.filter)
    ]
    if not tasks:
        parser.error("no case is selected")
    bench.run(tasks)
    return bench.finish(lambda label, figures: [])


if __name__ == "__main__":
    sys.exit(main())
