"""The kernels of torch_ops for data in host memory, without torch.

Functions on NumPy arrays, over the C library libtorch_ops_c, which this package also brings for C,
C++, Cython and ctypes (docs/c_api.md). The functions need NumPy; where the library is for other
programs can be asked without it.
"""

from torch_ops_host._library import get_include, get_library_dir, get_prefix, library_path

try:
    from torch_ops_host._host import (
        batch_gather,
        build_config,
        device_count,
        gather,
        gather_elements,
        gather_points,
        get_num_threads,
        hello,
        leaky_relu,
        pinned_empty,
        relu,
        scatter,
        scatter_add,
        scatter_elements_add,
        set_device_memory_limit,
        set_num_threads,
        sigmoid,
        version,
    )
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ModuleNotFoundError(
            f"torch_ops_host.{name} needs NumPy, which is not installed: pip install numpy",
            name="numpy",
        )


__all__ = [
    "batch_gather",
    "build_config",
    "device_count",
    "gather",
    "gather_elements",
    "gather_points",
    "get_include",
    "get_library_dir",
    "get_num_threads",
    "get_prefix",
    "hello",
    "leaky_relu",
    "library_path",
    "pinned_empty",
    "relu",
    "scatter",
    "scatter_add",
    "scatter_elements_add",
    "set_device_memory_limit",
    "set_num_threads",
    "sigmoid",
    "version",
]
