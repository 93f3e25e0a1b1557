"""embedding_bag and its layer, against torch's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gathering import values_for
from hypothesis import given
from hypothesis import strategies as st
from op_checks import Op, OpChecks, Sample
from support.layers import Layer
from torch import Tensor, nn

import torch_ops

MODES = ("sum", "mean", "max")


def reference(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bag by bag."""
    factors = torch.ones_like(input, dtype=weight.dtype)
    if per_sample_weights is not None:
        factors = per_sample_weights
    if offsets is None:
        bags = list(zip(input, factors, strict=True))
    else:
        ends = [*offsets.tolist()[1:], *([] if include_last_offset else [len(input)])]
        bags = [
            (input[begin:end], factors[begin:end])
            for begin, end in zip(offsets.tolist(), ends, strict=False)
        ]
    result = torch.zeros(len(bags), weight.shape[1], dtype=weight.dtype)
    for at, (entries, scale) in enumerate(bags):
        kept = entries != (-1 if padding_idx is None else padding_idx)
        rows = weight[entries[kept].long()] * scale[kept, None]
        if len(rows):
            result[at] = rows.amax(0) if mode == "max" else getattr(rows, mode)(0)
    return result


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    weight = values_for((6, 5), device, dtype)
    flat = torch.tensor([3, 0, 5, 5, 1, 2, 0], device=device)
    for mode in MODES:
        for offsets, last in (([0, 2, 2, 5], False), ([0, 2, 2, 6], True), ([0], False)):
            begins = torch.tensor(offsets, device=device)
            for padding in (None, 5):
                yield Sample((flat, weight, begins, False, mode, False, None, last, padding))
        for shape in ((2, 3), (4, 1), (3, 0), (0, 2)):
            entries = torch.randint(6, shape, device=device)
            yield Sample((entries, weight, None, False, mode, False, None, False, 2))
    begins = torch.tensor([0, 3], device=device)
    yield Sample((flat, values_for((6, 0), device, dtype), begins))
    yield Sample((flat[:0], weight, begins[:0]))


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    yield from samples(device, torch.float64)


def sized(device: torch.device, size: int) -> Sample:
    weight = values_for((size + 1, 3), device, torch.float32)
    entries = torch.arange(size * 3, device=device) % size
    return Sample((entries, weight, torch.arange(size, device=device)))


