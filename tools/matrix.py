"""Compiles bindings for each supported version of torch, and runs the tests with them.

    python tools/matrix.py [--torch 2.13 ...] [--sample] [--out build/matrix] [--table FILE]

Each version gets a virtual environment of its own, with what PyPI has of it for this Python, and
bindings by `python -m torch_ops build`, which are linked with the kernel library of this checkout:
build that first. `--sample` runs a few files of tests in place of all. The outcomes are printed and
kept in OUT/results.json, from which `--table` writes the page of the docs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import setup_c_library  # noqa: E402

supported = setup_c_library.load("supported")

# What depends on torch: ops, autograd, transforms, compile, export, DTensors, kernels compiled at
# run time, modules that stand in for other libraries'.
TESTS = (
    *("relu", "sigmoid", "gather", "gather_nd", "elements", "embedding", "embedding_bag", "index"),
    *("index_put", "masked_gather", "plan", "plan_kept", "scatter", "scatter_reduce"),
    *("scatter_inplace", "segments", "softmax", "support", "opinfo", "decompositions", "inductor"),
    *("direct_calls", "jagged", "errors", "modes", "new_output", "node_memory", "like_torch"),
    *("registry", "replace_modules", "modules", "cells", "table", "parts", "torch_scatter"),
    *("torch_scatter_calls", "peers", "sharded_table", "hosts", "steps"),
    *("jit_autograd", "jit_elementwise", "jit_reduction", "jit_op", "jit_raw", "jit_indexed"),
    *("jit_indexed_cuda_text", "jit_kinks", "jit_statements"),
)
SAMPLE = (
    *("sigmoid", "gather", "scatter", "jit_autograd", "decompositions", "inductor"),
    *("jit_indexed_cuda_text", "hosts"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    versions = supported.torches(setup_c_library.bindings.python_version())
    parser.add_argument("--torch", nargs="+", choices=versions, default=versions)
    parser.add_argument("--sample", action="store_true", help="a few files of tests")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--table", type=Path, help="write the results so far as a page of Markdown")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / "results.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    failed = False
    for minor in arguments.torch:
        result = run_version(minor, SAMPLE if arguments.sample else TESTS, arguments.out)
        result["tests"] = "a sample" if arguments.sample else "all"
        failed |= result["outcome"] != "passed"
        results[minor] = result
        kept.write_text(json.dumps(results, indent=2) + "\n")
    page = table(results)
    print(page)
    if arguments.table:
        arguments.table.write_text(page)
    return int(failed)


def run_version(minor: str, tests: tuple[str, ...], out: Path) -> dict[str, Any]:
    """Environment, bindings, tests; the first that fails is the outcome."""
    folder = out / f"torch{minor}"
    python = folder / "bin" / "python"
    environ = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(out / "cache"),
        "OMP_WAIT_POLICY": "passive",
    }
    result: dict[str, Any] = {"python": platform.python_version(), "outcome": "passed"}

    def call(what: str, *command: str | Path) -> bool:
        print(f"== torch {minor}: {what}", flush=True)
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode == 0
        result[f"{what}, seconds"] = round(time.perf_counter() - start)
        if not done:
            result["outcome"] = f"failed: {what}"
        return done

    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    install = ("-m", "pip", "install", "--quiet", f"torch=={minor}.*", *needs["test"])
    if not python.exists():
        call("environment", sys.executable, "-m", "venv", folder)
    if not call("installation", python, *install):
        return result
    version = "import torch; print(torch.__version__, torch.version.cuda or 'none')"
    shown = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    result["torch"], result["cuda"] = shown.stdout.split()
    if not call("bindings", python, "-m", "torch_ops", "build", "--force"):
        return result
    report = folder / "tests.xml"
    workers = str(min(len(os.sched_getaffinity(0)), 4))
    files = [next(ROOT.glob(f"tests/**/test_{name}.py")) for name in tests]
    options = ["-q", "--slow=sample", "-n", workers, "--dist", "loadfile", f"--junit-xml={report}"]
    call("tests", python, "-m", "pytest", *options, *files)
    suite = ET.parse(report).getroot()[0]
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    bad = counts["failures"] + counts["errors"]
    result["passed"] = counts["tests"] - bad - counts["skipped"]
    result["failed"], result["skipped"] = bad, counts["skipped"]
    return result


def table(results: dict[str, Any]) -> str:
    rows = [
        f"| {result.get('torch', minor)} | {result.get('cuda', '-')} | {result['python']} "
        f"| {result.get('bindings, seconds', '-')} s | {result['tests']} "
        f"| {result.get('passed', '-')} | {result.get('failed', '-')} "
        f"| {result.get('skipped', '-')} | {result['outcome']} |"
        for minor, result in sorted(results.items(), key=lambda item: float(item[0][2:]))
    ]
    lines = [
        "# Versions of torch",
        "",
        "`make matrix` prints this page. For each version it makes a clean environment, compiles",
        "bindings with `python -m torch_ops build`, and runs the tests of what depends on torch,",
        "on the CPU, and on a GPU if the machine has one. How long the bindings took depends on",
        "the machine, and on what else it did.",
        "",
        "| torch | CUDA of torch | Python | bindings in | tests | passed | failed | skipped | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
