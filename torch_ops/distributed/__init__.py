"""torch_ops on several GPUs: rules for DTensors.

Imported when ``torch.distributed.tensor`` is: then the ops of this package take DTensors.
"""

from torch_ops.distributed import activations, elements, points, rows
from torch_ops.distributed._frame import shards_of

__all__ = ["activations", "elements", "points", "rows", "shards_of"]
