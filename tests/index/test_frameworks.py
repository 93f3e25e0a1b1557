"""Agreement with TensorFlow, JAX, ONNX and NumPy, on the cases of framework_cases.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from framework_cases import CASES, FrameworkCase
from gathering import values_for
from hypothesis import given
from hypothesis import strategies as st
from modes import random_index, seeds

import torch_ops


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees(device: torch.device, case: FrameworkCase) -> None:
    inputs = [
        torch.tensor(
            given,
            dtype=torch.int64 if at in case.index_at else getattr(torch, case.dtype),
            device=device,
        )
        for at, given in enumerate(case.inputs)
    ]
    expected = torch.tensor(case.expected, dtype=getattr(torch, case.dtype))
    actual = getattr(torch_ops, case.call)(*inputs, **case.options)
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=0, atol=0, equal_nan=True, msg=lambda t: f"{case.note}: {t}"
    )


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    picks=st.lists(st.integers(0, 4), max_size=2),
    axis=st.integers(0, 2),
    mode=st.sampled_from(["raise", "wrap", "clip"]),
    seed=seeds,
)
def test_any_take_of_numpy(
    device: torch.device, shape: list[int], picks: list[int], axis: int, mode: str, seed: int
) -> None:
    """NumPy is here: its modes, on any shape."""
    axis %= len(shape)
    source = values_for(tuple(shape), torch.device("cpu"), torch.float64)
    index = random_index(tuple(picks), shape[axis], torch.int64, mode, seed)
    expected = np.take(source.numpy(), index.numpy(), axis=axis, mode=mode)
    actual = torch_ops.gather(source.to(device), index.to(device), axis, mode=mode)
    assert np.array_equal(actual.cpu().numpy(), expected)
