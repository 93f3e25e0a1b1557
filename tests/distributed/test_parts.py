"""What a source or an index in parts must not change: modes, dtypes, bits, errors, memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import ranks
import torch
from ranks import message_of
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import torch_ops

pytestmark = pytest.mark.usefixtures("ranks_device")

R = Replicate()


def _elements(source: Tensor, index: Tensor, **options: Any) -> Tensor:
    index = index.unsqueeze(1).expand(-1, source.shape[1])
    return torch_ops.gather_elements(source, index, 0, **options)


def _points(source: Tensor, index: Tensor, **options: Any) -> Tensor:
    return torch_ops.gather_nd(source, torch.stack([index, index], 1), **options)


GATHERS = {"rows": torch_ops.gather, "elements": _elements, "points": _points}

# Two and more below and above the range of seven rows, and what counts from the end in one part but
# not in all of the source.
BAD = [0, -1, 6, 7, -7, -8, 3, 100, -100, 5, 2, -2]

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def _source(dtype: torch.dtype) -> Tensor:
    source = torch.arange(-14, 28).view(7, 6).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        source[1, 2], source[5, 0], source[6, 6 - 1] = -0.0, float("nan"), float("-inf")
    return source


def _bits(tensor: Tensor) -> Tensor:
    """Those of a NaN are one NaN's: collectives do not keep them."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if real.is_floating_point():
        real = torch.where(real.isnan(), torch.nan, real)
    return real.contiguous().view(torch.uint8)


def check_modes(name: str, dtype: torch.dtype) -> int:
    """Compares bits; the modes alternate, so that none may be taken for another one."""
    mesh = ranks.mesh()
    source, gather = _source(dtype), GATHERS[name]
    calls = 0
    options = [{"mode": mode} for mode in ("wrap", "fill", "clip", "raise", "unchecked")]
    options.insert(3, {"mode": "fill", "fill_value": 1})
    for index_dtype, kept, option in itertools.product(
        (torch.int64, torch.int32, torch.uint8), (R, Shard(0)), options
    ):
        allowed = option["mode"] in ("wrap", "clip", "fill")
        entries = [e for e in BAD if e >= 0 or index_dtype != torch.uint8]
        entries = (
            entries if allowed else [e for e in entries if 0 <= e < (6 if name == "points" else 7)]
        )
        index = torch.tensor(entries, dtype=index_dtype)
        expected = gather(source, index, **option)
        for placement in (Shard(0), R, Shard(1)):
            output = gather(
                distribute_tensor(source, mesh, [placement]),
                distribute_tensor(index, mesh, [kept]),
                **option,
            )
            found = output.full_tensor()
            assert found.dtype == expected.dtype
            same = torch.equal(_bits(found), _bits(expected))
            assert same, (option, index_dtype, kept, placement, found, expected)
            calls += 1
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", GATHERS)
def test_modes(name: str, dtype: torch.dtype) -> None:
    assert ranks.run(2, check_modes, name, dtype) == [108, 108]


@pytest.mark.slow
@pytest.mark.parametrize("name", GATHERS)
def test_modes_on_four(name: str) -> None:
    assert ranks.run(4, check_modes, name, torch.float32) == [108] * 4


def check_narrow_indices(name: str) -> None:
    """Of axes that are longer than the index's dtype counts."""
    mesh, gather = ranks.mesh(), GATHERS[name]
    options = {"mode": "fill", "fill_value": 7}
    for dtype, size in ((torch.int8, 200), (torch.uint8, 256), (torch.int16, 40_000)):
        source = torch.arange(10, 6 * size + 10).view(size, 6)
        entries = [0, 3, 5, 100] + [-1, -6, -100] * dtype.is_signed
        index = torch.tensor(entries, dtype=dtype)
        placed = distribute_tensor(source, mesh, [Shard(0)])
        # Not distribute_tensor(), for gloo sends no int16.
        output: Any = gather(placed, DTensor.from_local(index, mesh, [R]), **options)
        assert torch.equal(output.full_tensor(), gather(source, index, **options)), dtype


@pytest.mark.parametrize("name", GATHERS)
def test_narrow_indices(name: str) -> None:
    ranks.run(2, check_narrow_indices, name)


# ---- Strides ------------------------------------------------------------------------------------


