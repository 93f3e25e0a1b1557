"""Operators for PyTorch training code: gathers, their gradients, and activations.

Beside these, ``torch_ops.jit`` compiles kernels at run time, ``torch_ops.host`` has functions on
NumPy arrays, and ``torch_ops.decompositions`` has the ops in torch's own, for other runtimes.

``python -m torch_ops`` shows what is installed and runs one of each.
"""

import importlib

from torch_ops._install.diagnose import (
    InstallationError,
    asks_to_build,
    explain_missing,
    load_extensions,
)
from torch_ops._version import __version__

if asks_to_build():  # python -m torch_ops build: for a torch with which the rest cannot be imported
    raise SystemExit(importlib.import_module("torch_ops._install.build").main())

load_extensions()  # before the ops' modules, which look their kernels up

try:
    from torch import ops as _torch_ops

    from torch_ops._replace_modules import Replacement, replace_modules
    from torch_ops._when_imported import when_imported
    from torch_ops.errors import check_errors, get_error_mode, set_error_mode
    from torch_ops.ops._scripting import refuse
    from torch_ops.ops.elements import (
        gather_elements,
        scatter_elements_add,
        take_along_dim,
    )
    from torch_ops.ops.embedding import Embedding, embedding
    from torch_ops.ops.embedding_bag import EmbeddingBag, embedding_bag
    from torch_ops.ops.gather import BatchGather, Gather, GatherFunction, batch_gather, gather
    from torch_ops.ops.indexing.gather_nd import gather_nd
    from torch_ops.ops.indexing.index import index, index_add, index_put, index_put_
    from torch_ops.ops.indexing.masked_gather import masked_gather, masked_scatter
    from torch_ops.ops.plan import GatherPlan, gather_plan, plan_cache, register_plan
    from torch_ops.ops.reductions.scatter import ScatterAddFunction, scatter_add
    from torch_ops.ops.reductions.scatter_reduce import scatter, scatter_, scatter_add_
    from torch_ops.ops.reductions.segments import gather_csr, segment_reduce
    from torch_ops.ops.reductions.softmax import log_softmax, logsumexp, softmax
    from torch_ops.ops.relu import (
        LeakyReLU,
        ReLU,
        ReLUFunction,
        leaky_relu,
        leaky_relu_,
        relu,
        relu_,
    )
    from torch_ops.ops.sigmoid import Sigmoid, SigmoidFunction, sigmoid, sigmoid_
except ModuleNotFoundError as error:
    if not str(error.name).startswith("torch_ops."):
        raise
    raise explain_missing(error) from error  # in a folder that was copied by half

__all__ = [
    "BatchGather",
    "Embedding",
    "EmbeddingBag",
    "Gather",
    "GatherFunction",
    "GatherPlan",
    "InstallationError",
    "LeakyReLU",
    "ReLU",
    "ReLUFunction",
    "Replacement",
    "ScatterAddFunction",
    "Sigmoid",
    "SigmoidFunction",
    "__version__",
    "batch_gather",
    "check_errors",
    "embedding",
    "embedding_bag",
    "gather",
    "gather_csr",
    "gather_elements",
    "gather_nd",
    "gather_plan",
    "get_error_mode",
    "index",
    "index_add",
    "index_put",
    "index_put_",
    "leaky_relu",
    "leaky_relu_",
    "log_softmax",
    "logsumexp",
    "masked_gather",
    "masked_scatter",
    "plan_cache",
    "register_plan",
    "relu",
    "relu_",
    "replace_modules",
    "scatter",
    "scatter_",
    "scatter_add",
    "scatter_add_",
    "scatter_elements_add",
    "segment_reduce",
    "set_error_mode",
    "sigmoid",
    "sigmoid_",
    "softmax",
    "take_along_dim",
]


# Loaded when they are first asked for, so that who uses the ops alone does not wait for them.
_MODULES = ("compat", "decompositions", "distributed", "host", "jit")

# Who uses DTensors imports torch's module, and need not import ours.
when_imported("torch.distributed.tensor", "torch_ops.distributed")
# So that torch.compile fuses our ops.
when_imported("torch._inductor.decomposition", "torch_ops._inductor")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"torch_ops.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


# Users see, pickle and read about torch_ops.ReLU, not torch_ops.ops.relu.ReLU.
for _name in __all__:
    if _name != "__version__":
        globals()[_name].__module__ = __name__
    if _name[0].islower() and hasattr(_torch_ops.torch_ops, _name):  # is an op
        refuse(globals()[_name])
del _name