def bad(device: torch.device) -> Iterator[Sample]:
    weight = values_for((5, 3), device, torch.float32)
    entries = torch.tensor([0, 4, 2], device=device)
    begins = torch.tensor([0, 2], device=device)
    yield Sample((entries, weight))
    yield Sample((entries[None], weight, begins))
    yield Sample((entries.float(), weight, begins))
    yield Sample((entries + 1, weight, begins))
    yield Sample((entries, weight, begins * 2))
    yield Sample((entries, weight, begins, False, "most"))
    yield Sample((entries, weight, begins, False, "mean", False, weight[:3, 0]))


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Sums of seven products in float32 or wider, rounded once, in whose place a mean may be."""
    info = torch.finfo(dtype)
    wide = torch.finfo(torch.float32) if info.bits == 16 else info
    return 0.51 * info.eps if info.bits == 16 else 0.0, 32 * wide.eps


OPS = [
    Op(
        "embedding_bag",
        torch.ops.torch_ops.embedding_bag.default,
        reference,
        samples,
        tolerance,
        sums=True,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        offsets=(2,),
        node="EmbeddingBagBackward",
    ),
]

LAYERS = [
    Layer(
        torch_ops.EmbeddingBag,
        lambda device: (torch.tensor([[1, 0], [4, 1]], device=device),),
        (
            ({"num_embeddings": 5, "embedding_dim": 3}, True),
            ({"num_embeddings": 5, "embedding_dim": 3, "mode": "sum", "padding_idx": 1}, True),
            ({"num_embeddings": 5, "embedding_dim": 3, "mode": "max", "max_norm": 9.0}, True),
        ),
        nn.EmbeddingBag,
    )
]


class TestChecks(OpChecks):
    pass


calls = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, 4), min_size=1, max_size=5),
        "two_axes": st.booleans(),
        "mode": st.sampled_from(MODES),
        "padding_idx": st.none() | st.integers(-4, 3),
        "max_norm": st.none() | st.floats(0.2, 3),
        "sparse": st.booleans(),
        "include_last_offset": st.booleans(),
        "weighted": st.booleans(),
        "dtype": st.sampled_from([torch.int8, torch.int16, torch.int32, torch.int64]),
        "seed": st.integers(0, 2**31),
    }
)


def check_call(device: torch.device, call: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(call["seed"])
    mode, lengths = call["mode"], call["lengths"]
    weighted = call["weighted"] and mode == "sum"
    options = {"mode": mode, "padding_idx": call["padding_idx"], "max_norm": call["max_norm"]}
    if mode != "max":  # torch has no such gradient of a maximum
        options["sparse"] = call["sparse"] and not weighted
    if call["two_axes"]:
        shape, offsets = (len(lengths), max(lengths[0], 1)), None
    else:
        shape, ends = (sum(lengths),), torch.tensor(lengths).cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(device)
        options["include_last_offset"] = call["include_last_offset"]
        offsets = offsets if call["include_last_offset"] else offsets[:-1]
    table = torch.randn(4, 3, generator=generator, dtype=torch.float64).to(device)
    index = torch.randint(4, shape, generator=generator).to(device)
    factors = torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
    if index.numel() == 0 and (device.type == "cuda" or call["max_norm"] is not None):
        return  # torch's own kernels fail there
    results = []
    for function, picks in ((torch_ops.embedding_bag, call["dtype"]), (F.embedding_bag, None)):
        leaf, scale = table.clone().requires_grad_(), factors.clone().requires_grad_()
        output = function(
            index.to(picks or torch.int64),
            leaf,
            offsets if offsets is None else offsets.to(picks or torch.int64),
            per_sample_weights=scale if weighted else None,
            **options,
        )
        output.backward(torch.ones_like(output).cumsum(0))
        assert leaf.grad is not None
        assert leaf.grad.is_sparse == options.get("sparse", False)
        results.append((output, leaf, leaf.grad.to_dense(), scale.grad if weighted else output))
    torch.testing.assert_close(*results, msg=lambda text: f"{call} {text}")


@given(call=calls)
def test_any_call(device: torch.device, call: dict[str, Any]) -> None:
    check_call(device, call)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_of_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    """Of many rows, and of products that 16 bits do not hold: rounded once."""
    weight = torch.tensor([[1.0], [3.0]], dtype=dtype, device=device)
    index = torch.ones(1, 5000, dtype=torch.int8, device=device)
    factors = torch.full((1, 5000), 0.333, dtype=dtype, device=device)
    exact = 5000 * 3 * factors[0, 0].double()
    result = torch_ops.embedding_bag(index, weight, mode="sum", per_sample_weights=factors)
    assert result.item() == exact.to(dtype).item()
    assert torch_ops.embedding_bag(index, weight).item() == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    """Of products, and of what is divided, that 16 bits do not hold: rounded once."""
    weight = torch.full((1, 2), 258.0, dtype=dtype, device=device, requires_grad=True)
    factors = torch.tensor([[258.0, -256.0]], dtype=dtype, device=device, requires_grad=True)
    index = torch.zeros(1, 2, dtype=torch.int64, device=device)
    output = torch_ops.embedding_bag(index, weight, mode="sum", per_sample_weights=factors)
    grads = torch.autograd.grad(output, (weight, factors), factors.detach())
    assert [grad.tolist() for grad in grads] == [[[2 * 258, -2 * 256]], [[2 * 258, 2 * 258]]]
    grad_output = torch.tensor([[1e-4, 1.3]], dtype=dtype, device=device)
    output = torch_ops.embedding_bag(index[:, :1].expand(1, 3000), weight)
    assert torch.equal(torch.autograd.grad(output, weight, grad_output)[0], grad_output)


def test_long_bags_and_short(device: torch.device) -> None:
    """Of every width around a vector's, and of an average length on both sides of the limit."""
    for bags, length, width in [
        (3, 1500, 4),
        (3, 700, 33),
        (300, 3, 1),
        (40, 9, 7),
        (5, 2, 600),
        (1500, 16, 33),  # of many bags, short ...
        (1500, 64, 5),  # ... and long
    ]:
        # Whole numbers, so that their sums are exact.
        weight = torch.randint(-8, 9, (50, width), device=device).float().requires_grad_()
        index = torch.randint(50, (bags * length,), device=device, dtype=torch.int16)
        offsets = torch.arange(0, bags * length, length, device=device)
        for mode in ("sum", "mean"):
            reduced = getattr(weight[index.long()].view(bags, length, width), mode)(1)
            grad_output = torch.randint_like(reduced, -8, 9)
            (expected,) = torch.autograd.grad(reduced, weight, grad_output)
            for entries, begins in ((index, offsets), (index.view(bags, length), None)):
                actual = torch_ops.embedding_bag(entries, weight, begins, mode=mode)
                torch.testing.assert_close(actual, reduced)
                (grad,) = torch.autograd.grad(actual, weight, grad_output)
                torch.testing.assert_close(grad, expected)


