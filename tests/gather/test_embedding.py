from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gathering import bad_index, values_for
from hypothesis import given
from hypothesis import strategies as st
from op_checks import Op, OpChecks, Sample, assert_same
from support import without_derivative
from support.layers import Layer
from torch import Tensor, nn

import torch_ops


def reference(input: Tensor, weight: Tensor, *options: Any) -> Tensor:
    return weight[input.long()]


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for rows, width, shape in [
        (5, 3, (7,)),
        (6, 64, (2, 4)),
        (4, 1, ()),
        (3, 2, (0,)),
        (2, 0, (3,)),
    ]:
        weight = values_for((rows, width), device, dtype)
        for options in ((), (1, False), (None, True), (0, True)):
            yield Sample((torch.randint(rows, shape, device=device), weight, *options))


def plain_samples(device: torch.device) -> Iterator[Sample]:
    """Finite differences know nothing of the options, which change the gradient alone."""
    for sample in samples(device, torch.float64):
        if len(sample.args) == 2 and sample.args[1].numel() < 100:
            yield Sample(
                (*sample.args, None, False, False),
            )


def renorm_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    weight = values_for((5, 6), device, dtype)
    yield Sample((weight, torch.tensor([3, 0, 3], device=device), 1.0))
    yield Sample((weight, torch.tensor([[1], [4]], device=device), 0.5, 1.0))
    yield Sample((weight, torch.tensor([], dtype=torch.int64, device=device), 0.5))


def sized(device: torch.device, size: int) -> Sample:
    weight = values_for((size + 1, 3), device, torch.float32)
    return Sample((torch.arange(size + 2, device=device) % size, weight, 1))


def sized_renorm(device: torch.device, size: int) -> Sample:
    weight = values_for((size + 1, 3), device, torch.float32)
    return Sample((weight, torch.arange(size + 2, device=device) % size, 0.5))


def bad(device: torch.device) -> Iterator[Sample]:
    weight = values_for((5, 3), device, torch.float32)
    for index in bad_index(torch.tensor([0, 4, 2], device=device), 5):
        yield Sample((index, weight))


def bad_renorm(device: torch.device) -> Iterator[Sample]:
    for sample in bad(device):
        yield Sample((sample.args[1], sample.args[0], 1.0))
    yield Sample((torch.ones(3, device=device), torch.tensor([0], device=device), 1.0))


# A copy of elements is exact.
OPS = [
    Op(
        "embedding",
        torch.ops.torch_ops.embedding.default,
        reference,
        samples,
        smooth_samples=plain_samples,
        sized=sized,
        bad=bad,
        torchs=lambda input, weight, *_: F.embedding(input, weight),
        node="EmbeddingBackward",
    ),
]
OTHER_OPS = [
    Op(
        "embedding_renorm_",
        torch.ops.torch_ops.embedding_renorm_.default,
        reference=torch.embedding_renorm_,
        samples=renorm_samples,
        inplace=True,
        sized=sized_renorm,
        bad=bad_renorm,
        exempt=without_derivative("it changes a weight outside autograd, as torch's does"),
    ),
]


LAYERS = [
    Layer(
        torch_ops.Embedding,
        lambda device: (torch.tensor([[1, 0], [4, 1]], device=device),),
        (
            ({"num_embeddings": 5, "embedding_dim": 3}, True),
            ({"num_embeddings": 5, "embedding_dim": 3, "scale_grad_by_freq": True}, True),
            ({"num_embeddings": 5, "embedding_dim": 3, "padding_idx": 2, "max_norm": 9.0}, True),
        ),
        torch.nn.Embedding,
    )
]


class TestChecks(OpChecks):
    def test_expanded(self, op: Op, device: torch.device) -> None:
        weight = values_for((5, 3), device, torch.float32)
        index = torch.tensor([[3]], device=device).expand(2, 4)
        assert torch.equal(torch_ops.embedding(index, weight), weight[index])


# ---- against torch ------------------------------------------------------------------------------

options = st.fixed_dictionaries(
    {
        "padding_idx": st.none() | st.integers(-4, 3),
        "max_norm": st.none() | st.floats(0.2, 3),
        "norm_type": st.sampled_from([2.0, 1.0, 3.0, float("inf")]),
        "scale_grad_by_freq": st.booleans(),
        "sparse": st.booleans(),
    }
)
calls = st.tuples(
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(1, 5),
    options,
    st.sampled_from([torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]),
    st.integers(0, 2**31),
)


