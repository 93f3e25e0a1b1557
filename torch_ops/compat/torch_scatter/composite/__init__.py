"""What is made of the reductions: a deviation, softmax and its kin."""

from torch_ops.compat.torch_scatter.composite.logsumexp import scatter_logsumexp
from torch_ops.compat.torch_scatter.composite.softmax import scatter_log_softmax, scatter_softmax
from torch_ops.compat.torch_scatter.composite.std import scatter_std

__all__ = ["scatter_log_softmax", "scatter_logsumexp", "scatter_softmax", "scatter_std"]