def check_strides() -> None:
    """Of results for transposed tensors: those that the DTensor claims are its parts'."""
    mesh = ranks.mesh()
    plain = torch.randn(6, 4)
    picks = torch.tensor([[0, 5, 9], [-1, -8, 2]]).t()
    calls: list[Callable[[Any, Any], Any]] = [
        lambda source, _: torch_ops.relu(source),
        lambda source, _: torch_ops.leaky_relu(source, -0.5),
        lambda source, _: torch_ops.sigmoid(source),
        lambda source, index: torch_ops.gather_elements(source, index, 1, mode="fill"),
    ]
    for call, placement in itertools.product(calls, (R, Shard(1), Shard(0))):
        leaf = plain.clone().requires_grad_()
        expected = call(leaf.t(), picks)
        expected.square().nan_to_num(0).sum().backward()
        placed = distribute_tensor(plain, mesh, [placement]).requires_grad_()
        output = call(placed.t(), distribute_tensor(picks, mesh, [R]))
        assert output.is_contiguous() and output.to_local().is_contiguous()
        found = output.redistribute(mesh, [R]).flatten().to_local()
        torch.testing.assert_close(found, expected.flatten(), equal_nan=True)
        output.square().nan_to_num(0).sum().backward()
        torch.testing.assert_close(placed.grad.full_tensor(), leaf.grad)


def test_strides() -> None:
    ranks.run(2, check_strides)


# ---- Rows put where a mask is true --------------------------------------------------------------


def check_masked_scatter() -> None:
    rows, mask, onto = torch.randn(3, 4), torch.arange(6) % 2 == 0, torch.randn(6, 4)
    for placement in (R, Shard(1)):
        mesh = ranks.mesh()
        placed = [
            distribute_tensor(each, mesh, [at])
            for each, at in ((rows, placement), (mask, R), (onto, placement))
        ]
        output = torch_ops.masked_scatter(placed[0], placed[1], out=placed[2])
        assert torch.equal(output.full_tensor(), torch_ops.masked_scatter(rows, mask, out=onto))


def test_masked_scatter_onto_rows() -> None:
    ranks.run(2, check_masked_scatter)


# ---- Ranks outside the mesh ---------------------------------------------------------------------


def call_outside() -> list[tuple[Any, ...]]:
    """What four ranks know of results of the first two."""
    mesh = DeviceMesh(ranks.device_type, [0, 1])
    source, picks = torch.randn(8, 3), torch.tensor([1, 5, 7, 2, 0, 0, 1, 7])
    found: list[tuple[Any, ...]] = []
    for of_source, of_index in itertools.product((R, Shard(0), Shard(1)), (R, Shard(0))):
        table = distribute_tensor(source, mesh, [of_source]).requires_grad_()
        index = distribute_tensor(picks, mesh, [of_index])
        points = distribute_tensor(torch.tensor([[1, 2], [3, 0]]), mesh, [of_index])
        outputs = [
            torch_ops.gather(table, index),
            torch_ops.gather(table, index, mode="fill"),
            torch_ops.gather(table, index % 3, 1),
            torch_ops.embedding(torch_ops.gather_plan(index, 8), table),
            torch_ops.embedding(index, table),
            torch_ops.index(table, (index,)),
            torch_ops.gather_nd(table, points),
            torch_ops.scatter_add(table, index, 8),
            torch_ops.scatter(table, index, 8, reduce="amax"),
            torch_ops.relu(table.t()),
            torch_ops.relu_(table * 1),
        ]
        for output in outputs:
            (grad,) = torch.autograd.grad(output, table, output.detach())
            found += [(each.shape, each.placements) for each in (output, grad)]
            if mesh.get_coordinate() is None:
                assert not output.to_local().numel() and not grad.to_local().numel()
    return found


def test_ranks_outside_the_mesh() -> None:
    """They know shapes and placements, and have nothing."""
    first, *others = ranks.run(4, call_outside)
    assert len(first) == 2 * 6 * 11 and others == [first] * 3


# ---- Gradients by mode --------------------------------------------------------------------------


def check_gradients(name: str, mode: str) -> None:
    mesh = ranks.mesh()
    source, gather, index = torch.randn(7, 6), GATHERS[name], torch.tensor(BAD)
    plain = source.clone().requires_grad_()
    gather(plain, index, mode=mode).nan_to_num(0).square().sum().backward()
    for placement, kept in itertools.product((Shard(0), R, Shard(1)), (R, Shard(0))):
        placed = distribute_tensor(source, mesh, [placement]).requires_grad_()
        output = gather(
            placed,
            distribute_tensor(index, mesh, [kept]),
            mode=mode,
            **({"fill_value": 0} if mode == "fill" else {}),
        )
        output.square().sum().backward()
        torch.testing.assert_close(placed.grad.full_tensor(), plain.grad)


@pytest.mark.parametrize("mode", ["wrap", "clip", "fill"])
@pytest.mark.parametrize("name", GATHERS)
def test_gradients(name: str, mode: str) -> None:
    ranks.run(2, check_gradients, name, mode)


# ---- Errors -------------------------------------------------------------------------------------


