"""torch_ops on several GPUs: rules for DTensors, and rows of tables that ranks share.

Imported when ``torch.distributed.tensor`` is: then the ops of this package take DTensors.
"""

from torch_ops.distributed import rules  # noqa: F401 (which it registers)
from torch_ops.distributed.rules._frame import shards_of  # noqa: F401 (for nodes in C++)
from torch_ops.distributed.sharded_table import ShardedTable
from torch_ops.distributed.table import gather

__all__ = ["ShardedTable", "gather"]

for _public in (ShardedTable, gather):
    _public.__module__ = __name__
