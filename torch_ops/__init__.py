"""Operators for PyTorch training code: gathers, their gradients, and activations.

``python -m torch_ops`` shows what is installed and runs one of each.
"""

import importlib

from torch_ops._diagnose import InstallationError, load_extensions
from torch_ops._version import __version__

load_extensions()  # before the ops' modules, which look their kernels up

from torch_ops.errors import check_errors, get_error_mode, set_error_mode  # noqa: E402
from torch_ops.ops.gather import BatchGather, Gather, GatherFunction, batch_gather, gather  # noqa: E402
from torch_ops.ops.plan import GatherPlan, gather_plan  # noqa: E402
from torch_ops.ops.relu import ReLU, ReLUFunction, relu  # noqa: E402
from torch_ops.ops.scatter import ScatterAddFunction, scatter_add  # noqa: E402
from torch_ops.ops.sigmoid import Sigmoid, SigmoidFunction, sigmoid  # noqa: E402

__all__ = [
    "BatchGather",
    "Gather",
    "GatherFunction",
    "GatherPlan",
    "InstallationError",
    "ReLU",
    "ReLUFunction",
    "ScatterAddFunction",
    "Sigmoid",
    "SigmoidFunction",
    "__version__",
    "batch_gather",
    "check_errors",
    "gather",
    "gather_plan",
    "get_error_mode",
    "relu",
    "scatter_add",
    "set_error_mode",
    "sigmoid",
]


def __getattr__(name: str) -> object:
    # Loaded when it is first asked for, so that who uses the ops alone does not wait for it.
    if name == "jit":
        return importlib.import_module("torch_ops.jit")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Users see, pickle and read about torch_ops.ReLU, not torch_ops.ops.relu.ReLU.
for _name in __all__:
    if _name != "__version__":
        globals()[_name].__module__ = __name__
del _name