FAILING: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "gather": (torch_ops.gather, (7, 6)),
    "batch_gather": (lambda x, i: torch_ops.batch_gather(x, i.view(1, 2, 6)), (1, 2, 7, 3)),
    "gather_elements": (_elements, (7, 6)),
    "take_along_dim": (lambda x, i: torch_ops.take_along_dim(x, i, 0), (7,)),
    "gather_nd": (_points, (7, 7)),
    "index": (lambda x, i: torch_ops.index(x, (i,)), (7, 6)),
    "embedding": (lambda x, i: torch_ops.embedding(i, x, padding_idx=1), (7, 6)),
    "scatter_add": (lambda x, i: torch_ops.scatter_add(x, i, 7), (12, 3)),
}


def messages(
    name: str, placements: tuple[Any, Any], backend: str = "", with_gradient: bool = False
) -> tuple[str, str]:
    """The error of the op and of its distributed form; entry 9 is out of range."""
    mesh = ranks.mesh()
    call, shape = FAILING[name]
    data = torch.randn(shape)
    index = torch.tensor([0, 6, 3, 2, 1, 5, 5, 4, 0, 8, 1, 6])
    placed = [
        distribute_tensor(tensor, mesh, [placement])
        for tensor, placement in zip((data, index), placements, strict=True)
    ]
    placed[0].requires_grad_(with_gradient)
    distributed = torch.compile(call, backend=backend) if backend else call
    return message_of(lambda: call(data, index)), message_of(lambda: distributed(*placed))


@pytest.mark.parametrize("name", [name for name in FAILING if name != "scatter_add"])
def test_error_of_a_source_in_parts(name: str) -> None:
    """Each rank raises the error that there is without parts."""
    axis = 2 if name == "batch_gather" else 0
    for expected, found in ranks.run(2, messages, name, (Shard(axis), R)):
        assert "out of range" in expected and found == expected


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in FAILING if name != "scatter_add"])
@pytest.mark.parametrize(("world", "with_gradient"), [(1, False), (2, False), (2, True)])
def test_error_of_a_compiled_call(world: int, name: str, backend: str, with_gradient: bool) -> None:
    """No compiler drops the check of a source in parts, whose result nobody asks for."""
    placements = (Shard(2 if name == "batch_gather" else 0), R)
    for expected, found in ranks.run(world, messages, name, placements, backend, with_gradient):
        assert "out of range" in expected and found == expected


@pytest.mark.parametrize("name", ["gather", "gather_elements", "gather_nd", "index", "embedding"])
def test_error_of_both_in_parts(name: str) -> None:
    """Where rows are exchanged, a rank that asks for no row that is none learns of the other."""
    (expected, first), (_, second) = ranks.run(2, messages, name, (Shard(0), Shard(0)))
    exchanged = name in ("gather", "index", "embedding")
    op = "gather" if name == "gather" else name
    told = f"IndexError: {op}: rank 1 of the group has an entry out of range in its index, or an"
    assert second == expected and "out of range" in expected
    assert first.startswith(told) if exchanged else first == expected


@pytest.mark.parametrize("name", ["gather", "gather_elements", "index", "embedding", "scatter_add"])
def test_error_of_an_index_in_parts(name: str) -> None:
    """The rank that has the entry names its place in all of the index."""
    values = Shard(0) if name == "scatter_add" else R
    (expected, first), (_, second) = ranks.run(2, messages, name, (values, Shard(0)))
    assert "out of range" in expected
    assert (first, second) == ("", expected)


def refused() -> list[str]:
    mesh = ranks.mesh((2,))
    weight = distribute_tensor(torch.randn(7, 6), mesh, [Shard(0)]).requires_grad_()
    index = distribute_tensor(torch.tensor([1, 2]), mesh, [R])
    points = distribute_tensor(torch.tensor([[1, 2]]), mesh, [Shard(1)])
    other = distribute_tensor(torch.tensor([1, 2]), ranks.mesh((2, 1)), [R, R])
    total = DTensor.from_local(torch.randn(4), mesh, [Partial()])
    rows = distribute_tensor(torch.randn(2, 6), mesh, [R])
    columns = distribute_tensor(torch.randn(2, 6), mesh, [Shard(1)])
    sums = DTensor.from_local(torch.randn(7, 6), mesh, [Partial()])
    sparse = torch_ops.embedding(index, weight, sparse=True)
    return [
        message_of(lambda: torch_ops.gather(weight, torch.tensor([1, 2]))),
        message_of(lambda: torch_ops.gather(weight, torch_ops.gather_plan(torch.tensor([1]), 7))),
        message_of(lambda: torch_ops.gather(weight, other)),
        message_of(lambda: torch_ops.gather(weight, index, 2)),
        message_of(lambda: torch_ops.gather(weight, index.float())),
        message_of(lambda: torch_ops.relu_(total)),
        message_of(lambda: torch_ops.sigmoid_(total)),
        message_of(lambda: sparse.sum().backward()),
        message_of(lambda: torch_ops.gather_nd(weight, points)),
        message_of(lambda: torch_ops.index_add(weight.detach(), index, rows)),
        message_of(lambda: torch_ops.embedding(index, weight, max_norm=1.0)),
        message_of(lambda: torch_ops.index_put(weight.detach(), index, rows)),
        message_of(lambda: torch_ops.logsumexp(rows, index, 7)),
        message_of(lambda: torch_ops.segment_reduce(rows, index)),
        message_of(lambda: torch_ops.masked_gather(weight, index > 1)),
        message_of(lambda: torch_ops.index(rows, index > 1)),
        message_of(lambda: torch_ops.scatter_(sums, columns, index, reduce="mean")),
    ]


