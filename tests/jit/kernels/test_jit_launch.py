"""RawKernel on a GPU: launches, streams, graphs, arrays of others."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jit_tools import in_processes, needs_cuda_core, run_python
from torch import Tensor

from torch_ops.jit import RawKernel, RawModule

pytestmark = [
    needs_cuda_core,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="raw kernels run on a GPU alone"),
]

N = 10_000

AXPY = """
__global__ void axpy(const float* x, float* y, float a, long long n) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
       i += (long long)gridDim.x * blockDim.x)
    y[i] += a * x[i];
}
"""


@pytest.fixture(scope="module")
def axpy() -> RawKernel:
    return RawKernel(AXPY, "axpy")


def ramp(n: int = N, device: str = "cuda") -> Tensor:
    return torch.arange(float(n), device=device)


def slow(stream: torch.cuda.Stream) -> None:
    """Keeps a stream busy long enough for all that does not wait for it to be early."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)


# ---- values


def test_every_kind_of_argument() -> None:
    code = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    struct Pair { int a; double b; };
    __global__ void all(const float* x, double* out, bool flag, signed char c, unsigned char u8,
                        short s, int i, unsigned u, long long l, unsigned long long ul, float f,
                        double d, __half h, __nv_bfloat16 b, float2 z, double2 zz, Pair pair,
                        const int* none) {
      int k = 0;
      out[k++] = x[1]; out[k++] = flag; out[k++] = c; out[k++] = u8; out[k++] = s; out[k++] = i;
      out[k++] = u; out[k++] = l; out[k++] = double(ul); out[k++] = f; out[k++] = d;
      out[k++] = float(h); out[k++] = float(b); out[k++] = z.x; out[k++] = z.y;
      out[k++] = zz.x; out[k++] = zz.y; out[k++] = pair.a; out[k++] = pair.b;
      out[k++] = none == nullptr;
    }
    """
    kernel = RawKernel(code, "all")
    out = torch.full((20,), torch.nan, dtype=torch.float64, device="cuda")
    scalars = (
        True, -128, 255, -32768, -(2**31), 2**32 - 1, -(2**62), 2**63, 0.5, 0.1, 1.5, -2.5,
        1 - 2j, 3 + 4j, struct.pack("i4xd", 7, 0.25), None,
    )  # fmt: skip
    kernel(1, 1, (ramp(), out, *scalars))
    expected = [
        1, 1, -128, 255, -32768, -(2**31), 2**32 - 1, -(2**62), 2.0**63, 0.5, 0.1, 1.5, -2.5,
        1, -2, 3, 4, 7, 0.25, 1,
    ]  # fmt: skip
    assert out.tolist() == expected
    out.fill_(torch.nan)
    record = np.array((7, 0.25), np.dtype([("a", "i4"), ("b", "f8")], align=True))[()]
    numpy = (
        np.bool_(True), np.int8(-128), np.uint8(255), np.int16(-32768), np.int32(-(2**31)),
        np.uint32(2**32 - 1), np.int64(-(2**62)), np.uint64(2**63), np.float32(0.5),
        np.float64(0.1), np.float16(1.5), np.float32(-2.5), np.complex64(1 - 2j),
        np.complex128(3 + 4j), record, None,
    )  # fmt: skip
    kernel(1, 1, (ramp(), out, *numpy))
    assert out.tolist() == expected
    with pytest.raises(ValueError, match="takes 16 bytes, but 12 are given"):
        kernel(1, 1, (ramp(), out, *scalars[:-2], struct.pack("=id", 7, 0.25), None))


@pytest.mark.parametrize(
    ("dtype", "ctype"),
    [
        (torch.bool, "bool"), (torch.uint8, "unsigned char"), (torch.int8, "signed char"),
        (torch.int16, "short"), (torch.int32, "int"), (torch.int64, "long long"),
        (torch.uint16, "unsigned short"), (torch.float16, "__half"),
        (torch.bfloat16, "__nv_bfloat16"), (torch.float32, "float"), (torch.float64, "double"),
        (torch.complex64, "float2"), (torch.float8_e5m2, "__nv_fp8_e5m2"),
    ],
)  # fmt: skip
def test_every_dtype(dtype: torch.dtype, ctype: str) -> None:
    code = "__global__ void copy(const T* x, T* y, int n) {" + (
        "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i]; }"
    )
    kernel = RawKernel(code, "copy", constants={"T": dtype})
    bits = torch.randint(0, 2, (999 * dtype.itemsize,), dtype=torch.uint8, device="cuda")
    x = bits.view(dtype)
    y = torch.zeros_like(x)
    kernel(4, 256, (x, y, 999))
    assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))
    named = RawKernel(
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n"
        f"__global__ void f(const {ctype}* x) {{}}",
        "f",
    )
    named(1, 1, (x,))
    wrong = torch.int64 if dtype != torch.int64 else torch.float64
    with pytest.raises(TypeError, match="must be a tensor of"):
        named(1, 1, (torch.zeros(3, dtype=wrong, device="cuda"),))


def test_grid_and_block_in_three_dimensions() -> None:
    code = """__global__ void where(int* out) {
      int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      out[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
    }"""
    kernel = RawKernel(code, "where")
    for grid, block in (((2, 3, 4), (5, 6, 7)), (3, [4]), ((np.int32(2),), (3, 2)), ([7], 1)):
        sizes = [np.atleast_1d(np.asarray(shape)).prod() for shape in (grid, block)]
        out = torch.zeros(int(sizes[0] * sizes[1]) + 1, dtype=torch.int32, device="cuda")
        kernel(grid, block, (out,))
        assert out.tolist() == [1] * (len(out) - 1) + [0]


def test_empty_grid_launches_nothing(axpy: RawKernel) -> None:
    y = ramp()
    for grid in (0, (0,), (1, 0), (1, 1, 0)):
        assert axpy(grid, 256, (y, y, 1.0, N)) is None
    assert torch.equal(y, ramp())
    event = axpy(0, 256, (y, y, 1.0, N), return_event=True)
    event.synchronize()


def test_slices_and_strides(axpy: RawKernel) -> None:
    base = ramp()
    y = torch.zeros(5, device="cuda")
    axpy(1, 32, (base[3:8], y, 2.0, 5))
    assert y.tolist() == [6, 8, 10, 12, 14]
    with pytest.raises(ValueError, match="must be contiguous"):
        axpy(1, 32, (base[::2], y, 1.0, 5))
    axpy(1, 32, (base[::2], y.zero_(), 1.0, 5), strided=True)  # the memory as it lies
    assert y.tolist() == [0, 1, 2, 3, 4]


def test_vector_pointers_must_be_aligned() -> None:
    kernel = RawKernel("__global__ void f(float4* x) { x[threadIdx.x].y = 1; }", "f")
    x = torch.zeros(9, device="cuda")
    kernel(1, 2, (x[:8],))
    assert x.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0]
    with pytest.raises(ValueError, match="must begin at a multiple of 16 bytes"):
        kernel(1, 2, (x[1:],))


def test_tensors_on_the_cpu_are_refused(axpy: RawKernel) -> None:
    with pytest.raises(RuntimeError, match=r"argument 1 \(float\* y\) must be on a CUDA device"):
        axpy(1, 32, (ramp(5), ramp(5, "cpu"), 1.0, 5))


def test_address_as_c_void_p(axpy: RawKernel) -> None:
    x, y = ramp(), torch.zeros(N, device="cuda")
    axpy(40, 256, (ctypes.c_void_p(x.data_ptr()), y, 1.0, N))
    assert torch.equal(x, y)


# ---- what a kernel may have


def test_shared_memory() -> None:
    code = """__global__ void reverse(float* x, int n) {
      extern __shared__ float kept[];
      for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = kept[n - 1 - i];
    }"""
    kernel = RawKernel(code, "reverse")
    most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    for size in (4 * 100, 48 * 1024 + 4, most):
        n = size // 4
        x = ramp(n)
        kernel(1, 1024, (x, n), shared_mem=size)
        assert torch.equal(x, ramp(n).flip(0))
    with pytest.raises(ValueError, match=rf"shared_mem is {most + 1} bytes, more than the {most}"):
        kernel(1, 1024, (x, n), shared_mem=most + 1)


def test_attributes() -> None:
    code = """__global__ void __launch_bounds__(128) f(float* x) {
      __shared__ float kept[100];
      kept[threadIdx.x % 100] = x[threadIdx.x];
      __syncthreads();
      x[threadIdx.x] = kept[99 - threadIdx.x % 100];
    }"""
    kernel = RawKernel(code, "f")
    assert 0 < kernel.num_regs < 256
    assert kernel.shared_size_bytes == 400
    assert kernel.local_size_bytes == 0
    assert kernel.max_threads_per_block == 128
    block = kernel.suggest_block()
    assert isinstance(block, int) and block % 32 == 0 and 32 <= block <= 128
    assert kernel.suggest_block(shared_mem=100_000) <= 128
    with pytest.raises(ValueError, match="a block of 256 threads is more than the 128 that this"):
        kernel(1, 256, (ramp(),))
    with pytest.raises(ValueError, match="a block of 1024 threads"):
        kernel(1, (32, 32), (ramp(),))


def test_suggested_block_fills_the_gpu(axpy: RawKernel) -> None:
    threads = torch.cuda.get_device_properties(0).max_threads_per_multi_processor
    assert threads % axpy.suggest_block() == 0


def test_from_ptx_and_cubin_run() -> None:
    module = RawModule(AXPY)
    for made in (RawModule.from_ptx(module.ptx), RawModule.from_cubin(module.cubin)):
        x, y = ramp(), ramp()
        made.get_function("axpy")(40, 256, (x, y, 2.0, N))
        assert torch.equal(y, 3 * x)


def test_cubin_without_types() -> None:
    cubin = RawModule('extern "C" ' + AXPY.strip()).cubin
    kernel = RawModule.from_cubin(cubin).get_function("axpy")
    x, y = ramp(), ramp()
    with pytest.raises(TypeError, match=r"argument 2 \(4 bytes\) has no type in the compiled code"):
        kernel(40, 256, (x, y, 2.0, np.int64(N)))
    with pytest.raises(TypeError, match=r"takes 8 bytes, but the numpy\.int32"):
        kernel(40, 256, (x, y, np.float32(2), np.int32(N)))
    with pytest.raises(TypeError, match="which is not a pointer"):
        kernel(40, 256, (x, y, x, np.int64(N)))
    with pytest.raises(TypeError, match="number of arguments must be 4"):
        kernel(40, 256, (x, y))
    kernel(40, 256, (x, y, np.float32(2), np.int64(N)))
    assert torch.equal(y, 3 * x)


def test_cubin_of_another_architecture() -> None:
    major, _ = torch.cuda.get_device_capability()
    arch = "sm_80" if major != 8 else "sm_90"
    module = RawModule(AXPY, options=(f"-arch={arch}",))
    with pytest.raises(RuntimeError, match=r"does not load|no kernel image|another architecture"):
        module.get_function("axpy")(1, 32, (ramp(), ramp(), 1.0, N))


def test_virtual_architecture_runs() -> None:
    kernel = RawModule(AXPY, options=("-arch=compute_75",)).get_function("axpy")
    x, y = ramp(), ramp()
    kernel(40, 256, (x, y, 1.0, N))
    assert torch.equal(y, 2 * x)


def test_more_than_2_to_the_31_elements(axpy: RawKernel) -> None:
    n = 2**31 + 1000
    if torch.cuda.mem_get_info()[0] < 3 * n:
        pytest.skip("the GPU has not the memory for it")
    code = """__global__ void add(signed char* x, long long n) {
      long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
      if (i < n) x[i] += 1;
    }"""
    x = torch.zeros(n, dtype=torch.int8, device="cuda")
    RawKernel(code, "add")(-(-n // 256), 256, (x, n))
    assert bool((x == 1).all())


# ---- autograd


def test_written_tensors_have_a_new_version(axpy: RawKernel) -> None:
    x, y = ramp(), ramp()
    axpy(40, 256, (x, y, 1.0, N))
    assert (x._version, y._version) == (0, 1)
    leaf = torch.ones(N, device="cuda", requires_grad=True)
    saved = leaf * 1
    product = saved * saved
    axpy(40, 256, (x, saved.detach(), 1.0, N))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        z = ramp()
        axpy(40, 256, (z, z, 1.0, N))


# ---- streams, threads, processes, graphs


def test_current_stream(axpy: RawKernel) -> None:
    side = torch.cuda.Stream()
    x, y = ramp(), torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    slow(side)
    with torch.cuda.stream(side):
        x.zero_()
        axpy(40, 256, (x, y, 1.0, N))  # after what is on the side stream
    torch.cuda.synchronize()
    assert bool((y == 0).all())


def test_given_stream(axpy: RawKernel) -> None:
    side = torch.cuda.Stream()
    x, y = ramp(), torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    slow(side)
    with torch.cuda.stream(side):
        x.zero_()
    event = axpy(40, 256, (x, y, 1.0, N), stream=side, return_event=True)
    assert not event.query()
    event.synchronize()
    assert bool((y == 0).all())
    with pytest.raises(TypeError, match=r"stream must be a torch\.cuda\.Stream"):
        axpy(40, 256, (x, y, 1.0, N), stream=side.cuda_stream)


def test_threads_and_streams(axpy: RawKernel) -> None:
    """Eight threads, a stream each, one kernel that is first used by all of them at once."""
    kernel = RawKernel(AXPY + "// of this test\n", "axpy")
    results: list[Tensor] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x, y = ramp(), torch.zeros(N, device="cuda")
            start.wait()
            for _ in range(200):
                kernel(40, 256, (x, y, float(number), N))
            stream.synchronize()
            results.append(y / 200 - number * x)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(bool((result == 0).all()) for result in results)


def test_graph(axpy: RawKernel) -> None:
    x, y = ramp(), torch.zeros(N, device="cuda")
    kernel = RawKernel(AXPY + "// first used while a graph is captured\n", "axpy")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(40, 256, (x, y, 1.0, N))
        z = y * 2
    assert bool((y == 0).all())
    for _ in range(3):
        graph.replay()
    assert torch.equal(y, 3 * x)
    assert torch.equal(z, 6 * x)
    del kernel
    gc.collect()
    graph.replay()  # what was captured stays loaded
    assert torch.equal(y, 4 * x)


def test_graph_refuses_arrays_of_others(axpy: RawKernel) -> None:
    x, y = ramp(), torch.zeros(N, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
            axpy(40, 256, (WithInterface(x), y, 1.0, N))
        with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
            axpy(40, 256, (WithDLPack(x), y, 1.0, N))
        axpy(40, 256, (x, y, 1.0, N))
    graph.replay()
    assert torch.equal(x, y)


def launch_in_process(code: str) -> list[float]:
    x = torch.zeros(4, device="cuda")
    RawKernel(code, "f")(1, 4, (x,))
    return x.tolist()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_spawned_processes() -> None:
    code = "__global__ void f(float* x) { x[threadIdx.x] = threadIdx.x; }"
    assert in_processes("spawn", 3, launch_in_process, code) == [[0, 1, 2, 3]] * 3


def test_forked_processes() -> None:
    """A kernel that was made before the fork; CUDA does not outlive a fork, so none was used."""
    printed = run_python(
        "import os, torch, warnings\n"
        "from torch_ops.jit import RawKernel\n"
        "warnings.simplefilter('ignore')  # of a fork beside threads\n"
        "kernel = RawKernel('__global__ void f(float* x) { x[threadIdx.x] = 7; }', 'f')\n"
        "child = os.fork()\n"
        "x = torch.zeros(3, device='cuda')\n"
        "kernel(1, 3, (x,))\n"
        "assert x.tolist() == [7] * 3\n"
        "if child: assert os.waitpid(child, 0)[1] == 0; print('both')\n"
        "else: os._exit(0)\n"
    )
    assert printed == "both\n"


def test_warm_cache_loads_no_compiler() -> None:
    code = f"""
import sys, torch
from torch_ops.jit import RawKernel, cache_info
sys.modules["cuda.core"] = None  # importing it raises
x = torch.ones(4, device="cuda")
RawKernel({AXPY!r}, "axpy")(1, 4, (x, x, 1.0, 4))
assert x.tolist() == [2] * 4
info = cache_info()
assert (info.hits, info.misses) == (1, 0), info
assert "cuda.bindings.nvrtc" not in sys.modules
"""
    RawKernel(AXPY, "axpy")(1, 1, (ramp(4), ramp(4), 1.0, 4))
    run_python(code)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices(axpy: RawKernel) -> None:
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, y = ramp(N, device), ramp(N, device)
        axpy(40, 256, (x, y, 1.0, N))
        assert torch.equal(y, 2 * x)
    with pytest.raises(RuntimeError, match="all tensors must be on one device"):
        axpy(40, 256, (ramp(), y, 1.0, N))
    with pytest.raises(RuntimeError, match="the stream is on cuda:0"):
        axpy(40, 256, (x, y, 1.0, N), stream=torch.cuda.Stream(0))


# ---- arrays of other libraries


class WithInterface:
    """An array that knows nothing but __cuda_array_interface__."""

    def __init__(self, tensor: Tensor, **changes: Any) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, **changes}


class WithDLPack:
    """An array that knows nothing but DLPack, filled on a stream of its own."""

    def __init__(self, tensor: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        self._tensor = tensor
        self._stream = stream or torch.cuda.default_stream()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **others: Any) -> Any:
        with torch.cuda.stream(self._stream):
            return self._tensor.__dlpack__(stream=stream)


def filled_late(stream: torch.cuda.Stream) -> Tensor:
    x = torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    slow(stream)
    with torch.cuda.stream(stream):
        x.copy_(torch.arange(N))
    return x


def test_interface_is_waited_for(axpy: RawKernel) -> None:
    side, y = torch.cuda.Stream(), torch.zeros(N, device="cuda")
    x = WithInterface(filled_late(side), stream=side.cuda_stream)
    axpy(40, 256, (x, y, 1.0, N))
    assert torch.equal(y, ramp())


@pytest.mark.parametrize("stream", [None, 1, "absent"])
def test_default_stream_is_waited_for(axpy: RawKernel, stream: int | str | None) -> None:
    """Where the interface names none, or names it."""
    side, y = torch.cuda.Stream(), torch.zeros(N, device="cuda")
    x = WithInterface(filled_late(torch.cuda.default_stream()), stream=stream)
    if stream == "absent":
        del x.__cuda_array_interface__["stream"]
    event = axpy(40, 256, (x, y, 1.0, N), stream=side, return_event=True)
    event.synchronize()
    assert torch.equal(y, ramp())


@pytest.mark.parametrize("given", [False, True])
def test_dlpack_is_waited_for(axpy: RawKernel, given: bool) -> None:
    filler, side = torch.cuda.Stream(), torch.cuda.Stream()
    y = torch.zeros(N, device="cuda")
    x = WithDLPack(filled_late(filler), filler)
    event = axpy(40, 256, (x, y, 1.0, N), stream=side if given else None, return_event=True)
    event.synchronize()
    assert torch.equal(y, ramp())


def test_foreign_array_is_written(axpy: RawKernel) -> None:
    side = torch.cuda.Stream()
    for wrap in (WithInterface, WithDLPack):
        x, y = ramp(), torch.zeros(N, device="cuda")
        torch.cuda.synchronize()
        slow(side)
        event = axpy(40, 256, (x, wrap(y), 1.0, N), stream=side, return_event=True)
        other = torch.cuda.Stream()  # the other library's
        other.wait_event(event)
        with torch.cuda.stream(other):
            assert torch.equal(x, y)


def test_bad_foreign_arrays(axpy: RawKernel) -> None:
    x, y = ramp(), ramp()
    readonly = WithInterface(y, data=(y.data_ptr(), True))
    with pytest.raises(ValueError, match=r"argument 1 \(float\* y\) is written .* is read-only"):
        axpy(40, 256, (x, readonly, 1.0, N))
    axpy(40, 256, (readonly, y, 1.0, N))
    with pytest.raises(TypeError, match="has a mask"):
        axpy(40, 256, (WithInterface(x, mask=x), y, 1.0, N))
    with pytest.raises(TypeError, match=r"must be a tensor of float32, but it is torch\.float64"):
        axpy(40, 256, (WithInterface(x.double()), y, 1.0, N))
    with pytest.raises(ValueError, match="must be contiguous"):
        axpy(40, 256, (WithDLPack(x[::2]), y, 1.0, N))
    with pytest.raises(TypeError, match="cannot be shared by __cuda_array_interface__"):
        axpy(40, 256, (WithInterface(x, typestr="<M8"), y, 1.0, N))


@pytest.mark.skipif(not importlib.util.find_spec("cupy"), reason="cupy is not installed")
def test_cupy(axpy: RawKernel) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.arange(N, dtype=cupy.float32) * 2
        y = cupy.zeros(N, dtype=cupy.float32)
        event = axpy(40, 256, (x, y, 1.0, N), return_event=True)
        torch.cuda.ExternalStream(stream.ptr).wait_event(event)
        assert bool((x == y).all())


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(axpy: RawKernel, tmp_path: Path) -> None:
    for n in (1, 31, 33):
        x, y = ramp(n), torch.zeros(n, device="cuda")
        axpy(1, 32, (x, y, 2.0, n))
        assert torch.equal(y, 2 * x)
