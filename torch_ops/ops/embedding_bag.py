"""embedding_bag: the rows of a weight, reduced by bags; and its layer."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import check_dense, check_kinds, check_tensors
from torch_ops.ops._scripting import Refused
from torch_ops.ops._self_check import compared
from torch_ops.ops.embedding import norm_of_rows, padding_row

_embedding_bag = torch.ops.torch_ops.embedding_bag.default
_renorm_ = torch.ops.torch_ops.embedding_renorm_.default
_Options = tuple[bool, str, bool, Tensor | None, bool, int | None]  # of the op, after the tensors
_ext: Any = importlib.import_module("torch_ops._ext.embedding")


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Returns the sum, mean or largest of the rows of ``weight`` that each bag of ``input`` picks.

    ``torch.nn.functional.embedding_bag``, with its arguments: ``scatter(embedding(input, weight),
    bags, reduce=mode)``. 16-bit floats are summed in float32, with their ``per_sample_weights``.

    Args:
        input: A tensor of two axes, each row of which is a bag, also a jagged nested one; or of one
            axis, with ``offsets``. uint8, int8, int16, int32 or int64. Each entry must be between 0
            and ``weight.shape[0] - 1``.
        weight: A tensor of the shape ``[rows, width]``, on the input's device; float16, bfloat16,
            float32 or float64.
        offsets: For an input of one axis: where each bag begins, in rising order, of one of the
            types of input. The first bag begins at 0, whatever the first offset is.
        max_norm: As for :func:`embedding`.
        norm_type: As for :func:`embedding`.
        scale_grad_by_freq: As for :func:`embedding`.
        mode: "sum", "mean" or "max". A bag without entries is zero.
        sparse: As for :func:`embedding`.
        per_sample_weights: For ``mode="sum"``: what each row is multiplied by first; of the shape
            of input and the dtype of weight.
        include_last_offset: Whether the last offset is no bag but the end of the last one; entries
            after it count for none.
        padding_idx: A row that counts for no bag, and whose gradient is zero; negative counts from
            the end.

    Returns:
        A contiguous tensor of the weight's dtype and the shape ``[bags, width]``.

    Gradient:
        Of weight and of ``per_sample_weights``. Of several rows of a bag that are alike, "max"
        gives it to the first. Input and offsets are saved; weight only for the gradient of
        ``per_sample_weights``; with "max" a number for each value of the result. With ``sparse``
        torch's own sparse tensor. Differentiable any number of times, unless ``sparse``; forward
        mode too.

    Memory:
        The result; for "max" on CUDA also 8 bytes for each of its values, which the gradient needs.
        Under ``torch.vmap``, for "max" on the CPU, with ``sparse`` or with ``scale_grad_by_freq``,
        and on CUDA where bags have more than 4096 entries on average: the rows before they are
        reduced, as :func:`embedding` returns them, and with ``offsets`` 20 bytes per entry of
        input. The gradient takes as much in any case, with ``per_sample_weights`` twice the rows,
        and three times the rows if those need a gradient too. For a mean or with
        ``per_sample_weights`` in 16 bits these rows and the sums are float32. A weight that is not
        contiguous is copied.

    Deterministic, but for sums of such long bags, which :func:`scatter` computes. The gradient is
    so where :func:`scatter_add` is, or for "max" on CUDA :func:`scatter_elements_add`.

    Raises:
        IndexError: An entry of ``input`` or ``offsets`` is out of range, as for :func:`embedding`.
        TypeError: A dtype is not allowed, or an argument is no tensor.
        ValueError: The shapes do not fit, ``mode`` is none of these, ``per_sample_weights`` are
            given for another mode than "sum", or ``padding_idx`` is no row of weight.
        RuntimeError: The tensors are on different devices; or ``sparse`` and
            ``scale_grad_by_freq`` are both set, in the backward pass, as in torch.

    Example:
        >>> import torch, torch_ops
        >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> words = torch.tensor([0, 2, 1])
        >>> torch_ops.embedding_bag(words, weight, torch.tensor([0, 2]), mode="sum")
        tensor([[6., 8.],
                [3., 4.]])
    """
    is_other = type(input) is not Tensor and isinstance(input, Tensor)
    if is_other and input.layout == torch.jagged and input.dim() == 2 and offsets is None:
        if per_sample_weights is not None:
            check_tensors("embedding_bag", per_sample_weights=per_sample_weights)
            if per_sample_weights.shape != input.shape:
                raise ValueError(
                    "embedding_bag: per_sample_weights must have the shape of a jagged input, and "
                    f"its offsets, but they have shape {tuple(per_sample_weights.shape)} and input "
                    f"{tuple(input.shape)}."
                )
            per_sample_weights = per_sample_weights.contiguous().values()
        bags: Any = input.contiguous()  # without gaps between them
        return embedding_bag(
            bags.values(),
            weight,
            bags.offsets(),
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            per_sample_weights,
            include_last_offset=True,
            padding_idx=padding_idx,
        )
    check_dense("embedding_bag", "(input, weight, offsets)", input=input, weight=weight)
    if offsets is not None:
        check_dense("embedding_bag", offsets=offsets)
    if per_sample_weights is not None:
        check_dense("embedding_bag", per_sample_weights=per_sample_weights)
    padding_idx = padding_row("embedding_bag", padding_idx, weight)
    options = (
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    if max_norm is not None:
        check_kinds(
            "embedding_bag",
            max_norm=(max_norm, "a real number"),
            norm_type=(norm_type, "a real number"),
            scale_grad_by_freq=(scale_grad_by_freq, "a bool"),
            sparse=(sparse, "a bool"),
        )
        # Rows without values, for the checks: a wrong argument must not change weight.
        if isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point():
            _bags(input, weight.detach().narrow(1, 0, 0), offsets, options)
            norm_type = norm_of_rows(weight, norm_type)
        _renorm_(weight, input, max_norm, norm_type, name="embedding_bag:input")
    return _bags(input, weight, offsets, options)


def _bags(input: Tensor, weight: Tensor, offsets: Tensor | None, options: _Options) -> Tensor:
    """embedding_bag of arguments of which the tensors are checked."""
    if not is_dynamo_compiling():
        output = _ext.call_bag(input, weight, offsets, *options)
        if output is not NotImplemented:
            return output
    _check_mode("embedding_bag", options[1])
    check_kinds(
        "embedding_bag",
        scale_grad_by_freq=(options[0], "a bool"),
        sparse=(options[2], "a bool"),
        include_last_offset=(options[4], "a bool"),
    )
    return _embedding_bag(input, weight, offsets, *options)


def _check_mode(name: str, mode: str) -> None:
    if not isinstance(mode, str):
        raise TypeError(f"{name}: mode must be a string, but it is {mode!r}.")
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f'{name}: mode must be "sum", "mean" or "max", but it is "{mode}".')


