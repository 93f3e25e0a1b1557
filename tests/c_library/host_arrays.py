"""Arrays and plain NumPy references for the tests of torch_ops_host."""

from __future__ import annotations

import os

import numpy as np
from programs import ROOT

import torch_ops_host as host

DEVICES = ["cpu", None, *(["gpu"] if host.device_count() else [])]


def make(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Values that any sum of a few of is exact in the dtype, and that use its sign."""
    generator = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return generator.integers(low, 5, shape).astype(dtype)


def picks(shape: tuple[int, ...], size: int, dtype: str = "int64", seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, size, shape).astype(dtype)


def reference_gather(source: np.ndarray, index: np.ndarray, batch_dims: int) -> np.ndarray:
    if batch_dims == 0:
        return source[index]
    return np.stack(
        [reference_gather(*pair, batch_dims - 1) for pair in zip(source, index, strict=True)]
    )


def reference_scatter(
    values: np.ndarray, index: np.ndarray, dim_size: int, batch_dims: int
) -> np.ndarray:
    if batch_dims > 0:
        parts = zip(values, index, strict=True)
        return np.stack([reference_scatter(v, i, dim_size, batch_dims - 1) for v, i in parts])
    wide = np.float64 if values.dtype.kind == "f" else values.dtype
    sums = np.zeros((dim_size, *values.shape[index.ndim :]), wide)
    np.add.at(sums, index, values.astype(wide))
    return sums.astype(values.dtype)


def environ(**variables: str) -> dict[str, str]:
    """Of a process of Python that finds these sources."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}
