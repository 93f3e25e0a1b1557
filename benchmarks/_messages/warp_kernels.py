"""The messages of benchmarks/messages.py as kernels of NVIDIA Warp, which sums by atomics.

Annotations are read by Warp, so this file has no `from __future__ import annotations`.
"""

from collections.abc import Callable

import torch
import warp as wp
from torch import Tensor

wp.config.quiet = True
wp.init()


@wp.kernel
def weighted(
    x: wp.array2d(dtype=wp.float32),
    y: wp.array2d(dtype=wp.float32),
    w: wp.array2d(dtype=wp.float32),
    src: wp.array(dtype=wp.int64),
    dst: wp.array(dtype=wp.int64),
    out: wp.array2d(dtype=wp.float32),
):
    e, d = wp.tid()
    wp.atomic_add(out, int(dst[e]), d, w[e, 0] * x[int(src[e]), d])


@wp.kernel
def difference(
    x: wp.array2d(dtype=wp.float32),
    y: wp.array2d(dtype=wp.float32),
    w: wp.array2d(dtype=wp.float32),
    src: wp.array(dtype=wp.int64),
    dst: wp.array(dtype=wp.int64),
    out: wp.array2d(dtype=wp.float32),
):
    e, d = wp.tid()
    value = w[e, 0] * (x[int(src[e]), d] - y[int(dst[e]), d])
    wp.atomic_add(out, int(dst[e]), d, value)


def given(*tensors: Tensor) -> list[wp.array]:
    return [wp.from_torch(tensor.detach(), requires_grad=False) for tensor in tensors]


def stream_of(tensor: Tensor) -> wp.Stream | None:
    return wp.stream_from_torch(torch.cuda.current_stream()) if tensor.is_cuda else None


def forward(kernel: wp.Kernel, src: Tensor, dst: Tensor) -> Callable[..., Tensor]:
    def call(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        out = torch.zeros_like(y)
        shape = (len(src), x.shape[1])
        arrays = given(x, y, w, src, dst), given(out)
        wp.launch(kernel, shape, *arrays, device=arrays[1][0].device, stream=stream_of(x))
        return out

    return call


def gradients(kernel: wp.Kernel, src: Tensor, dst: Tensor, grad: Tensor) -> Callable[..., Tensor]:
    """Forward and backward; returns the gradient by x."""
    run = forward(kernel, src, dst)

    def call(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        out = run(x, y, w)
        made = [torch.zeros_like(each) for each in (x, y, w)]
        outputs = given(out)
        wp.launch(
            kernel, (len(src), x.shape[1]), given(x, y, w, src, dst), outputs,
            adj_inputs=[*given(*made), None, None], adj_outputs=given(grad.clone()),
            adjoint=True, device=outputs[0].device, stream=stream_of(x),
        )  # fmt: skip
        return made[0]

    return call
