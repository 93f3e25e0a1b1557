"""torch.jit.script cannot read the public functions: it gets an error that says what to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch


@dataclass(frozen=True)
class Refused:
    """The attribute of a function or layer that torch.jit.script calls before it reads it. Raises.

    ``op`` is the registered op that does the same.
    """

    name: str
    op: str

    def __call__(self) -> NoReturn:
        packet: Any = getattr(torch.ops.torch_ops, self.op)
        raise NotImplementedError(
            f"torch.jit.script cannot read torch_ops.{self.name}. Call the registered op in its "
            f"place, torch.ops.torch_ops.{self.op}; its arguments are {packet.default._schema}. "
            "(The layers ReLU, LeakyReLU, Sigmoid and Embedding can be scripted.)"
        )


def refuse(function: Any) -> None:
    """For a public function that has a registered op of its name."""
    function.__prepare_scriptable__ = Refused(function.__name__, function.__name__)
