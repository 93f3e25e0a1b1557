"""How the ops take DTensors: a module of rules for each kind of op, all on one frame."""

from torch_ops.distributed.rules import (  # noqa: F401
    activations,
    elements,
    masks,
    points,
    refused,
    rows,
)
