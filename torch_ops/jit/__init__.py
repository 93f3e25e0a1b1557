"""Kernels that are compiled at run time: CUDA C++ in a string, called on tensors.

Compiling needs the package cuda-core (``pip install "torch_ops[jit]"``). What was compiled once is
kept on disk (:func:`cache_info`) and runs without it.
"""

from torch_ops.jit._cache import CacheInfo, cache_info, clear_cache
from torch_ops.jit._errors import CompileError
from torch_ops.jit.elementwise import ElementwiseKernel
from torch_ops.jit.op import op
from torch_ops.jit.raw import RawKernel, RawModule
from torch_ops.jit.reduction import ReductionKernel

__all__ = [
    "CacheInfo",
    "CompileError",
    "ElementwiseKernel",
    "RawKernel",
    "RawModule",
    "ReductionKernel",
    "cache_info",
    "clear_cache",
    "op",
]

# Users see, pickle and read about torch_ops.jit.RawKernel, not torch_ops.jit.raw.RawKernel.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
