"""What other frameworks give for small calls, so that none of them needs installing.

Each case says which function of which framework it is, and where its result is from:

    documented    the result stands in that function's documentation, as an example
    definition    worked out by hand from the equation or the sentence in its documentation that is
                  quoted in short beside the case

`call` is our function's name; `inputs` are its tensors, as nested lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NAN = float("nan")


@dataclass(frozen=True)
class FrameworkCase:
    framework: str
    origin: str
    call: str
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    expected: Any
    note: str = ""
    dtype: str = "float32"  # of what is not an index
    index_at: tuple[int, ...] = field(default=(1,))  # which inputs are indices

    def __str__(self) -> str:
        return f"{self.framework}-{self.origin}-{self.call}"


MATRIX = [[0.0, 1, 2], [10, 11, 12], [20, 21, 22], [30, 31, 32]]
BATCHED = [[0.0, 0, 1, 0, 2], [3, 0, 0, 0, 4], [0, 5, 0, 6, 0]]
CUBE = [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]

TENSORFLOW = [
    FrameworkCase(
        "tf.gather", "documented", "gather", (MATRIX, [3, 1]), {}, [[30, 31, 32], [10, 11, 12]]
    ),
    FrameworkCase(
        "tf.gather",
        "documented",
        "gather",
        (MATRIX, [2, 1]),
        {"dim": 1},
        [[2, 1], [12, 11], [22, 21], [32, 31]],
    ),
    FrameworkCase(
        "tf.gather",
        "documented",
        "gather",
        (BATCHED, [[2, 4], [0, 4], [1, 3]]),
        {"dim": 1, "batch_dims": 1},
        [[1, 2], [3, 4], [5, 6]],
    ),
    FrameworkCase(
        "tf.gather",
        "definition",
        "gather",
        (CUBE, [[2, 0], [1, 1]]),
        {"dim": 2, "batch_dims": 1},
        [[[2, 0], [5, 3]], [[7, 7], [10, 10]]],
        "shape params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis+1:]",
    ),
    FrameworkCase(
        "tf.gather",
        "definition",
        "gather",
        (CUBE, [1, 0]),
        {"batch_dims": 1},
        [[3, 4, 5], [6, 7, 8]],
        "batch_dims equal to the index's rank: one slice for each batch; axis is batch_dims",
    ),
    FrameworkCase(
        "tf.gather",
        "definition",
        "gather",
        (CUBE, 1),
        {"dim": -1},
        [[1, 4], [7, 10]],
        "a 0-dimensional index takes the axis away; a negative axis counts from the end",
    ),
    FrameworkCase(
        "tf.math.unsorted_segment_sum",
        "definition",
        "scatter_add",
        ([[1.0, 2], [3, 4], [5, 6]], [0, 2, 0]),
        {"dim_size": 3},
        [[6, 8], [0, 0], [3, 4]],
        "output[i] is the sum of data[j] with segment_ids[j] == i; 0 for an empty segment",
    ),
    FrameworkCase(
        "tf.math.unsorted_segment_mean",
        "definition",
        "scatter",
        ([1.0, 5, 3], [1, 1, 2]),
        {"dim_size": 4, "reduce": "mean"},
        [0, 3, 3, 0],
        "the sum over the number of entries; 0 for an empty segment",
    ),
    FrameworkCase(
        "tf.math.unsorted_segment_prod",
        "definition",
        "scatter",
        ([2.0, 5, 3], [1, 1, 2]),
        {"dim_size": 4, "reduce": "prod"},
        [1, 10, 3, 1],
        "the product; 1 for an empty segment",
    ),
]

NUMPY = [
    FrameworkCase(
        "np.take", "documented", "gather", ([4, 3, 5, 7, 6, 8], [0, 1, 4]), {}, [4, 3, 6]
    ),
    FrameworkCase(
        "np.take",
        "documented",
        "gather",
        ([4, 3, 5, 7, 6, 8], [[0, 1], [2, 3]]),
        {},
        [[4, 3], [5, 7]],
    ),
    FrameworkCase(
        "np.take",
        "definition",
        "gather",
        (MATRIX, [-1, 3, -5]),
        {"dim": 1, "mode": "wrap"},
        [[2, 0, 1], [12, 10, 11], [22, 20, 21], [32, 30, 31]],
        "wrap: around, as often as it takes",
    ),
    FrameworkCase(
        "np.take",
        "definition",
        "gather",
        ([4, 3, 5], [-2, 7, 1]),
        {"mode": "clip"},
        [4, 5, 3],
        "clip: too large is the last; negative numbers are 0",
    ),
    FrameworkCase(
        "np.take_along_axis",
        "documented",
        "take_along_dim",
        ([[10, 30, 20], [60, 40, 50]], [[0, 2, 1], [1, 2, 0]]),
        {"dim": 1},
        [[10, 20, 30], [40, 50, 60]],
    ),
    FrameworkCase(
        "np.take_along_axis",
        "documented",
        "take_along_dim",
        ([[10, 30, 20], [60, 40, 50]], [[1], [0]]),
        {"dim": 1},
        [[30], [60]],
        "of argmax, with an axis of length 1 kept",
    ),
    FrameworkCase(
        "np.take_along_axis",
        "definition",
        "take_along_dim",
        ([[10, 30, 20], [60, 40, 50]], [[2, 0]]),
        {"dim": 1},
        [[20, 10], [50, 60]],
        "arr and indices broadcast against each other on the other axes",
    ),
    FrameworkCase(
        "np.take_along_axis",
        "definition",
        "take_along_dim",
        ([[10, 30, 20], [60, 40, 50]], [[-1, 0], [1, -3]]),
        {"dim": 1},
        [[20, 10], [40, 60]],
        "negative indices from the end",
    ),
]

JAX = [
    FrameworkCase(
        "jnp.take",
        "definition",
        "gather",
        ([[1.0, 2, 3], [4, 5, 6]], [2, 0, 3, -1, -4]),
        {"dim": 1, "mode": "fill"},
        [[3, 1, NAN, 3, NAN], [6, 4, NAN, 6, NAN]],
        "mode fill, the default: NaN for inexact types; negative indices from the end",
    ),
    FrameworkCase(
        "jnp.take",
        "definition",
        "gather",
        ([1, 2, 3], [3, 1]),
        {"mode": "fill"},
        [-(2**31), 2],
        "the largest negative value for signed types",
        dtype="int32",
    ),
    FrameworkCase(
        "jnp.take",
        "definition",
        "gather",
        ([1, 2, 3], [3, 1]),
        {"mode": "fill"},
        [255, 2],
        "the largest positive value for unsigned types",
        dtype="uint8",
    ),
    FrameworkCase(
        "jnp.take",
        "definition",
        "gather",
        ([False, False], [2, 1]),
        {"mode": "fill"},
        [True, False],
        "True for booleans",
        dtype="bool",
    ),
    FrameworkCase(
        "jnp.take",
        "definition",
        "gather",
        ([1.0, 2, 3], [3, 1, -4]),
        {"mode": "fill", "fill_value": -7},
        [-7, 2, -7],
        "fill_value",
    ),
    FrameworkCase(
        "jnp.take_along_axis",
        "definition",
        "take_along_dim",
        ([[1.0, 2], [3, 4]], [[0, 2], [-1, -3]]),
        {"dim": 0, "mode": "fill"},
        [[1, NAN], [3, NAN]],
        "mode fill, the default, as for jnp.take",
    ),
    FrameworkCase(
        "jax.ops.segment_sum",
        "definition",
        "scatter_add",
        ([1.0, 2, 4], [0, 5, 0]),
        {"dim_size": 3, "mode": "fill"},
        [5, 0, 0],
        "values whose segment is out of range are dropped",
    ),
    FrameworkCase(
        "jax.numpy.ndarray.at[].add(mode='drop')",
        "definition",
        "scatter_add",
        ([1.0, 2, 4, 8], [-1, 3, 0, -4]),
        {"dim_size": 3, "mode": "fill"},
        [4, 0, 1],
        "drop: out-of-bounds updates are discarded; negative indices from the end",
    ),
]

ONNX = [
    FrameworkCase(
        "ONNX Gather",
        "documented",
        "gather",
        ([[1.0, 1.2], [2.3, 3.4], [4.5, 5.7]], [[0, 1], [1, 2]]),
        {"dim": 0},
        [[[1.0, 1.2], [2.3, 3.4]], [[2.3, 3.4], [4.5, 5.7]]],
    ),
    FrameworkCase(
        "ONNX Gather",
        "documented",
        "gather",
        ([[1.0, 1.2, 1.9], [2.3, 3.4, 3.9], [4.5, 5.7, 5.9]], [[0, 2]]),
        {"dim": 1},
        [[[1.0, 1.9]], [[2.3, 3.9]], [[4.5, 5.9]]],
    ),
    FrameworkCase(
        "ONNX Gather",
        "definition",
        "gather",
        ([0.0, 1, 2, 3], [0, -1, -4]),
        {"mode": "fill"},
        [0, 3, 0],
        "indices are within [-s, s-1]: the negative ones of mode fill",
    ),
    FrameworkCase(
        "ONNX GatherElements",
        "documented",
        "gather_elements",
        ([[1, 2], [3, 4]], [[0, 0], [1, 0]]),
        {"dim": 1},
        [[1, 1], [4, 3]],
    ),
    FrameworkCase(
        "ONNX GatherElements",
        "documented",
        "gather_elements",
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 0], [2, 0, 0]]),
        {"dim": 0},
        [[4, 8, 3], [7, 2, 3]],
        "the index is shorter on the axis",
    ),
    FrameworkCase(
        "ONNX GatherElements",
        "definition",
        "gather_elements",
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[-1, -2, 0], [-2, 0, 0]]),
        {"dim": 0, "mode": "fill"},
        [[7, 5, 3], [4, 2, 3]],
        "indices are within [-s, s-1]",
    ),
    FrameworkCase(
        "ONNX ScatterElements(reduction=add)",
        "definition",
        "scatter_elements_add",
        ([[1.0, 1.25, 1.5], [2, 2.25, 2.5]], [[1, 0, 2], [0, 2, 1]]),
        {"size": (3, 3), "dim": 0},
        [[2, 1.25, 0], [1, 0, 2.5], [0, 2.25, 1.5]],
        "output[indices[i][j]][j] += updates[i][j], on zeros",
    ),
]

TORCH_SCATTER = [
    FrameworkCase(
        "torch_scatter.scatter_max",
        "documented",
        "scatter",
        ([[2, 0, 1, 4, 3], [0, 2, 1, 3, 4]], [[4, 5, 4, 2, 3], [0, 0, 2, 2, 1]]),
        {"dim_size": 6, "batch_dims": 1, "reduce": "amax"},
        [[0, 0, 4, 3, 2, 0], [2, 4, 3, 0, 0, 0]],
    ),
    FrameworkCase(
        "torch_scatter.scatter_mul",
        "definition",
        "scatter",
        ([2.0, 3, 4], [2, 2, 0]),
        {"dim_size": 3, "reduce": "prod"},
        [4, 1, 6],
        "the product; 1 where nothing is scattered",
    ),
    FrameworkCase(
        "torch_scatter.scatter_mean",
        "definition",
        "scatter",
        ([-3, 2, 5], [0, 0, 2]),
        {"dim_size": 3, "reduce": "mean"},
        [-1, 0, 5],
        "integers are rounded down",
        dtype="int64",
    ),
]

CASES = [*TENSORFLOW, *NUMPY, *JAX, *ONNX, *TORCH_SCATTER]
