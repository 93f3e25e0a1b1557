"""The C library: calls on device pointers, on host pointers, and on the CPU alone.

Groups: device (beside torch.gather), host (beside cudaMemcpy of the source, which the way of
tutorials needs before any kernel, and of all that moves), numpy (on two threads, beside
numpy.take_along_axis), overhead (what a call on device pointers costs the host, from a C program's
loop).
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torch_ops_host as host
from benchmarks._measure import (
    Bar,
    Benchmark,
    Check,
    Implementation,
    Measurement,
    Result,
    Wrong,
    argument_parser,
    must_equal,
)
from benchmarks._measure.timing import Timing

HOST, DEVICE, HOST_CPU, HOST_GPU = range(4)
FLOAT32 = 2
LIBRARY = ctypes.CDLL(host.library_path())
BATCH_GATHER = LIBRARY.torch_ops_batch_gather
BATCH_GATHER.argtypes = [
    *[ctypes.c_void_p] * 3,
    *[ctypes.c_int64] * 4,
    *[ctypes.c_int32] * 3,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_float),
]
LIBRARY.torch_ops_last_error.restype = ctypes.c_char_p
CALLS_IN_C = """
#include <stdint.h>
#include <time.h>

typedef int32_t (*gather_function)(const void*, const void*, void*, int64_t, int64_t, int64_t,
                                   int64_t, int32_t, int32_t, int32_t, void*, float*);