def check_sums(device: torch.device, dtype: torch.dtype, width: int, lengths: Tensor) -> None:
    """Of bags of these lengths, with factors and padding or without."""
    # Whole numbers, so that their sums are exact, in 16 bits too.
    weight = torch.randint(-4, 5, (50, width), device=device).to(dtype)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device)
    index = torch.randint(50, (int(lengths.sum()),), device=device)
    factors = torch.randint(-2, 3, index.shape, device=device).to(dtype)
    bags = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(device)
    for scale in (None, factors):
        for padding in (None, 3):
            rows = weight[index] if scale is None else weight[index] * scale[:, None]
            rows = rows if padding is None else rows * (index != padding)[:, None]
            expected = torch.zeros(len(lengths), width, dtype=dtype, device=device)
            expected.index_add_(0, bags, rows)
            for entries in (index, index.to(torch.uint8)):
                actual = torch_ops.embedding_bag(
                    entries,
                    weight,
                    offsets,
                    mode="sum",
                    per_sample_weights=scale,
                    include_last_offset=True,
                    padding_idx=padding,
                )
                assert torch.equal(actual, expected), (width, scale is None, padding)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_widths(device: torch.device, dtype: torch.dtype) -> None:
    """Every width around those of vectors, sums that several threads make, few entries and more."""
    for width, most in product((*range(1, 36), 63, 64, 100, 128, 135, 300), (4, 14)):
        check_sums(device, dtype, width, torch.randint(0, most, (4000 // width + 40,)))
    # Few bags of many entries, and some of none or few.
    for width in (1, 2, 7, 8, 33, 128, 300):
        check_sums(device, dtype, width, torch.tensor([130, 0, 1, 4, 33, 150, 0, 129]))


def test_a_bad_entry_among_good_ones(device: torch.device) -> None:
    """The position in the error counts all entries, also where some are padding or converted."""
    index = torch.randint(50, (3000,), device=device, dtype=torch.int32)
    index[[1234, 2345]] = torch.tensor([50, -1], device=device, dtype=torch.int32)

    def call(entries: Tensor, weight: Tensor, padding: int | None) -> None:
        torch_ops.embedding_bag(entries, weight, offsets, mode="sum", padding_idx=padding)
        torch_ops.check_errors()

    for width, length in product((0, 1, 3, 8, 64), (2, 10, 500)):
        offsets = torch.arange(0, 3000, length, device=device)
        weight = torch.ones(50, width, device=device)
        for entries in (index, index.long()):
            for padding in (None, 7):
                with pytest.raises(IndexError, match=r"\[(1234|2345)\].* 50"):
                    call(entries, weight, padding)


def test_opcheck_of_the_sum(device: torch.device) -> None:
    """With factors, which have gradients and are needed for the weight's."""
    op = torch.ops.torch_ops._embedding_bag.default
    weight = values_for((5, 3), device, torch.float64).requires_grad_()
    factors = values_for((6,), device, torch.float64).requires_grad_()
    flat = torch.tensor([0, 4, 2, 4, 1, 3], device=device)
    offsets = torch.tensor([0, 1, 5], device=device)
    for mode, scale, index, begins, last, padding in (
        ("sum", factors, flat, offsets, False, None),
        ("sum", factors, flat, offsets, True, 4),
        ("sum", factors.detach().view(2, 3).requires_grad_(), flat.view(2, 3), None, False, 1),
        ("mean", None, flat, offsets, True, 4),
    ):
        options = (mode, last, padding, False, False)
        torch.library.opcheck(op, (weight, scale, index, begins, *options))

        def call(
            w: Tensor,
            s: Tensor | None = None,
            given: tuple[Any, ...] = (index, begins, *options),
        ) -> Tensor:
            return op(w, s, *given)

        leaves = (weight,) if scale is None else (weight, scale)
        assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, leaves, check_fwd_over_rev=True)
        if scale is not None:
            twice = torch.vmap(call)(torch.stack([weight, -weight]), torch.stack([scale, scale]))
            torch.testing.assert_close(twice[1], -call(*leaves))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 6, 8, 40])
