"""The ops that take no DTensors: an error that names the function, what it was given, and a remedy.

Without these rules torch's error would name the registered op alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from torch_ops.distributed.rules._frame import rule

_ops = torch.ops.torch_ops
_SOFTMAX = "softmax, log_softmax and logsumexp"

# What a user calls, where the op is not given a name.
_FUNCTIONS = {
    _ops.put_points.default: "index_put",
    _ops.put_points_.default: "index_put_",
    _ops.scatter_add_.default: "scatter_add_",
    _ops._softmax.default: _SOFTMAX,
    _ops._segment_ids.default: _SOFTMAX,
    _ops._segment_sum.default: "segment_reduce",
    _ops._segment_best.default: "segment_reduce",
    _ops._segment_arg.default: "segment_reduce",
    _ops._segment_prod.default: "segment_reduce",
    _ops.gather_csr.default: "gather_csr",
}


_OPTIONS = {"embedding": "max_norm", "embedding_bag": "max_norm", "scatter_": 'reduce="sum"'}


def _refuse(op: torch._ops.OpOverload, *args: Any, name: str | None = None, **_: Any) -> NoReturn:
    function = (name or _FUNCTIONS[op]).partition(":")[0]
    found = []
    for argument, value in zip(op._schema.arguments, args, strict=False):
        parts = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(part, DTensor) for part in parts):
            found.append("index" if argument.name == "coordinates" else argument.name)
    if function.startswith("index"):
        found = ["source" if each == "out" else each for each in found]
    if function.startswith("embedding"):
        found = ["weight"]
    option = f" with {_OPTIONS[function]}" if function in _OPTIONS else ""
    what = " and ".join(found) + (" are DTensors" if len(found) > 1 else " is a DTensor")
    raise NotImplementedError(
        f"{function}{option}: there is no rule for DTensors, and {what}. Give it plain tensors: "
        "full_tensor() is all of a DTensor, to_local() the part of this rank."
    )


for _op in _FUNCTIONS:
    rule(_op)(partial(_refuse, _op))
