"""What PyTorch offers around an op, checked for every op: see tests/framework/test_support.py.

A class for each subject; each of its methods `test_<check>` is a row of a table in
docs/support.md, which says for how many ops it passed. Here: the calls that they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from op_checks import Op, Sample, few, is_differentiable
from torch import Tensor
from torch.utils import _pytree as pytree

# What is said of an op that returns integers, or changes a tensor outside autograd.
DERIVATIVE_CHECKS = (
    "vmap_and_grad",
    "jacobians",
    "forward_ad",
    "gradcheck",
    "compiled_func_grad",
    "compiled_autograd",
    "saved_tensor_hooks",
    "checkpoint",
    "anomaly_mode",
    "retain_and_create_graph",
    "missing_and_expanded_gradients",
    "needs_input_grad",
    "inputs_are_not_kept",
    "hooks",
    "grad_scaler",
)


def without_derivative(reason: str) -> dict[str, str]:
    return dict.fromkeys(DERIVATIVE_CHECKS, reason)


@dataclass(frozen=True)
class Call:
    """One call of an op as a function of its tensors, wherever they stand in the arguments."""

    op: Op
    sample: Sample
    # Of each call gradcheck makes thousands: what the arguments are is looked up once. The leaves
    # of their tree, with None for each tensor; where these are; the tree's form.
    _leaves: list[Any] = field(init=False, repr=False, compare=False)
    _places: list[int] = field(init=False, repr=False, compare=False)
    _form: pytree.TreeSpec = field(init=False, repr=False, compare=False)
    _tensors: list[Tensor] = field(init=False, repr=False, compare=False)
    # Which of the tensors can have a gradient.
    inputs: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        leaves, form = pytree.tree_flatten(self.sample.args)
        places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[at] for at in places]
        found = {
            "_leaves": [None if at in places else leaf for at, leaf in enumerate(leaves)],
            "_places": places,
            "_form": form,
            "_tensors": tensors,
            "inputs": tuple(i for i, tensor in enumerate(tensors) if is_differentiable(tensor)),
        }
        vars(self).update(found)

    @property
    def tensors(self) -> list[Tensor]:
        return list(self._tensors)

    def args(self, tensors: Sequence[Tensor]) -> Any:
        """The arguments that are given by position, with these tensors in them."""
        return _filled(self._leaves, self._places, self._form, tensors)

    def __call__(self, *tensors: Tensor) -> Any:
        return self.op.functional(*self.args(tensors), **self.sample.kwargs)

    def without_values(self) -> Callable[..., Any]:
        """The same, but holding no tensor: one that a compiled function holds is its input too."""
        leaves, places, form = self._leaves, self._places, self._form
        function, options = self.op.functional, self.sample.kwargs

        return lambda *tensors: function(*_filled(leaves, places, form, tensors), **options)

    def of_inputs(self, *inputs: Tensor) -> Any:
        """The same, as a function of the tensors that can have a gradient alone."""
        tensors = self.tensors
        for at, given in zip(self.inputs, inputs, strict=True):
            tensors[at] = given
        return self(*tensors)

    def leaves(self, wanted: tuple[int, ...] | None = None) -> list[Tensor]:
        """Copies of those tensors, of which all or the `wanted` require a gradient."""
        return [
            self.tensors[at].detach().clone().requires_grad_(wanted is None or at in wanted)
            for at in self.inputs
        ]

    def loss(self, *tensors: Tensor) -> Tensor:
        """A number whose gradient depends on all of the output, and not linearly."""
        return weighted(self(*tensors))

    def gradients(self) -> tuple[Tensor, ...]:
        inputs = self.leaves()
        return torch.autograd.grad(weighted(self.of_inputs(*inputs)), inputs)

    def shapes(self) -> str:
        return f"{self.op}: {self.sample.shapes()}"


def _filled(
    leaves: list[Any], places: list[int], form: pytree.TreeSpec, tensors: Sequence[Tensor]
) -> Any:
    given = list(leaves)
    for at, tensor in zip(places, tensors, strict=True):
        given[at] = tensor
    return pytree.tree_unflatten(given, form)


def weighted(output: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype, device=output.device)
    return (output * output * weights.view(output.shape)).sum()


def is_small(sample: Sample) -> bool:
    return all(0 < tensor.numel() <= 150 for tensor in sample.tensors()) and not any(
        tensor.is_complex() for tensor in sample.tensors()
    )


def calls(op: Op, device: torch.device, count: int = 5) -> list[Call]:
    """Small calls of different ranks, in float64 where the op has a derivative."""
    given = op.smooth_samples(device) if op.smooth_samples else op.samples(device, torch.float32)
    chosen = few((sample for sample in given if is_small(sample)), count)
    assert chosen, f"{op}: no sample is small and without empty tensors"
    return [Call(op, sample) for sample in chosen]


def sized_call(op: Op, device: torch.device, size: int) -> Call:
    if op.sized is None:
        pytest.fail(f"{op} has no `sized`: a call of which sizes follow from a number")
    return Call(op, op.sized(device, size))


def assert_close(actual: Any, expected: Any, what: str = "") -> None:
    """Trees of tensors that are equal but for the order of sums."""
    torch.testing.assert_close(
        actual, expected, equal_nan=True, msg=lambda text: f"{what}: {text}" if what else text
    )


def names_of(op: Op) -> tuple[str, ...]:
    """What the registered op is called, as a schema has it."""
    return (f"torch_ops::{op.calls or op.name.partition('.')[0]}", str(op.overload))


@contextmanager
def synchronous_errors() -> Iterator[None]:
    """On CUDA each call raises its own error of an index."""
    import torch_ops

    torch_ops.set_error_mode("sync")
    try:
        yield
    finally:
        torch_ops.set_error_mode("async")


def functional_name(op: Op, text: str) -> str:
    """The text of an error as the functional form of an op that works in place has it."""
    return text.replace(f"{op}:", f"{str(op).rstrip('_')}:")


def raised(function: Callable[[], Any]) -> Exception:
    """The exception of a call, which must have one."""
    try:
        with synchronous_errors():
            function()
    except Exception as error:
        return error
    pytest.fail("nothing was raised")
