"""Headers of CUDA, standards, variables of modules, cooperative launches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jit_tools import needs_cuda_core

from torch_ops.jit import ElementwiseKernel, RawKernel, RawModule, ReductionKernel
from torch_ops.jit.building import toolchain
from torch_ops.jit.raw import _mangled

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="raw kernels run on a GPU")


# ---- CUDA's headers


def toolkit(root: Path, version: str, *names: str) -> Path:
    for name in ("cuda.h", *names):
        path = root / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#define CUDA_VERSION {version}\n")
    return root


def test_what_the_first_toolkit_lacks_is_in_the_next(tmp_path: Path) -> None:
    """As torch's wheels lack CCCL; but headers of another CUDA do not go with these."""
    major = toolchain._cuda_major()
    wheel = toolkit(tmp_path / "wheel", f"{major}000", "cuda_fp16.h")
    other = toolkit(tmp_path / "other", "9020", "cuda/std/limits")
    full = toolkit(tmp_path / "full", f"{major}020", "cuda_fp16.h", "cccl/cuda/std/limits")
    cccl = tmp_path / "cccl"
    (cccl / "include" / "cccl").mkdir(parents=True)
    roots = [wheel, other, tmp_path / "none", full, cccl, wheel]
    expected = [wheel / "include", full / "include", full / "include" / "cccl"]
    expected += [cccl / "include", cccl / "include" / "cccl"]
    assert toolchain._headers(roots) == tuple(map(str, expected))


def test_toolkits_of_the_environment_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = toolkit(tmp_path / "named", f"{toolchain._cuda_major()}000", "cccl/nv/target")
    monkeypatch.setenv("CUDA_HOME", str(named))
    toolchain.find_nvrtc.cache_clear()
    try:
        assert str(named / "include" / "cccl") in toolchain.find_nvrtc().include
    finally:
        toolchain.find_nvrtc.cache_clear()


@needs_cuda_core
@pytest.mark.skipif(
    not any(Path(folder, "nv/target").is_file() for folder in toolchain.find_nvrtc().include),
    reason="CCCL's headers are in no toolkit here",
)
@pytest.mark.parametrize(
    "header", ["cooperative_groups.h", "cuda/std/type_traits", "cub/block/block_reduce.cuh"]
)
def test_headers_with_cccl(header: str) -> None:
    assert RawModule(f"#include <{header}>\n__global__ void f(int* x) {{}}").cubin


# ---- what options and preambles may say


STANDARDS = ["-std=c++11", "--std=c++03", "-std=gnu++0x", "-std=c++23", "-std=c++99", "-std=17"]


@pytest.mark.parametrize("standard", STANDARDS)
def test_standard_that_is_none_of_ours(standard: str) -> None:
    for make in (
        lambda options: RawKernel("__global__ void f() {}", "f", options=options),
        lambda options: ElementwiseKernel("T x", "T y", "y = x", options=options),
        lambda options: ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, options=options),
    ):
        for options in ((standard,), tuple(standard.split("="))):
            with pytest.raises(
                ValueError, match=r"options: -std=.* give c\+\+14, c\+\+17 or c\+\+20"
            ):
                make(options)


def test_standard_that_is_new_enough(device: torch.device) -> None:
    for standard in ("c++14", "c++17", "c++20"):
        options = (f"-std={standard}",)
        kernel = ElementwiseKernel("T x", "T y", "y = x + 3", options=options)
        assert kernel(torch.ones(2, device=device)).tolist() == [4, 4]
        total = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, options=options)
        assert total(torch.ones(2, device=device)).item() == 2


