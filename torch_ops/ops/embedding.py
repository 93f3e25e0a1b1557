"""embedding: the rows of a weight, with every option of torch's; and its layer."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import check_kinds, check_tensors, is_traced
from torch_ops.ops._self_check import compared
from torch_ops.ops.plan import GatherPlan

_gather = torch.ops.torch_ops.gather.default
_embedding = torch.ops.torch_ops.embedding.default
_renorm_ = torch.ops.torch_ops.embedding_renorm_.default
_ext: Any = importlib.import_module("torch_ops._ext.embedding")
_ext_gather: Any = importlib.import_module("torch_ops._ext.gather")


def embedding(
    input: Tensor | GatherPlan,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Returns the rows of ``weight`` that ``input`` picks.

    ``output[i..., :] = weight[input[i...], :]``: ``torch.nn.functional.embedding``, with a gradient
    that sums 16-bit floats in float32, and is not slow if many entries name the same row.

    Args:
        input: A tensor of any shape, or a jagged nested one; uint8, int8, int16, int32 or int64.
            Each entry must be between 0 and ``weight.shape[0] - 1``. Or a :class:`GatherPlan` of
            such a tensor, made by ``gather_plan(input, weight.shape[0])``.
        weight: A tensor of the shape ``[rows, width]``, on the input's device.
        padding_idx: A row whose gradient is zero; negative counts from the end.
        max_norm: Rows that input names and that have a larger norm are scaled to this norm, **in
            weight itself**, before they are picked. (So clone a ``weight`` that other
            differentiable operations need.)
        norm_type: The p of that norm.
        scale_grad_by_freq: Whether the gradient of a row is divided by how often input names it.
        sparse: Whether the gradient of weight is a sparse tensor, with a row for each entry.

    Returns:
        A contiguous tensor of the weight's dtype and the shape ``input.shape + (width,)``.

    Gradient:
        :func:`scatter_add` of ``grad_output`` by input, which is saved; weight is not. With
        ``sparse`` torch's own sparse tensor. Differentiable any number of times, unless ``sparse``
        or jagged; forward mode too.

    Memory:
        Only the output. ``scale_grad_by_freq`` uses 4 bytes per row in the backward pass,
        ``max_norm`` as much as the output and 4 to 8 bytes per entry.

    Deterministic. So is the gradient if :func:`scatter_add` is.

    Raises:
        IndexError: An entry of ``input`` is out of range. On CUDA it gives zeros, and the next call
            of an op with an index on the device, or :func:`check_errors`, raises.
        TypeError: ``input`` has another dtype, or ``max_norm`` is given and ``weight`` is not of
            floats; an argument is not a tensor, or an option is not a number.
        ValueError: ``weight`` does not have two axes, or ``padding_idx`` is not a row of it.
        RuntimeError: Input and weight are on different devices; or ``sparse`` and
            ``scale_grad_by_freq`` are both set, in the backward pass, as in torch.

    Example:
        >>> import torch, torch_ops
        >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        >>> rows = torch_ops.embedding(torch.tensor([1, 0, 1]), weight, padding_idx=0)
        >>> rows.sum().backward()
        >>> weight.grad
        tensor([[0., 0.],
                [2., 2.]])
    """
    parts: dict[str, Tensor] = {}
    if isinstance(input, GatherPlan):
        input, parts = _plan_parts(input, weight)
    known = isinstance(weight, Tensor)  # and not one of torch.fx's proxies
    if not isinstance(input, Tensor) or not known:
        check_tensors("embedding", "(input, weight)", input=input, weight=weight)
    if type(input) is not Tensor and isinstance(input, Tensor) and input.layout == torch.jagged:
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return _jagged_like(input, embedding(input.values(), weight, *options))
    if known and weight.dim() != 2:
        shape = list(weight.shape)
        raise ValueError(f"embedding: weight must have two axes, but its shape is {shape}.")
    padding_idx = padding_row("embedding", padding_idx, weight)
    if max_norm is not None:  # after the other checks, since it writes to weight
        check_kinds(
            "embedding",
            max_norm=(max_norm, "a real number"),
            norm_type=(norm_type, "a real number"),
            scale_grad_by_freq=(scale_grad_by_freq, "a bool"),
            sparse=(sparse, "a bool"),
        )
        _renorm_(weight, input, max_norm, norm_of_rows(weight, norm_type))
    if padding_idx is None and not scale_grad_by_freq and not sparse and not parts:
        if not is_dynamo_compiling():
            output = _ext_gather.call(weight, input, 0, 0, "raise", None, "embedding")
            if output is not NotImplemented:
                return output
        return _gather(weight, input, 0, name="embedding")
    if not parts and not is_dynamo_compiling():
        output = _ext.call(
            input, weight, padding_idx, scale_grad_by_freq, sparse, 0, 0, None, None, None
        )
        if output is not NotImplemented:
            return output
    check_kinds(
        "embedding",
        scale_grad_by_freq=(scale_grad_by_freq, "a bool"),
        sparse=(sparse, "a bool"),
    )
    return _embedding(input, weight, padding_idx, scale_grad_by_freq, sparse, **parts)