def check_call(device: torch.device, call: Any) -> None:
    shape, width, given, dtype, seed = call
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(4, width, generator=generator, dtype=torch.float64).to(device)
    if given["sparse"] and not shape:
        shape = [1]  # torch has no sparse gradient of one entry without axes
    if device.type == "cuda" and (given["norm_type"] in (3.0, float("inf")) or 0 in shape):
        # torch's kernel on CUDA is for none of these: it raises negative values to odd powers.
        given = {**given, "max_norm": None}
    index = torch.randint(4, shape, generator=generator).to(device)
    ours, theirs = (table.clone().requires_grad_() for _ in range(2))
    if given["sparse"] and given["scale_grad_by_freq"]:
        given = {**given, "scale_grad_by_freq": False}  # torch has no such gradient
    actual = torch_ops.embedding(index.to(dtype), ours, **given)
    # To count the entries of an empty index, torch launches a kernel without blocks on CUDA.
    scale = given["scale_grad_by_freq"] and (device.type == "cpu" or index.numel() > 0)
    expected = F.embedding(index, theirs, **{**given, "scale_grad_by_freq": scale})
    # Equal but for the last bits of the norms.
    torch.testing.assert_close(actual, expected, msg=lambda t: f"{call} {t}")
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn(expected.shape, generator=generator, dtype=torch.float64).to(device)
    actual.backward(grad)
    expected.backward(grad)
    assert ours.grad is not None and theirs.grad is not None
    assert ours.grad.is_sparse == given["sparse"]
    torch.testing.assert_close(
        ours.grad.to_dense(), theirs.grad.to_dense(), msg=lambda t: f"{call} {t}"
    )


@given(call=calls)
def test_any_call(call: Any) -> None:
    check_call(torch.device("cpu"), call)
    if torch.cuda.is_available():
        check_call(torch.device("cuda"), call)


def test_renorm(device: torch.device) -> None:
    renorm_ = torch.ops.torch_ops.embedding_renorm_.default
    for sample in renorm_samples(device, torch.float32):
        weight, index, *rest = sample.args
        expected = weight.clone()
        if index.numel() > 0 or device.type == "cpu":  # torch's kernel on CUDA must have an entry
            norm_type = rest[1:] or [2.0]
            torch.embedding_renorm_(expected, index.reshape(-1), rest[0], *norm_type)
        actual = weight.clone()
        assert renorm_(actual, index, *rest) is actual
        torch.testing.assert_close(actual, expected)
        torch.library.opcheck(renorm_, (weight.clone(), index, *rest))
    weight = torch.ones(3, 4, device=device)
    bad = torch.tensor([-1], device=device)

    def call_and_check() -> None:
        renorm_(weight, bad, 1.0)
        torch_ops.check_errors()

    with pytest.raises(IndexError, match="is -1, out of range"):
        call_and_check()
    assert weight.sum() == 12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_duplicates_in_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    weight = torch.zeros(2, 3, device=device, dtype=dtype, requires_grad=True)
    index = torch.zeros(10_000, dtype=torch.int64, device=device)
    torch_ops.embedding(index, weight).sum().backward()
    assert weight.grad[0].tolist() == [torch.tensor(10_000).to(dtype).item()] * 3
    weight.grad = None
    grad = torch.full((10_000, 3), 96.0, device=device, dtype=dtype)  # whose sum is no float16
    torch_ops.embedding(index, weight, scale_grad_by_freq=True).backward(grad)
    assert weight.grad[0].tolist() == [96] * 3


def test_vmap(device: torch.device) -> None:
    weights = values_for((3, 5, 2), device, torch.float32)
    index = torch.tensor([[1, 4], [0, 0], [2, 1]], device=device)

    def loss(w: Tensor, i: Tensor) -> Tensor:
        rows = torch_ops.embedding(i, w, padding_idx=1, scale_grad_by_freq=True)
        return (rows**2).sum()

    def plain(w: Tensor, i: Tensor) -> Tensor:
        return (F.embedding(i, w, padding_idx=1, scale_grad_by_freq=True) ** 2).sum()

    for dims in [(0, 0), (0, None), (None, 0)]:
        args = (weights if dims[0] == 0 else weights[0], index if dims[1] == 0 else index[0])
        actual = torch.vmap(torch.func.grad(loss), in_dims=dims)(*args)
        for n in range(3):
            one = [a if d is None else a[n] for a, d in zip(args, dims, strict=True)]
            leaf = one[0].clone().requires_grad_()
            (expected,) = torch.autograd.grad(plain(leaf, one[1]), leaf)
            torch.testing.assert_close(actual[n], expected)


# ---- the module ---------------------------------------------------------------------------------


def test_module_is_torchs(device: torch.device) -> None:
    torch.manual_seed(0)
    theirs = nn.Embedding(10, 3, padding_idx=2, max_norm=1.5, device=device)
    torch.manual_seed(0)
    ours = torch_ops.Embedding(10, 3, padding_idx=2, max_norm=1.5, device=device)
    assert repr(ours) == repr(theirs) == "Embedding(10, 3, padding_idx=2, max_norm=1.5)"
    assert torch.equal(ours.weight, theirs.weight)
    assert ours.weight[2].count_nonzero() == 0
    buffer = io.BytesIO()
    torch.save(theirs.state_dict(), buffer)
    buffer.seek(0)
    fresh = torch_ops.Embedding(10, 3, padding_idx=2, max_norm=1.5, device=device)
    fresh.load_state_dict(torch.load(buffer))
    index = torch.tensor([[1, 2], [9, 1]], device=device)
    torch.testing.assert_close(fresh(index), theirs(index))
    frozen = torch_ops.Embedding.from_pretrained(torch.ones(2, 2, device=device))
    assert type(frozen) is torch_ops.Embedding
    assert not frozen.weight.requires_grad
    half = torch_ops.Embedding(4, 2, dtype=torch.float16, device=device)
    assert half(index[:, :1] % 4).dtype == torch.float16


