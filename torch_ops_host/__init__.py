"""The kernels of torch_ops for data in host memory, without torch.

Functions on NumPy arrays, over the C library libtorch_ops_c, which this package also brings for C,
C++, Cython and ctypes (docs/c_api.md). Needs NumPy.
"""

from torch_ops_host._host import (
    batch_gather,
    build_config,
    device_count,
    gather,
    get_num_threads,
    hello,
    library_path,
    pinned_empty,
    relu,
    scatter_add,
    set_device_memory_limit,
    set_num_threads,
    sigmoid,
    version,
)
from torch_ops_host._library import get_include, get_library_dir, get_prefix

__all__ = [
    "batch_gather",
    "build_config",
    "device_count",
    "gather",
    "get_include",
    "get_library_dir",
    "get_num_threads",
    "get_prefix",
    "hello",
    "library_path",
    "pinned_empty",
    "relu",
    "scatter_add",
    "set_device_memory_limit",
    "set_num_threads",
    "sigmoid",
    "version",
]