def norm_of_rows(weight: Tensor, norm_type: float) -> float:
    """``norm_type``, or one that rows without values have: no infinite or negative one."""
    return 2.0 if isinstance(weight, Tensor) and weight.shape[1] == 0 else norm_type


def padding_row(name: str, padding_idx: int | None, weight: Tensor) -> int | None:
    """``padding_idx`` counted from the front."""
    if padding_idx is None:
        return None
    check_kinds(name, padding_idx=(padding_idx, "an int or None"))
    if isinstance(weight, Tensor) and weight.dim() != 2:
        return padding_idx  # the op says what is wrong
    rows = weight.shape[0]
    if isinstance(weight, Tensor):
        shape = list(weight.shape)
        if is_traced():  # then sizes are tensors, and a warning is given where they are read
            with warnings.catch_warnings(action="ignore"):
                shape = [int(size) for size in shape]
        count = shape[0]
        if not -count <= padding_idx < count:
            between = f"between {-count} and {count - 1}"
            allowed = between if count else "None, as there are no rows,"
            raise ValueError(
                f"{name}: padding_idx must be {allowed} for weight with shape {shape}, "
                f"but it is {padding_idx}."
            )
    return padding_idx + rows if padding_idx < 0 else padding_idx


def _plan_parts(plan: GatherPlan, weight: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The input of a plan, and its tensors that are kept for the gradient."""
    check_tensors("embedding", "(input, weight)", weight=weight)
    if plan.batch_dims != 0 or plan.dim not in (0, -2) or plan.dim_size != weight.shape[0]:
        raise ValueError(
            f"embedding: a plan must be made with dim_size = weight.shape[0] = {weight.shape[0]}, "
            f"and neither dim nor batch_dims, but this is {plan}."
        )
    return plan.index, {"rows": plan.rows, "order": plan.order}


def _jagged_like(jagged: Any, values: Tensor) -> Tensor:
    """A nested tensor of these values, with the lengths of another."""
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        values,
        jagged.offsets(),
        jagged.lengths(),
        jagged._ragged_idx,
        # Pass on what is already known: finding it waits for the GPU.
        jagged._maybe_min_seqlen,
        jagged._maybe_max_seqlen,
    )
    return made


class Embedding(nn.Embedding):
    """The layer of :func:`embedding`: ``torch.nn.Embedding``, computed by this library.

    It is a subclass of ``torch.nn.Embedding``, with the same arguments, initialisation, ``weight``,
    ``state_dict`` and ``from_pretrained``: in existing code, only replace the name.

    Args:
        num_embeddings: How many rows weight has.
        embedding_dim: How long they are.
        padding_idx: As for :func:`embedding`; the row begins as zeros.
        max_norm: As for :func:`embedding`.
        norm_type: As for :func:`embedding`.
        scale_grad_by_freq: As for :func:`embedding`.
        sparse: As for :func:`embedding`.
        _weight: The weight, instead of random numbers; as torch's layer has it, for
            ``from_pretrained``.
        _freeze: Whether the weight is without a gradient; as above.
        device: Of the weight.
        dtype: Of the weight.

    Example:
        >>> import torch, torch_ops
        >>> layer = torch_ops.Embedding.from_pretrained(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> layer(torch.tensor([1, 0, 1]))
        tensor([[3., 4.],
                [1., 2.],
                [3., 4.]])
    """

    def forward(self, input: Tensor) -> Tensor:
        # torch.jit.script reads only the first branch.
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            weight = self.weight
            if self.max_norm is not None:
                torch.ops.torch_ops.embedding_renorm_(weight, input, self.max_norm, self.norm_type)
            return torch.ops.torch_ops.embedding(
                input, weight, self.padding_idx, self.scale_grad_by_freq, self.sparse
            )
        else:
            return embedding(
                input,
                self.weight,
                self.padding_idx,
                self.max_norm,
                self.norm_type,
                self.scale_grad_by_freq,
                self.sparse,
            )


def self_check(device: torch.device) -> str:
    """Runs embedding forward and backward on ``device``; for ``python -m torch_ops``."""
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    output = embedding(torch.tensor([1, 0, 1], device=device), weight, padding_idx=0)
    call = "embedding([1, 0, 1], [[1, 2], [3, 4]])"
    return compared(call, output, [[3, 4], [1, 2], [3, 4]], weight, [[0, 0], [2, 2]])
