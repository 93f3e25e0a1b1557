"""Kernels that are compiled at run time: CUDA C++ in a string, called on tensors.

Compiling needs the package cuda-core (``pip install "cuda-core>=1.2,<2"``). Compiled code is kept
on disk (:func:`cache_info`), and runs from there without that package.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_ops.jit.building.cache import CacheInfo, cache_info, clear_cache
    from torch_ops.jit.building.errors import CompileError
    from torch_ops.jit.elementwise import ElementwiseKernel
    from torch_ops.jit.indexed import IndexedKernel
    from torch_ops.jit.plans import IndexPlan, index_plan
    from torch_ops.jit.raw import RawKernel, RawModule
    from torch_ops.jit.reduction import ReductionKernel
    from torch_ops.jit.registration import op

__all__ = [
    "CacheInfo",
    "CompileError",
    "ElementwiseKernel",
    "IndexPlan",
    "IndexedKernel",
    "RawKernel",
    "RawModule",
    "ReductionKernel",
    "cache_info",
    "clear_cache",
    "index_plan",
    "op",
]

# Each is imported when it is first used: loading a kernel from the cache takes some milliseconds,
# and importing unused modules would take as long again.
_MODULES = {
    "CacheInfo": "building.cache",
    "CompileError": "building.errors",
    "ElementwiseKernel": "elementwise",
    "IndexPlan": "plans",
    "IndexedKernel": "indexed",
    "RawKernel": "raw",
    "RawModule": "raw",
    "ReductionKernel": "reduction",
    "cache_info": "building.cache",
    "clear_cache": "building.cache",
    "index_plan": "plans",
    "op": "registration",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"torch_ops.jit.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