class EmbeddingBag(nn.EmbeddingBag):
    """The layer of :func:`embedding_bag`; ``torch.nn.EmbeddingBag`` but for how it computes.

    Arguments, initialisation, ``weight``, ``state_dict`` and ``from_pretrained`` are those of
    ``torch.nn.EmbeddingBag``, of which it is a subclass: in existing code replace the name.

    Args:
        num_embeddings: How many rows weight has.
        embedding_dim: How long they are.
        max_norm: As for :func:`embedding_bag`.
        norm_type: As for :func:`embedding_bag`.
        scale_grad_by_freq: As for :func:`embedding_bag`.
        mode: As for :func:`embedding_bag`.
        sparse: As for :func:`embedding_bag`.
        _weight: The weight, instead of random numbers; as torch's layer has it.
        include_last_offset: As for :func:`embedding_bag`.
        padding_idx: As for :func:`embedding_bag`; the row begins as zeros.
        device: Of the weight.
        dtype: Of the weight.

    Example:
        >>> import torch, torch_ops
        >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> layer = torch_ops.EmbeddingBag.from_pretrained(weight, mode="max")
        >>> layer(torch.tensor([[1, 0], [0, 0]]))
        tensor([[3., 4.],
                [1., 2.]])
    """

    __prepare_scriptable__ = Refused("EmbeddingBag", "embedding_bag")

    if not TYPE_CHECKING:  # for which it is torch's

        @functools.wraps(nn.EmbeddingBag.__init__)
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            _check_mode("EmbeddingBag", self.mode)  # here, not at the first call

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        return embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )


def self_check(device: torch.device) -> str:
    """Runs embedding_bag forward and backward on ``device``; for ``python -m torch_ops``."""
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    input = torch.tensor([[1, 0], [1, 1]], device=device)
    output = embedding_bag(input, weight, mode="sum")
    call = "embedding_bag([[1, 0], [1, 1]], [[1, 2], [3, 4]], mode=sum)"
    return compared(call, output, [[4, 6], [6, 8]], weight, [[1, 1], [3, 3]])
