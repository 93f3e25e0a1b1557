"""One buffer on the GPU, shared without a copy among torch, CuPy, PyCUDA and Numba.

Each library writes to the buffer and each other sees it: as a view of a torch tensor, and as an
argument of a RawKernel that writes to the library's own array. What is not installed is left out.

    python examples/jit/shared_buffers.py
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit import RawKernel

N = 1000

ADD = RawKernel(
    """
__global__ void add(float* x, float value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += value;
}
""",
    "add",
)


def add(array: Any, value: float) -> torch.cuda.Event | None:
    """Adds to any array on torch's current stream; returns the event that this has been done."""
    return ADD(-(-N // 256), 256, (array, value, N), return_event=True)


def address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def with_cupy(tensor: Tensor) -> str:
    cupy = importlib.import_module("cupy")
    view = cupy.from_dlpack(tensor)
    assert address(view) == tensor.data_ptr()
    handle = cupy.cuda.get_current_stream().ptr  # 0: the legacy default stream
    stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()

    # CuPy writes on its own stream; torch's current stream waits for that.
    view += 1
    torch.cuda.current_stream().wait_stream(stream)
    assert bool((tensor == 1).all())

    # A kernel waits for CuPy by itself; CuPy's stream is told to wait for the kernel.
    array = cupy.full(N, 10, dtype=cupy.float32)
    event = add(array, 5.0)
    stream.wait_event(event)
    assert bool((array == 15).all())
    return str(cupy.__version__)


def with_pycuda(tensor: Tensor) -> str:
    importlib.import_module("pycuda.autoprimaryctx")  # torch's context, not one of PyCUDA's own
    gpuarray = importlib.import_module("pycuda.gpuarray")
    view = gpuarray.GPUArray((N,), "float32", gpudata=tensor.data_ptr())

    # PyCUDA works on the legacy default stream, which is torch's too unless another is chosen.
    view += 1
    assert bool((tensor == 1).all())

    array = gpuarray.zeros(N, "float32") + 10
    event = add(array, 5.0)
    event.synchronize()
    assert (array.get() == 15).all()
    return str(importlib.import_module("pycuda").VERSION_TEXT)


def with_numba(tensor: Tensor) -> str:
    cuda = importlib.import_module("numba.cuda")
    view = cuda.as_cuda_array(tensor)
    assert address(view) == tensor.data_ptr()

    @cuda.jit
    def add_one(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    add_one[-(-N // 256), 256](view)  # on the legacy default stream
    assert bool((tensor == 1).all())

    array = cuda.as_cuda_array(torch.full((N,), 9.0, device="cuda"))
    add_one[-(-N // 256), 256](array)
    event = add(array, 5.0)
    event.synchronize()
    assert (array.copy_to_host() == 15).all()
    return str(importlib.import_module("numba").__version__)


LIBRARIES: dict[str, Callable[[Tensor], str]] = {
    "cupy": with_cupy,
    "pycuda": with_pycuda,
    "numba": with_numba,
}


def check_installed(name: str) -> None:
    """Raises where a library is not installed, or does not fit what is installed beside it."""
    if name != "numba":
        importlib.import_module(name)
        return
    # Numba imports the larger part of itself when it first compiles.
    importlib.import_module("numba.cuda").jit(lambda: None)[1, 1]()


def main() -> None:
    if not torch.cuda.is_available():
        print("There is no GPU to share a buffer on.")
        return
    for name, share in LIBRARIES.items():
        try:
            check_installed(name)
        except Exception as error:
            print(f"{name}: left out, {type(error).__name__}: {error}")
            continue
        version = share(torch.zeros(N, device="cuda"))
        print(f"{name} {version}: writes are seen on both sides, nothing was copied")


if __name__ == "__main__":
    main()