def test_refused() -> None:
    for found in ranks.run(2, refused):
        for message, words in zip(
            found,
            [
                "RuntimeError: gather: source and index must all be DTensors if one is, but index",
                "RuntimeError: gather: source and the plan's rows and the plan's order and the "
                "plan's index must all be DTensors if one is",
                "RuntimeError: gather: source and index must be on one device mesh",
                "IndexError: gather: dim must be between",
                "TypeError: gather: index must be",
                "RuntimeError: relu_: input is overwritten where it is",
                "RuntimeError: sigmoid_: input is overwritten where it is",
                "NotImplementedError: embedding: the gradient of a weight that is a DTensor",
                "ValueError: gather_nd: the last axis of index holds the coordinates of a point",
                "NotImplementedError: index_add: there is no rule for DTensors, and source and "
                "values and index are DTensors. Give it plain tensors",
                "NotImplementedError: embedding with max_norm: there is no rule for DTensors",
                "NotImplementedError: index_put: there is no rule for DTensors",
                "NotImplementedError: softmax, log_softmax and logsumexp: there is no rule",
                "NotImplementedError: segment_reduce: there is no rule for DTensors",
                "NotImplementedError: masked_gather: the true entries of a mask that is a DTensor",
                "NotImplementedError: index: the true entries of a mask that is a DTensor",
                "RuntimeError: scatter_: out is overwritten where it is, so it must not be Partial",
            ],
            strict=True,
        ):
            assert message.startswith(words)


# ---- Memory -------------------------------------------------------------------------------------


def largest_in_backward(rows: int, padding_idx: int | None) -> int:
    mesh = ranks.mesh()
    weight = distribute_tensor(torch.randn(rows, 4), mesh, [Shard(0)]).requires_grad_()
    index = distribute_tensor(torch.arange(0, rows, 100), mesh, [R])
    output = torch_ops.embedding(index, weight, padding_idx)
    grad = distribute_tensor(torch.ones(output.shape), mesh, [R])
    with torch.profiler.profile(profile_memory=True) as profile:
        output.backward(grad)
    assert weight.grad.placements == (Shard(0),)
    of_device = f"self_{'device' if grad.is_cuda else 'cpu'}_memory_usage"
    return max(getattr(event, of_device) for event in profile.events())


@pytest.mark.parametrize("padding_idx", [None, 100])
@pytest.mark.parametrize("world", [2, 4])
def test_gradient_takes_the_memory_of_a_part(world: int, padding_idx: int | None) -> None:
    part = 10_000 * 4 * 4 // world
    for size in ranks.run(world, largest_in_backward, 10_000, padding_idx):
        assert part <= size < part + 512  # to which CUDA's allocator rounds


# ---- Reductions that are no sums ----------------------------------------------------------------


def reduce_and_compare() -> None:
    """By a plan, and in place, of tensors that all ranks have or have columns of."""
    mesh = ranks.mesh()
    values = torch.arange(24.0).view(6, 4) % 7
    index = torch.tensor([0, 2, 2, 1, 0, 2])
    for columns in (R, Shard(1)):
        placed = distribute_tensor(values, mesh, [columns])
        picks = distribute_tensor(index, mesh, [R])
        plan = torch_ops.gather_plan(picks, 4)
        for reduce in ("amax", "amin", "prod", "mean", "var"):
            found = torch_ops.scatter(placed, plan, reduce=reduce)
            expected = torch_ops.scatter(values, index, 4, reduce=reduce)
            torch.testing.assert_close(found.full_tensor(), expected, equal_nan=True)
        for reduce, include_self in itertools.product(("amax", "prod", "mean"), (True, False)):
            options = {"reduce": reduce, "include_self": include_self}
            out = distribute_tensor(torch.full((4, 4), 3.0), mesh, [columns])
            torch_ops.scatter_(out, placed, picks, **options)
            expected = torch_ops.scatter_(torch.full((4, 4), 3.0), values, index, **options)
            torch.testing.assert_close(out.full_tensor(), expected)


def test_reductions() -> None:
    ranks.run(2, reduce_and_compare)