@pytest.mark.parametrize(
    "declared",
    [
        "typedef unsigned long long uint64_t; typedef long long int64_t;",
        "typedef unsigned long long int\n  uint64_t;\ntypedef signed long long int int64_t;",
        "using uint64_t = unsigned long long;\nusing int64_t = long long;",
        "namespace mine { typedef unsigned long long uint64_t; }\nusing mine_t = mine::uint64_t;",
        "typedef unsigned int uint32_t; typedef unsigned char uint8_t;",
    ],
)
def test_preamble_that_declares_the_names_of_cstdint(declared: str, device: torch.device) -> None:
    """As for NVRTC, which has no <cstdint>."""
    preamble = f"{declared}\n#define WIDE uint64_t(1) << 40"
    x = torch.tensor([1, 2], device=device, requires_grad=False)
    kernel = ElementwiseKernel("T x", "T y", "y = x + (WIDE)", preamble=preamble)
    assert kernel(x).tolist() == [2**40 + 1, 2**40 + 2]


def test_reduction_whose_preamble_declares_them(device: torch.device) -> None:
    preamble = "using uint64_t = unsigned long long;\n#define WIDE uint64_t(1) << 40"
    x = torch.tensor([1, 2], device=device)
    total = ReductionKernel("T x", "T y", "x + (WIDE)", "a + b", "y = a", 0, preamble=preamble)
    assert total(x).item() == 2**41 + 3


# ---- what values are combined in


def test_reduce_type(device: torch.device) -> None:
    """Sums that the type of the output does not hold, of rows, columns and parts."""
    mean = ReductionKernel(
        "T x", "T y", "x", "a + b", "y = a / _in_ind.size()", 0, "mean", reduce_type="int64"
    )
    x = torch.full((70, 300), 100, dtype=torch.int8, device=device)
    assert mean(x).dtype == torch.int8 and mean(x).item() == 100
    exact = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, reduce_type="float64")
    for shape in ((3, 400_000), (400_000, 3), (5000, 400)):
        x = torch.ones(shape, device=device)
        x.view(-1)[0], x.view(-1)[-1] = 1e9, -1e9
        for dim in (None, 0, 1):
            expected = x.double().sum(dim).float()
            assert torch.equal(exact(x, dim=dim), expected), (shape, dim)
    assert exact(torch.ones(3, device=device, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(1_500_000,), (3, 200_000), (200_000, 3), (4000, 500)])
def test_reduce_type_that_is_wider_than_8_bytes(
    shape: tuple[int, ...], device: torch.device
) -> None:
    kernel = ReductionKernel(
        "T x", "float32 y", "complex<double>(x, 1)", "a + b", "y = a.real() + 2 * a.imag()", 0,
        reduce_type="complex128",
    )  # fmt: skip
    x = torch.ones(shape, device=device)
    for dim in (None, 0, len(shape) - 1):
        count = x.numel() if dim is None else shape[dim]
        assert kernel(x, dim=dim).unique().tolist() == [3 * count]


def test_reduce_type_by_a_letter(device: torch.device) -> None:
    kernel = ReductionKernel(
        "T x, U y", "float32 z", "T(x * y)", "a + b", "z = a", 0, reduce_type="T"
    )
    x = torch.tensor([1, 2], device=device)
    assert kernel(x, torch.tensor([1.5, 1.75], device=device)).item() == 1 + 3


def test_reduce_type_that_there_is_not() -> None:
    def make(reduce_type: object) -> ReductionKernel:
        return ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, reduce_type=reduce_type)

    with pytest.raises(TypeError, match=r"reduce_type: there is no type 'double'.*float64"):
        make("double")
    with pytest.raises(ValueError, match=r"reduce_type is 'U', a letter that no parameter .* T"):
        make("U")
    with pytest.raises(TypeError, match="reduce_type must be a string or None, but it is dtype"):
        make(torch.float64)


# ---- variables of a module

VARIABLES = """
__constant__ float table[3];
namespace inner { __device__ int counts[2][2]; }
__device__ double one;
__device__ char bytes[3];
static __device__ int hidden;
__global__ void count(float* y) {
  atomicAdd(&inner::counts[0][1], 5);
  one += 0.5;
  y[threadIdx.x] = table[threadIdx.x] + hidden;
}
"""