/* Seconds a call; negative if one fails. */
double time_calls(gather_function gather, const void* source, const void* index, void* output,
                  int64_t size, void* stream, int calls) {
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < calls; ++i) {
    if (gather(source, index, output, 1, size, size, 1, 2, 0, 1, stream, 0) != 0) return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (end.tv_sec - start.tv_sec + 1e-9 * (end.tv_nsec - start.tv_nsec)) / calls;
}
"""

Task = tuple[Result, Callable[[], None]]


def gather(
    source: Tensor, index: Tensor, output: Tensor, memory: int, stream: int | None = None
) -> Tensor:
    """source [B, M], index [B, N]."""
    status = BATCH_GATHER(
        *(source.data_ptr(), index.data_ptr(), output.data_ptr()),
        *(source.shape[0], source.shape[1], index.shape[1], 1),
        *(FLOAT32, int(index.dtype == torch.int64), memory, stream, None),
    )
    if status != 0:
        raise RuntimeError(LIBRARY.torch_ops_last_error().decode())
    return output


def device_tasks(bench: Benchmark) -> Iterator[Task]:
    size, picked = scaled(bench.options, 1 << 27), scaled(bench.options, 1 << 20)
    for index_dtype in (torch.int64, torch.int32):
        name = f"device 2x{size} by 2x{picked} {short(index_dtype)}"
        result = make_result("device", name, 2 * picked * (8 + index_dtype.itemsize))

        def fill(result: Result = result, index_dtype: torch.dtype = index_dtype) -> None:
            source = torch.randn(2, size, device="cuda")
            index = torch.randint(0, size, (2, picked), device="cuda")
            own, output = index.to(index_dtype), torch.empty(2, picked, device="cuda")
            stream = torch.cuda.current_stream().cuda_stream
            check = {"": Check(source, must_equal(source.gather(1, index)))}
            ours = Implementation(
                "torch_ops_c", "ours", lambda s: gather(s, own, output, DEVICE, stream)
            )
            torchs = Implementation(
                "torch.gather", "eager", lambda s: torch.gather(s, 1, index, out=output)
            )
            bench.measure(result, [ours, torchs], check)
            result.bars.append(Bar("over torch.gather", result.ratio("eager"), 1.08))

        yield result, fill


def host_tasks(bench: Benchmark) -> Iterator[Task]:
    size = scaled(bench.options, 1 << 27)
    sparse, dense = scaled(bench.options, 1 << 20), size
    for pinned in (True, False):
        for picked in (sparse, dense):
            what = "sparse" if picked == sparse else "dense"
            name = f"host {'pinned' if pinned else 'pageable'} {what} 2x{size} by 2x{picked}"
            result = make_result("host", name, 2 * (4 * size + 8 * picked))
            arguments = (bench, result, size, picked, pinned, what == "sparse")
            fill = functools.partial(measure_host, *arguments)
            yield result, fill


def measure_host(
    bench: Benchmark, result: Result, size: int, picked: int, pinned: bool, sparse: bool
) -> None:
    generator = torch.Generator(device="cuda").manual_seed(0)
    on_device = torch.rand(2, size, device="cuda", generator=generator)
    index = torch.randint(
        0, size, (2, picked), device="cuda", dtype=torch.int32, generator=generator
    )
    expected = on_device.gather(1, index.long()).cpu()
    source, index = place(on_device, pinned), place(index, pinned)
    output = place(torch.zeros(2, picked), pinned)

    def call(memory: int) -> Callable[[], Tensor]:
        return lambda: gather(source, index, output, memory)

    def judged(memory: int) -> Callable[[], Tensor]:
        def judge() -> None:
            if not torch.equal(output, expected):
                raise Wrong(f"{(output != expected).sum().item()} elements differ")
            output.zero_()

        call(memory)()
        judge()
        return call(memory)

    chosen = add(bench, result, "as the library chooses", "ours", judged(HOST))
    on_gpu = add(bench, result, "on the GPU", "own", judged(HOST_GPU))
    on_cpu = add(bench, result, "on the CPU", "own", judged(HOST_CPU))
    # What moves, by cudaMemcpy from and to the same memory, one after the other.
    there, back = index.cuda(), expected.cuda()

    def copy_source() -> None:
        copy(on_device, source)

    def copy_rest() -> None:
        copy(there, index)
        copy(output, back)

    of_source = add(bench, result, "cudaMemcpy of the source", "own", copy_source)
    rest = add(bench, result, "cudaMemcpy of index and output", "own", copy_rest)
    if sparse and pinned:
        result.bars.append(Bar("of the source's copy", chosen / of_source, 0.25, "<="))
    elif sparse:
        best = min(on_gpu, on_cpu)
        result.bars.append(Bar("of the better of GPU and CPU", chosen / best, 1.05, "<="))
    else:
        result.bars.append(Bar("of the copies' time", chosen / (of_source + rest), 1.15, "<="))


def copy(to: Tensor, source: Tensor) -> None:
    to.copy_(source, non_blocking=True)
    torch.cuda.synchronize()


def place(values: Tensor, pinned: bool) -> Tensor:
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=pinned).copy_(values)


def numpy_tasks(bench: Benchmark) -> Iterator[Task]:
    size, picked = scaled(bench.options, 1 << 24), scaled(bench.options, 1 << 20)
    for dtype in (np.float32, np.float64):
        for index_dtype in (np.int32, np.int64):
            name = f"numpy 2x{size} {dtype.__name__} by 2x{picked} {index_dtype.__name__}"
            moved = 2 * np.dtype(dtype).itemsize + np.dtype(index_dtype).itemsize
            result = make_result("numpy", name, 2 * picked * moved)

            def fill(
                result: Result = result, dtype: Any = dtype, index_dtype: Any = index_dtype
            ) -> None:
                generator = np.random.default_rng(0)
                source = generator.random((2, size)).astype(dtype)
                index = generator.integers(0, size, (2, picked)).astype(index_dtype)
                if not np.array_equal(
                    host.batch_gather(source, index, device="cpu"),
                    np.take_along_axis(source, index, 1),
                ):
                    raise Wrong("another result than numpy.take_along_axis")
                host.set_num_threads(2)
                try:
                    ours = add(
                        *(bench, result, "torch_ops_host, 2 threads", "ours"),
                        lambda: host.batch_gather(source, index, device="cpu"),
                    )
                finally:
                    host.set_num_threads(0)
                theirs = add(
                    *(bench, result, "numpy.take_along_axis", "eager"),
                    lambda: np.take_along_axis(source, index, 1),
                )
                result.bars.append(Bar("over NumPy", theirs / ours, 2.0))

            yield result, fill


def overhead_tasks(bench: Benchmark) -> Iterator[Task]:
    result = make_result("overhead", "overhead of a call on device pointers", 0)

    def fill() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "calls.so"
            command = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
            subprocess.run(command, input=CALLS_IN_C, text=True, check=True)
            time_calls = ctypes.CDLL(str(path)).time_calls
        time_calls.restype = ctypes.c_double
        time_calls.argtypes = [ctypes.c_void_p] * 4 + [
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        source = torch.randn(4096, device="cuda")
        index = torch.arange(4096, device="cuda", dtype=torch.int32).flip(0).contiguous()
        output = torch.empty_like(source)
        stream = torch.cuda.current_stream().cuda_stream
        pointers = [tensor.data_ptr() for tensor in (source, index, output)]
        function = ctypes.cast(BATCH_GATHER, ctypes.c_void_p)
        seconds = []
        for _ in range(30):
            torch.cuda.synchronize()
            seconds.append(time_calls(function, *pointers, 4096, stream, 200))
        torch.cuda.synchronize()
        if min(seconds) < 0 or not torch.equal(output, source.flip(0)):
            raise Wrong("a call failed")
        timing = Timing.of(seconds)
        bench.add(result, Measurement("torch_ops_batch_gather", "ours", timing))
        torchs = []
        wide = index.long()
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                torch.gather(source, 0, wide)
            torchs.append((time.perf_counter() - start) / 200)
        bench.add(result, Measurement("torch.gather", "eager", Timing.of(torchs)))
        result.bars.append(Bar("microseconds a call", timing.median * 1e6, 6.0, "<="))

    yield result, fill


def add(bench: Benchmark, result: Result, name: str, kind: Any, call: Callable[[], Any]) -> float:
    """Times a call by the wall clock, and returns the median of its seconds."""
    start = time.perf_counter()
    call()
    repeats = 5 if time.perf_counter() - start > 0.3 else 20
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    timing = Timing.of(seconds)
    bench.add(result, Measurement(name, kind, timing))
    return timing.median


def make_result(group: str, name: str, moved: int) -> Result:
    return Result(group, name, group, name.removeprefix(f"{group} "), (), {}, moved)


def scaled(options: Namespace, size: int) -> int:
    return max(int(size * options.scale * (0.125 if options.quick else 1)), 1024)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> int:
    options = argument_parser("c_api", __doc__ or "").parse_args()
    bench = Benchmark("c_api", options)
    groups = [numpy_tasks]
    if options.device == "cuda":
        if host.device_count() == 0:
            sys.exit("The C library has no CUDA kernels: python -m torch_ops shows the build.")
        groups += [device_tasks, overhead_tasks, host_tasks]
    tasks = [task for group in groups for task in group(bench)]
    if options.filter:
        tasks = [task for task in tasks if any(text in task[0].name for text in options.filter)]
    if not tasks:
        sys.exit("no case is selected")
    bench.run(tasks)
    return bench.finish(lambda label, figures: [])


if __name__ == "__main__":
    sys.exit(main())
