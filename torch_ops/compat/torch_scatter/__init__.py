"""The functions of torch_scatter, by the ops of this library.

Names, signatures and the rules by which an index broadcasts are those of torch_scatter 2.1. In code
that has ``import torch_scatter`` write ``import torch_ops.compat.torch_scatter as torch_scatter``;
or have the import itself find this module, by ``torch_ops.compat.install("torch_scatter")``.
``torch.jit.script`` and ``torch.compile`` take the functions.

Means of integers, positions, ``out`` and ``eps`` are as in torch_scatter. What is otherwise:

- 16-bit floats are summed in float32.
- A product has a right gradient for a value that is 0, where torch_scatter's is 0.
- The largest and the smallest of values with a NaN among them are NaN; of infinities, infinite.
- An entry out of range is an IndexError.
- The result of a softmax must not be changed in place before the backward pass, which needs it.
- The gradient of ``out`` is that of what is computed; there is one of any order.
"""

from torch_ops.compat.torch_scatter.composite import (
    scatter_log_softmax,
    scatter_logsumexp,
    scatter_softmax,
    scatter_std,
)
from torch_ops.compat.torch_scatter.scatter import (
    scatter,
    scatter_add,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_mul,
    scatter_sum,
)
from torch_ops.compat.torch_scatter.segment_coo import (
    gather_coo,
    segment_add_coo,
    segment_coo,
    segment_max_coo,
    segment_mean_coo,
    segment_min_coo,
    segment_sum_coo,
)
from torch_ops.compat.torch_scatter.segment_csr import (
    gather_csr,
    segment_add_csr,
    segment_csr,
    segment_max_csr,
    segment_mean_csr,
    segment_min_csr,
    segment_sum_csr,
)

__version__ = "2.1.2"  # whose functions these are

__all__ = [
    "__version__",
    "gather_coo",
    "gather_csr",
    "scatter",
    "scatter_add",
    "scatter_log_softmax",
    "scatter_logsumexp",
    "scatter_max",
    "scatter_mean",
    "scatter_min",
    "scatter_mul",
    "scatter_softmax",
    "scatter_std",
    "scatter_sum",
    "segment_add_coo",
    "segment_add_csr",
    "segment_coo",
    "segment_csr",
    "segment_max_coo",
    "segment_max_csr",
    "segment_mean_coo",
    "segment_mean_csr",
    "segment_min_coo",
    "segment_min_csr",
    "segment_sum_coo",
    "segment_sum_csr",
]