@needs_cuda_core
@needs_gpu
def test_get_global() -> None:
    module = RawModule(VARIABLES)
    table = module.get_global("table", torch.float32)
    assert table.shape == (3,) and table.is_cuda
    table.copy_(torch.tensor([1.0, 2.0, 3.0]))
    counts = module.get_global("inner::counts", torch.int32, (2, 2))
    counts.zero_()
    one = module.get_global("one", torch.float64, ())
    one.fill_(1)
    y = torch.empty(3, device="cuda")
    module.get_function("count")(1, 3, (y,))
    assert y.tolist() == [1, 2, 3]
    assert counts.tolist() == [[0, 15], [0, 0]] and one.item() > 1
    assert module.get_global("_ZN5inner6countsE").shape == (16,)
    for dtype, shape in ((torch.float64, None), (torch.float32, (4,)), (torch.float32, ())):
        with pytest.raises(ValueError, match=r'get_global\("table"\): the variable has 12 bytes'):
            module.get_global("table", dtype, shape)
    with pytest.raises(ValueError, match='no variable "none"'):
        module.get_global("none")
    with pytest.raises(ValueError, match="must be a CUDA device, but it is cpu"):
        module.get_global("table", device="cpu")


@needs_cuda_core
def test_get_global_of_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    module = RawModule(VARIABLES)
    with pytest.raises(TypeError, match="name must be a str"):
        module.get_global(1)
    with pytest.raises(TypeError, match=r"dtype must be a torch.dtype, but it is 'float32'"):
        module.get_global("table", "float32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r'get_global\("table"\) needs a CUDA GPU'):
        module.get_global("table")


@needs_cuda_core
def test_variables_are_in_the_code_by_these_names() -> None:
    """Also those that no kernel uses."""
    code = RawModule(VARIABLES.partition("__global__")[0]).cubin
    for name in ("table", "inner::counts", "one", "bytes"):
        assert _mangled(name).encode() + b"\0" in code


# ---- cooperative launches

GRID = """
#include <cooperative_groups.h>
__global__ void sum_of_all(int* counts, int* sums) {
  atomicAdd(counts, 1);
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) sums[blockIdx.x] = *counts;
}
"""


@needs_cuda_core
@needs_gpu
def test_cooperative_launch() -> None:
    kernel = RawKernel(
        "__global__ void count(int* counts, int* unused) { atomicAdd(counts, 1); }", "count"
    )
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    counts = torch.zeros(1, dtype=torch.int32, device="cuda")
    sums = torch.zeros(blocks, dtype=torch.int32, device="cuda")
    kernel(blocks, 64, (counts, sums), cooperative=True)
    assert counts.item() == 64 * blocks
    with pytest.raises(ValueError, match=r"a cooperative launch of \d+ blocks of 1024 threads is"):
        kernel(64 * blocks, 1024, (counts, sums), cooperative=True)
    kernel(64 * blocks, 1024, (counts, sums.new_zeros(64 * blocks)))


@needs_cuda_core
@needs_gpu
@pytest.mark.skipif(
    not any(Path(folder, "nv/target").is_file() for folder in toolchain.find_nvrtc().include),
    reason="CCCL's headers, which cooperative_groups.h needs, are in no toolkit here",
)
def test_blocks_wait_for_each_other() -> None:
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    counts = torch.zeros(1, dtype=torch.int32, device="cuda")
    sums = torch.zeros(blocks, dtype=torch.int32, device="cuda")
    RawKernel(GRID, "sum_of_all")(blocks, 64, (counts, sums), cooperative=True)
    assert sums.tolist() == [64 * blocks] * blocks


@needs_cuda_core
def test_cooperative_must_be_a_bool() -> None:
    kernel = RawKernel("__global__ void f() {}", "f")
    with pytest.raises(TypeError, match="cooperative must be a bool"):
        kernel(1, 1, cooperative="yes")
