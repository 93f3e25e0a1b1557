"""torch's own tests of its ops, given to ours: the samples, references and errors of its OpInfos.

What of these says `out=` is left out: our ops have no such argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from op_checks import assert_same
from support.registry import functional_activations
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import torch_ops


def gather(source: Tensor, dim: int, index: Tensor) -> Tensor:
    return torch_ops.gather_elements(source, index, dim)


def index_select(source: Tensor, dim: int, index: Tensor) -> Tensor:
    if source.dim() == 0:  # torch counts a number as a tensor of one axis; gather needs an axis
        return torch_ops.gather_elements(source, index.reshape(()), dim)
    return torch_ops.gather(source, index, dim)


def scatter_add(source: Tensor, dim: int, index: Tensor, values: Tensor) -> Tensor:
    """To be added to, with values for each entry, is what index_put and scatter_add_ offer."""
    return source + torch_ops.scatter_elements_add(values, index, source.shape, dim)


def embedding(weight: Tensor, input: Tensor, **options: Any) -> Tensor:
    return torch_ops.embedding(input, weight, **options)


OURS: dict[str, Callable[..., Tensor]] = {
    "gather": gather,
    "index_select": index_select,
    "take_along_dim": torch_ops.take_along_dim,
    "scatter_add": scatter_add,
    "nn.functional.embedding": embedding,
}
ACTIVATIONS = {op.name: op for op in functional_activations() if op.torchs is not None}
for _info in op_db:
    if (_name := _info.name.rpartition(".")[2]) in ACTIVATIONS:
        OURS[_info.name] = ACTIVATIONS[_name].function
INFOS = [info for info in op_db if info.name in OURS]
for _info in INFOS:
    if (
        _info.name == "index_select"
    ):  # PyTorch Geometric replaces torch's, by one that takes no number
        _info.op = torch._C._VariableFunctions.index_select
# Sums in another order and precision, another formula. All else is equal to the last bit.
ROUNDED = {"scatter_add"} | {
    name for name, op in ACTIVATIONS.items() if op.tolerance(torch.float64)[0] > 0
}


def refused(info: OpInfo, sample: SampleInput) -> type[Exception] | None:
    """What torch takes and ours does not, and the exception."""
    if info.name == "scatter_add" and sample.input.dtype == torch.bool:
        return TypeError  # no sum of truth values
    return None


# torch raises RuntimeError for nearly everything. What ours is, by what torch says.
ERRORS: dict[str, type[Exception]] = {
    "Size does not match": ValueError,
    "Index tensor must have the same number of dimensions": ValueError,
    "is out of bounds for dimension": IndexError,
    "'weight' must be 2-D": ValueError,
}


def test_every_info_is_found() -> None:
    assert {info.name for info in INFOS} == set(OURS)
    assert {name.rpartition(".")[2] for name in OURS} >= set(ACTIVATIONS)


def compare(info: OpInfo, sample: SampleInput, actual: Tensor, expected: Tensor) -> None:
    what = f"{actual.dtype} {sample.summary()}"
    # max_norm scales rows by a norm, which torch computes in 16 bits.
    if info.name in ROUNDED or "max_norm" in sample.kwargs:
        torch.testing.assert_close(actual, expected, equal_nan=True, msg=lambda t: f"{what}: {t}")
    else:
        assert_same(actual, expected, what)


def results(function: Callable[..., Tensor], sample: SampleInput) -> list[Tensor]:
    """The output and, where it has any, the gradients of a weighted sum of it."""

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    given = [copied(value) for value in (sample.input, *sample.args)]
    leaves = [each for each in given if isinstance(each, Tensor) and each.requires_grad]
    if "max_norm" in sample.kwargs:  # it overwrites the weight, so that must be no leaf
        leaves[:1] = []
    output = function(*given, **sample.kwargs)
    if not output.requires_grad or not leaves:
        return [output.detach()]
    weights = torch.linspace(0.5, 1.5, output.numel(), device=output.device).to(output.dtype)
    gradients = torch.autograd.grad(output, leaves, weights.view(output.shape))
    return [output.detach(), *(g.to_dense() if g.is_sparse else g for g in gradients)]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_samples(device: torch.device, info: OpInfo) -> None:
    """All of torch's samples, also without gaps in memory, in each dtype; and the gradients."""
    ours = OURS[info.name]
    for dtype in sorted(info.supported_dtypes(device.type), key=str):
        wanted = dtype in info.supported_backward_dtypes(device.type)
        for requires_grad in {False, wanted}:
            count = 0
            for sample in info.sample_inputs(device, dtype, requires_grad=requires_grad):
                error = refused(info, sample)
                # Where there are gradients, those without gaps are enough without them.
                layouts = [sample]
                if requires_grad or not wanted:
                    layouts.append(sample.noncontiguous())
                for layout in layouts:
                    if error:
                        with pytest.raises(error):
                            results(ours, layout)
                        continue
                    actual, expected = results(ours, layout), results(info.op, layout)
                    compare(info, sample, actual[0], expected[0])
                    # Gradients of picks are sums, which torch takes in 16 bits.
                    torch.testing.assert_close(actual[1:], expected[1:], equal_nan=True)
                count += 1
            assert count > 0


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_references(device: torch.device, info: OpInfo) -> None:
    """The larger set of inputs that torch compares with NumPy, where it has a reference."""
    ours = OURS[info.name]
    for sample in info.reference_inputs(device, torch.float32):
        if refused(info, sample):
            continue
        actual = results(ours, sample)[0]
        compare(info, sample, actual, results(info.op, sample)[0])
        if info.ref is not None:
            numpy = sample.numpy()
            expected = info.ref(numpy.input, *numpy.args, **numpy.kwargs)
            expected = torch.from_numpy(np.asarray(expected)).to(actual.dtype)
            torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize(
    "info", [info for info in INFOS if info.error_inputs_func], ids=lambda info: info.name
)
def test_errors(device: torch.device, info: OpInfo, sync_mode: None) -> None:
    """What torch refuses ours refuses too: by an exception that says of which kind the error is."""
    for error in info.error_inputs(device):
        sample = error.sample_input
        # `scatter_add` above is ours and a sum, which takes two dtypes.
        if "out" in sample.kwargs or "Expected self.dtype" in str(error.error_regex):
            continue
        kinds = [kind for text, kind in ERRORS.items() if text in str(error.error_regex)]
        assert len(kinds) == 1, error.error_regex
        with pytest.raises(kinds[0]):
            OURS[info.name](sample.input, *sample.args, **sample.kwargs)