def test_module_compiles(device: torch.device) -> None:
    layer = torch_ops.Embedding(10, 4, padding_idx=0, max_norm=1.0, device=device)
    other = torch_ops.Embedding(10, 4, padding_idx=0, max_norm=1.0, device=device)
    other.load_state_dict(layer.state_dict())
    index = torch.tensor([[1, 0, 9]], device=device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    actual, expected = compiled(index), other(index)
    torch.testing.assert_close(actual, expected)
    actual.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(layer.weight.grad, other.weight.grad)
    torch.testing.assert_close(layer.weight, other.weight)


def test_training_step_is_torchs(device: torch.device) -> None:
    """Replacing nn.Embedding is one word."""
    results = []
    for kind in (nn.Embedding, torch_ops.Embedding):
        torch.manual_seed(0)
        model = nn.Sequential(kind(20, 8), nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        index = torch.arange(60, device=device) % 7
        for _ in range(3):
            optimizer.zero_grad()
            model(index).square().mean().backward()
            optimizer.step()
        results.append(model[0].weight.detach())
    torch.testing.assert_close(*results)


def test_sparse_gradient_trains(device: torch.device) -> None:
    layer = torch_ops.Embedding(6, 2, sparse=True, device=device)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.SparseAdam(layer.parameters())
    layer(torch.tensor([1, 1, 4], device=device, dtype=torch.int16)).sum().backward()
    optimizer.step()
    assert (layer.weight != before).any(1).tolist() == [False, True, False, False, True, False]


@pytest.mark.sanitizer
def test_small_calls(device: torch.device) -> None:
    weight = torch.ones(3, 5, device=device, requires_grad=True)
    index = torch.tensor([2, 0, 2], device=device, dtype=torch.int32)
    rows = torch_ops.embedding(index, weight, padding_idx=0, max_norm=1.0, scale_grad_by_freq=True)
    rows.sum().backward()
    assert weight.grad[:, 0].tolist() == [0, 0, 1]
    assert_same(weight[1], torch.ones(5), "")


@pytest.mark.parametrize("norm_type", [math.inf, -math.inf, -1.0, 2.0])
@pytest.mark.parametrize("entries", [0, 2])
def test_norms_of_rows_without_values(device: torch.device, norm_type: float, entries: int) -> None:
    """There is no largest of no values; nor is there anything to scale."""
    weight = torch.empty(3, 0, device=device)
    index = torch.zeros(entries, dtype=torch.int64, device=device)
    options: dict[str, Any] = {"max_norm": 1.0, "norm_type": norm_type}
    assert torch_ops.embedding(index, weight, **options).shape == (entries, 0)
    assert torch_ops.embedding_bag(index[None], weight, **options).shape == (1, 0)
    with pytest.raises(TypeError, match="embedding with max_norm: weight must be float16, "):
        torch_ops.embedding(index, weight.long(), **options)


def test_bad_arguments(device: torch.device) -> None:
    weight = torch.zeros(3, 4, device=device)
    index = torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="weight must have two axes"):
        torch_ops.embedding(index, weight[0])
    with pytest.raises(ValueError, match="padding_idx must be between -3 and 2"):
        torch_ops.embedding(index, weight, padding_idx=3)
    large = weight + 2
    with pytest.raises(ValueError, match="padding_idx must be between -3 and 2"):
        torch_ops.embedding(index, large, padding_idx=3, max_norm=1.0)
    for function in (torch_ops.embedding, torch_ops.embedding_bag):
        for option in ("scale_grad_by_freq", "sparse"):
            with pytest.raises(TypeError, match=f"{option} must be a bool, but a str was given"):
                function(index[None], large, max_norm=1.0, **{option: "yes"})
    assert (large == 2).all()
    with pytest.raises(TypeError, match="input must be uint8, int8, int16, int32 or int64"):
        torch_ops.embedding(index.float(), weight)
    with pytest.raises(TypeError, match="embedding with max_norm: weight must be float16, "):
        torch_ops.embedding(index, weight.long(), max_norm=1.0)
    message = "embedding: weight and input must be on one device, but weight is on "
    for options in ({}, {"padding_idx": 0}):
        with pytest.raises(RuntimeError, match=message):
            torch_ops.embedding(index.to("meta"), weight, **options)
    with pytest.raises(IndexError, match=r"^embedding: .*input.* 0: no entry is allowed"):
        torch_ops.embedding(index, weight[:0])
    with pytest.raises(TypeError, match="input must be a tensor, but a list"):
        torch_ops.embedding([0], weight)  # type: ignore[arg-type]


def test_out_of_range(device: torch.device, sync_mode: None) -> None:
    weight = torch.zeros(3, 4, device=device)
    for options in ({}, {"padding_idx": 0}):
        message = r"^embedding: input\[0\] is -1, out of range for an axis of size 3"
        with pytest.raises(IndexError, match=message):
            torch_ops.embedding(torch.tensor([-1], device=device), weight, **options)
