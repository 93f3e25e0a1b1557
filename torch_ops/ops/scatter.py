"""scatter_add: values summed where an index says; the transpose of gather."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

_scatter_add = torch.ops.torch_ops.scatter_add.default
_gather = torch.ops.torch_ops.gather.default


def scatter_add(
    values: Tensor, index: Tensor, dim_size: int, dim: int | None = None, *, batch_dims: int = 0
) -> Tensor:
    """Returns a tensor of zeros to which each slice of ``values`` is added where ``index`` says.

    It is the transpose of :func:`gather`, and its gradient: ``values`` has the shape that
    ``gather(result, index, dim, batch_dims=batch_dims)`` returns, and each entry is added where
    gather would have read it:
    ``result[b..., o..., index[b..., i...], d...] += values[b..., o..., i..., d...]``.

    16-bit floats are summed in float32 and rounded once. Integers wrap.

    Args:
        values: A tensor of an integer type, float16, bfloat16, float32, float64 or a complex type;
            any strides; on the CPU or a CUDA device.
        index: uint8, int16, int32 or int64, used as it is; on the values' device. Each entry must
            be between 0 and ``dim_size - 1``.
        dim_size: How long the result is at ``dim``.
        dim: The result's axis to add along; negative counts the result's axes from the end.
            Default: ``batch_dims``.
        batch_dims: How many leading axes values and index share.

    Returns:
        A contiguous tensor of the values' dtype and the shape ``values.shape[:dim] + (dim_size,) +
        values.shape[dim + index.dim() - batch_dims:]``.

    Gradient:
        :func:`gather` of ``grad_output`` by the index, which is what is saved. Differentiable any
        number of times; forward mode too.

    Memory:
        The result. Values that are not contiguous are copied.

        On the CPU, where a slice along ``dim`` has more than 512 KiB: 4 bytes an entry of the
        index, or 2 bytes and the value where a row is one element. Where many entries go to few
        rows: partial sums of at most a quarter of the values' size (half for 16-bit floats). For
        16-bit floats: 512 KiB a thread.

        On CUDA where values are added in no given order: sums of 32 bits an element for narrower
        types. On CUDA where they are summed in order: 16 bytes an entry of the index, 8 bytes a row
        of the result (twice both from 2^31 entries or rows on), and up to 1/32 of the values' size.

    Determinism:
        The same bits on every run: on the CPU, with any number of threads; for integers; on CUDA
        for values of 4 MiB and more whose rows (the axes behind ``dim``) have 128 bytes or more;
        and everywhere under ``torch.use_deterministic_algorithms(True)``. Otherwise floats are
        added on CUDA in no given order, and the last bits may differ from run to run.

    Raises:
        IndexError: ``dim`` is out of range, or an entry is; the message names its position, its
            value and the bound. On CUDA the call does not wait for its kernels: nothing is written
            out of bounds, such an entry is dropped, and the next gather or scatter_add on the
            device, or :func:`check_errors`, raises. Where several entries are out of range, which
            of them is named is unspecified there. With ``set_error_mode("sync")`` the call itself
            raises.
        TypeError: A dtype is not allowed (bool values have no sum), or an argument is no tensor.
        ValueError: The shapes do not fit, or ``dim_size`` or ``batch_dims`` is out of range.
        RuntimeError: Values and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> messages = torch.tensor([[1.0, 2.0, 4.0]])
        >>> receiver = torch.tensor([[0, 2, 0]])
        >>> torch_ops.scatter_add(messages, receiver, 3, batch_dims=1)
        tensor([[5., 0., 2.]])
    """
    for name, argument in (("values", values), ("index", index)):
        if not isinstance(argument, Tensor) and not is_tensor_like(argument):
            raise TypeError(
                f"scatter_add: {name} must be a tensor, but a {type(argument).__name__} was given. "
                "torch_ops.scatter_add takes (values, index, dim_size, dim) and returns the sums; "
                "torch.scatter_add takes (input, dim, index, src) and adds to input."
            )
    return _scatter_add(values, index, dim_size, dim, batch_dims=batch_dims)


class ScatterAddFunction(torch.autograd.Function):
    """scatter_add as an autograd Function.

    ``ScatterAddFunction.apply(values, index, dim_size, dim, batch_dims)``. :func:`scatter_add` does
    the same with less overhead; this class is for code that composes Functions.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        values: Tensor, index: Tensor, dim_size: int, dim: int | None = None, batch_dims: int = 0
    ) -> Tensor:
        return _scatter_add(values, index, dim_size, dim, batch_dims=batch_dims)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, index, dim_size, *options = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)
        ctx.dim_size = dim_size
        ctx.dim = options[0] if options else None
        ctx.batch_dims = options[1] if len(options) > 1 else 0

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        grad = _gather(grad_output, index, ctx.dim, batch_dims=ctx.batch_dims)
        return grad, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, values_tangent: Tensor, *_: None) -> Tensor:
        (index,) = ctx.saved_tensors
        return _scatter_add(values_tangent, index, ctx.dim_size, ctx.dim, batch_dims=ctx.batch_dims)


def self_check(device: torch.device) -> str:
    """Runs scatter_add forward and backward on ``device``; for ``python -m torch_ops``."""
    values = torch.tensor([1.0, 2.0, 4.0], device=device, requires_grad=True)
    index = torch.tensor([0, 2, 0], device=device)
    output = scatter_add(values, index, 3)
    (output * output).sum().backward()
    grad = None if values.grad is None else values.grad.tolist()
    if output.tolist() != [5, 0, 2] or grad != [10, 4, 10]:
        raise AssertionError(f"scatter_add gave {output}, its gradient {grad}")
    return "scatter_add([1, 2, 4], [0, 2, 0], 3) = [5, 0, 2]"