def test_rows_of_the_largest(device: torch.device, dtype: torch.dtype, width: int) -> None:
    """Of short bags and long ones, with values that are alike, or NaN, or infinite."""
    op = torch.ops.torch_ops._embedding_bag_largest.default
    weight = torch.randint(-3, 3, (50, width), device=device).to(dtype)
    weight[7] = math.nan
    weight[8:11] = -math.inf
    weight[11] = -0.0
    index = torch.randint(50, (4000,), device=device)
    index[:40] = torch.randint(8, 11, (40,), device=device)
    for bounds in ([0, 20, 40, 40, 41, 300, 3000], list(range(0, 4000, 16))):
        for padding in (None, 7):
            offsets = torch.tensor(bounds, device=device)
            values, actual = op(weight, index, offsets, False, padding)
            padded = torch.cat([weight, weight.new_zeros(1, width)])  # of bags without entries
            picked = padded.gather(0, actual)
            torch.testing.assert_close(values, picked, rtol=0, atol=0, equal_nan=True)
            for bag, (begin, end) in enumerate(pairwise([*bounds, 4000])):
                entries = index[begin:end]
                entries = entries[entries != (-1 if padding is None else padding)]
                if len(entries):  # torch's argmax may be any of those that are alike
                    rows = weight[entries].double().nan_to_num(math.inf, neginf=-100)
                    is_largest = rows == rows.amax(0)
                    first = torch.where(is_largest.any(0), is_largest.int().argmax(0), 0)
                    assert torch.equal(actual[bag], entries[first])
                else:
                    assert (actual[bag] == 50).all()
    torch.library.opcheck(op, (weight, index, offsets, False, 7))
    two = index.view(-1, 100)
    of_two = op(weight, two, None, False, 3)
    of_one = op(weight, index, torch.arange(0, 4000, 100, device=device), False, 3)
    for result, other in zip(of_two, of_one, strict=True):
        torch.testing.assert_close(result, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for sample in samples(device, torch.float32):
        for mode in MODES:
            rows = torch_ops.embedding_bag(*sample.args[:2], sample.args[2], mode=mode)
            assert rows.shape[1] == sample.args[1].shape[1]
    for width, mode in product((1, 3, 40), MODES):  # few bags, which have many entries
        rows = torch_ops.embedding_bag(
            torch.ones(2, 70, dtype=torch.int64, device=device),
            torch.ones(3, width, device=device),
            mode=mode,
        )
        assert (rows == (70 if mode == "sum" else 1)).all()


def test_first_of_several_that_are_alike(device: torch.device) -> None:
    weight = torch.ones(3, 2, device=device, requires_grad=True)
    bag = torch.tensor([[2, 0]], device=device)
    (grad,) = torch.autograd.grad(torch_ops.embedding_bag(bag, weight, mode="max").sum(), weight)
    assert grad.tolist() == [[0, 0], [0, 0], [1, 1]]


def test_scaled_by_frequency(device: torch.device) -> None:
    """As a sum of torch's rows: its own bags divide by the counts of other rows on the CPU."""
    weight = values_for((4, 2), device, torch.float64)
    index = torch.tensor([[3, 1, 3], [0, 3, 1]], device=device)
    grads = []
    for function in (
        lambda w: torch_ops.embedding_bag(index, w, mode="sum", scale_grad_by_freq=True),
        lambda w: F.embedding(index, w, scale_grad_by_freq=True).sum(1),
    ):
        leaf = weight.clone().requires_grad_()
        grads.append(torch.autograd.grad(function(leaf).square().sum(), leaf)[0])
    torch.testing.assert_close(*grads)


def test_vmap_and_compile(device: torch.device) -> None:
    weights = values_for((3, 5, 2), device, torch.float32)
    index = torch.randint(5, (3, 6), device=device)
    offsets = torch.tensor([[0, 2], [0, 0], [0, 5]], device=device)

    def loss(w: Tensor, i: Tensor, o: Tensor) -> Tensor:
        return (torch_ops.embedding_bag(i, w, o, padding_idx=1) ** 2).sum()

    def plain(w: Tensor, i: Tensor, o: Tensor) -> Tensor:
        return (F.embedding_bag(i, w, o, padding_idx=1, mode="mean") ** 2).sum()

    actual = torch.vmap(torch.func.grad(loss))(weights, index, offsets)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for n in range(3):
        grads = []
        for function in (plain, compiled):
            leaf = weights[n].clone().requires_grad_()
            grads.append(torch.autograd.grad(function(leaf, index[n], offsets[n]), leaf)[0])
        torch.testing.assert_close(actual[n], grads[0])
        torch.testing.assert_close(grads[1], grads[0])


def test_layer_is_torchs(device: torch.device) -> None:
    torch.manual_seed(0)
    theirs = nn.EmbeddingBag(10, 3, padding_idx=2, mode="sum", device=device)
    torch.manual_seed(0)
    ours = torch_ops.EmbeddingBag(10, 3, padding_idx=2, mode="sum", device=device)
    assert repr(ours) == repr(theirs)
    assert torch.equal(ours.weight, theirs.weight)
    theirs.load_state_dict(ours.state_dict())
    index, offsets = torch.tensor([1, 2, 9], device=device), torch.tensor([0, 1], device=device)
    scale = torch.tensor([0.5, 2.0, 3.0], device=device)
    torch.testing.assert_close(ours(index, offsets, scale), theirs(index, offsets, scale))


def test_bad_arguments(device: torch.device) -> None:
    weight = torch.zeros(4, 2, device=device)
    large = weight + 2
    index = torch.tensor([0, 3, 1], device=device)
    begins = torch.tensor([0, 2], device=device)
    call = torch_ops.embedding_bag
    with pytest.raises(ValueError, match=r"input has shape \[3\], and offsets are missing"):
        call(index, weight)
    with pytest.raises(ValueError, match=r"mode must be \"sum\", \"mean\" or \"max\", but it is"):
        call(index, weight, begins, mode="add")
    with pytest.raises(TypeError, match="embedding_bag: mode must be a string, but it is None"):
        call(index, weight, begins, mode=None)
    with pytest.raises(
        ValueError, match='per_sample_weights is for mode="sum", but mode is "mean"'
    ):
        call(index, weight, begins, per_sample_weights=weight[:3, 0])
    with pytest.raises(
        TypeError, match=r"have one dtype, but they are torch\.float64 and torch.fl"
    ):
        call(index, weight, begins, mode="sum", per_sample_weights=weight[:3, 0].double())
    with pytest.raises(ValueError, match="embedding_bag: padding_idx must be between -4 and 3"):
        call(index, weight, begins, padding_idx=4)
    with pytest.raises(TypeError, match="embedding_bag: offsets must be a tensor, but a list was"):
        call(index, weight, [0])
    for mode in ("sum", "mean", "max"):
        with pytest.raises(TypeError, match=r"embedding_bag: offsets must be uint8, .*float32"):
            call(index, weight, begins.float(), mode=mode)
        with pytest.raises(TypeError, match=r"embedding_bag: weight must be float16, .*int64"):
            call(index, weight.long(), begins, mode=mode)

    wrong_options: list[dict[str, Any]] = [
        {"padding_idx": 4},
        {"mode": "add"},
        {"mode": None},
        {"per_sample_weights": weight[:3, 0]},
        {"mode": "sum", "per_sample_weights": weight[:2, 0]},
        {"offsets": None},
        {"offsets": begins[None]},
    ]
    if device.type == "cpu":  # on CUDA it is found later
        wrong_options.append({"offsets": torch.tensor([0, 4])})
    for mode in ("mean", "max"):
        for wrong in wrong_options:
            with pytest.raises((IndexError, TypeError, ValueError), match="embedding_bag"):
                call(index, large, **{"offsets": begins, "mode": mode, "max_norm": 1.0, **wrong})
            assert (large == 2).all(), (mode, wrong)

    def call_and_check(offsets: Tensor) -> None:
        call(index, weight, offsets)
        torch_ops.check_errors()

    for ends in ([0, 4], [-1, 2]):
        with pytest.raises(IndexError, match=r"embedding_bag: offsets\[[01]\] is .*, out of range"):
            call_and_check(torch.tensor(ends, device=device))
