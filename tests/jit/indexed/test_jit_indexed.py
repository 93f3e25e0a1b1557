"""IndexedKernel: values, beside the same written with torch's own ops."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
from indexed_reference import composed, random, random_index, reduced
from torch import Tensor

import torch_ops
from torch_ops.jit import IndexedKernel, IndexPlan, cache_info, index_plan
from torch_ops.jit.plans import plan_of

DIFFERENCE = IndexedKernel(
    "T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y)", "difference"
)
difference = composed(lambda x, y, w: w * (x - y), {0: "src", 1: "dst"}, "dst")
COPY = IndexedKernel("T x[src]", "T out[dst]", "out = x", "copy")
copy = composed(lambda x: x, {0: "src"}, "dst")

N, M = 9, 7


def call_all(kernel, *inputs, src, dst, n=N, m=M, **more):  # type: ignore[no-untyped-def]
    """The result without a plan, which the ways to give one must give too."""
    results = [
        kernel(*inputs, src=src, dst=dst, sizes={"src": n, "dst": m}, **more),
        kernel(*inputs, plan=index_plan(src=(src, n), dst=(dst, m)), **more),
        kernel(*inputs, src=src, dst=torch_ops.gather_plan(dst, m), sizes={"src": n}, **more),
        kernel(
            *inputs,
            src=torch_ops.gather_plan(src, n),
            dst=torch_ops.gather_plan(dst, m),
            **more,
        ),
    ]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(results[1], results[2], rtol=0, atol=0, equal_nan=True)
    return results[0]


FEATURES = [(), (1,), (3,), (16,), (33,), (64,), (2, 3, 5)]


@pytest.mark.parametrize("kind", ["uniform", "hot", "some"])
@pytest.mark.parametrize(
    ("entries", "features"),
    # One entry's numbers are broadcast, and have kernels of their own.
    [(n, each) for n in (0, 1, 50, 9000) for each in (FEATURES if n != 1 else [(), (1,), (33,)])],
    ids=str,
)
def test_values(entries: int, features: tuple[int, ...], kind: str, device: torch.device) -> None:
    """Long rows are cut into parts, on the CPU beyond 2048 entries."""
    src, dst = (random_index(entries, rows, device, kind) for rows in (N, M))
    x, y = random((N, *features), device), random((M, *features), device)
    w = random((entries, *features[:-1], *(1,) * min(len(features), 1)), device)
    made = call_all(DIFFERENCE, x, y, w, src=src, dst=dst)
    torch.testing.assert_close(made, difference(x, y, w, src=src, dst=dst, rows=M))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [1, 5, 8, 40, 128])
def test_floats(width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Beside float64: 16-bit floats are summed in float32, and rounded once."""
    src, dst = random_index(6000, N, device), random_index(6000, M, device, "hot")
    x, y, w = (random((rows, width), device, dtype).abs() for rows in (N, M, 6000))
    made = call_all(DIFFERENCE, x, y, w, src=src, dst=dst)
    exact = difference(x.double(), y.double(), w.double(), src=src, dst=dst, rows=M)
    scale = difference(x.double(), -y.double(), w.double(), src=src, dst=dst, rows=M)
    assert made.dtype == dtype
    eps = torch.finfo(dtype).eps
    error = (made.double() - exact).abs()
    assert (error <= eps * exact.abs() + 2e-6 * scale).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_integers(dtype: torch.dtype, reduce: str, device: torch.device) -> None:
    """Sums wrap, means are rounded down: what scatter does."""
    kernel = IndexedKernel("T x[src]", "T out[dst]", "out = x", "copy", reduce=reduce)
    src, dst = random_index(40, N, device), random_index(40, M, device, "some")
    x = torch.randint(-100, 100, (N, 5), generator=torch.Generator().manual_seed(3))
    x = x.abs().to(dtype).to(device) if dtype == torch.uint8 else x.to(dtype).to(device)
    made = call_all(kernel, x, src=src, dst=dst)
    expected = torch_ops.scatter(x[src], dst, M, reduce=reduce)
    assert made.dtype == dtype
    assert made.tolist() == expected.tolist()


def test_bool_and_complex(device: torch.device) -> None:
    src, dst = random_index(40, N, device), random_index(40, M, device)
    any_of = IndexedKernel("bool x[src]", "bool out[dst]", "out = x", "any_of", reduce="amax")
    x = random((N, 3), device) > 0.5
    expected = reduced(x[src].long(), dst, M, "amax").bool()
    assert call_all(any_of, x, src=src, dst=dst).tolist() == expected.tolist()
    z = torch.complex(random((N, 3), device), random((N, 3), device, seed=1))
    for how in ("sum", "mean"):
        turn = IndexedKernel("T x[src], T w", "T out[dst]", "out = w * x", "turn", reduce=how)
        w = torch.complex(random((40, 1), device), random((40, 1), device, seed=1))
        made = call_all(turn, z, w, src=src, dst=dst)
        torch.testing.assert_close(made, reduced(w * z[src], dst, M, how))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_index_dtypes_and_strides(index_dtype: torch.dtype, device: torch.device) -> None:
    src, dst = (random_index(60, rows, device).to(index_dtype) for rows in (N, M))
    x, y, w = random((4, N), device).t(), random((M, 8), device)[:, ::2], random((60, 1), device)
    expected = difference(x, y, w, src=src, dst=dst, rows=M)
    torch.testing.assert_close(call_all(DIFFERENCE, x, y, w, src=src, dst=dst), expected)
    apart = torch.stack((src, dst), 1)  # indices that are not contiguous
    made = DIFFERENCE(x, y, w, src=apart[:, 0], dst=apart[:, 1])
    torch.testing.assert_close(made, expected)
    # Views that begin within what would be a word.
    for width in (3, 4, 64)[: 3 if index_dtype == torch.int64 else 1]:
        wide = random((N, width + 1), device, torch.float32)
        made = COPY(wide[:, 1:], src=src, dst=dst, sizes={"dst": M})
        torch.testing.assert_close(made, copy(wide[:, 1:], src=src, dst=dst, rows=M))


BROADCASTS = [
    ((N, 4), (M, 4), (1, 4)),
    ((N, 4), (M, 4), (4,)),
    ((N, 4), (M, 4), ()),
    ((N, 4), (M, 1), (60, 4)),
    ((N, 1), (M, 1), (60, 1)),
    ((N, 1), (M, 1), (60, 5)),
    ((N, 1, 6), (M, 3, 6), (60, 3, 1)),
    ((N, 3, 1), (M, 1, 16), (16,)),
    ((N, 2, 1, 5), (M, 1, 3, 1), (60, 2, 3, 5)),
    ((N,), (M,), (60,)),
    ((N,), (M,), (1,)),
]


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_broadcast(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> None:
    """By indices and by plans in turn; both have been compared above."""
    src, dst = random_index(60, N, device), random_index(60, M, device)
    x, y, w = (random(shape, device) for shape in shapes)
    with_plan = BROADCASTS.index(shapes) % 2 == 1
    given = {"plan": index_plan(src=(src, N), dst=(dst, M))} if with_plan else {}
    made = DIFFERENCE(x, y, w, **(given or {"src": src, "dst": dst}))
    torch.testing.assert_close(made, difference(x, y, w, src=src, dst=dst, rows=M))


def test_numbers(device: torch.device) -> None:
    src, dst = random_index(60, N, device), random_index(60, M, device)
    x, y = random((N, 4), device), random((M, 4), device)
    for w in (2, 0.5, torch.tensor(0.25)):
        made = DIFFERENCE(x, y, w, src=src, dst=dst)
        torch.testing.assert_close(made, difference(x, y, w, src=src, dst=dst, rows=M))
    made = DIFFERENCE(3.0, y, 1, src=src, dst=dst)
    torch.testing.assert_close(made, reduced(3 - y[dst], dst, M))
    ones = IndexedKernel("T x", "T out[dst]", "out = x", "count")
    counts = ones(1, dst=dst, sizes={"dst": M})
    assert counts.tolist() == torch.bincount(dst, minlength=M).tolist()


def test_several_outputs(device: torch.device) -> None:
    """Reduced ones, and ones for each entry, in one kernel."""
    kernel = IndexedKernel(
        "T x[src], T y[dst]",
        "T total[dst], T best[dst], int32 count[dst], T e, bool above",
        "e = x * y; total = e; best = e; count = 1; above = x > y",
        "several",
        reduce={"best": "amax"},
    )
    src, dst = random_index(5000, N, device), random_index(5000, M, device, "hot")
    for width in (1, 6, 32):
        x, y = random((N, width), device), random((M, width), device)
        if width == 6:
            made = call_all(kernel, x, y, src=src, dst=dst)
        else:
            made = kernel(x, y, plan=index_plan(src=(src, N), dst=(dst, M)))
        total, best, count, e, above = made
        messages = x[src] * y[dst]
        torch.testing.assert_close(total, reduced(messages, dst, M))
        torch.testing.assert_close(best, reduced(messages, dst, M, "amax"), rtol=0, atol=0)
        counts = torch.bincount(dst, minlength=M)
        assert count.tolist() == counts.unsqueeze(1).expand(M, width).tolist()
        torch.testing.assert_close(e, messages, rtol=0, atol=0)
        assert above.dtype == torch.bool and torch.equal(above, x[src] > y[dst])


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_extremes(reduce: str, device: torch.device) -> None:
    """NaN where one is, 0 where there is no entry."""
    kernel = IndexedKernel("T x[src]", "T out[dst]", "out = x", "extreme", reduce=reduce)
    for width, entries in ((64, 6000), (1, 7), (5, 60))[: 3 if reduce == "amax" else 1]:
        src, dst = random_index(entries, N, device), random_index(entries, M - 1, device, "some")
        x = random((N, width), device)
        x[2, 0] = torch.nan
        x[3] = torch.inf
        made = call_all(kernel, x, src=src, dst=dst)
        torch.testing.assert_close(
            made, torch_ops.scatter(x[src], dst, M, reduce=reduce), equal_nan=True, rtol=0, atol=0
        )


def test_mean(device: torch.device) -> None:
    kernel = IndexedKernel("T x[src], T w", "T out[dst]", "out = w * x", "mean", reduce="mean")
    src, dst = random_index(7000, N, device), random_index(7000, M, device, "hot")
    x, w = random((N, 12), device), random((7000, 1), device)
    made = call_all(kernel, x, w, src=src, dst=dst)
    torch.testing.assert_close(made, reduced(w * x[src], dst, M, "mean"))


def test_features(device: torch.device) -> None:
    """Attention's logits: summed over the last axis, or over several."""
    dot = IndexedKernel("T q[dst], T k[src]", "T s", "s = q * k", "dot", features="sum")
    both = IndexedKernel("T q[dst], T k[src]", "T s", "s = q * k", "both", features=(-2, -1))
    first = IndexedKernel("T q[dst], T k[src]", "T s", "s = q * k", "first", features=(-2,))
    mixed = IndexedKernel(
        "T q[dst], T k[src]", "T out[dst], T s, T m[dst]", "out = m = s = q * k", "mixed",
        features="sum", reduce={"m": "mean"},
    )  # fmt: skip
    for heads, width, entries in ((2, 5, 60), (3, 64, 700), (1, 1, 3), (4, 200, 9)):
        src, dst = random_index(entries, N, device), random_index(entries, M, device)
        q, k = random((M, heads, width), device), random((N, heads, width), device)
        product = q[dst] * k[src]
        torch.testing.assert_close(call_all(dot, q, k, src=src, dst=dst), product.sum(-1))
        torch.testing.assert_close(both(q, k, src=src, dst=dst), product.sum((-2, -1)))
        plan = index_plan(src=(src, N), dst=(dst, M))
        torch.testing.assert_close(first(q, k, plan=plan), product.sum(-2))
        out, s, m = call_all(mixed, q, k, src=src, dst=dst)
        torch.testing.assert_close(out, reduced(product, dst, M))
        torch.testing.assert_close(m, reduced(product, dst, M, "mean"))
        torch.testing.assert_close(s, product.sum(-1))


def test_batch_dims(device: torch.device) -> None:
    src = torch.stack([random_index(40, N, device, seed=b) for b in range(3)])
    dst = torch.stack([random_index(40, M, device, seed=9 + b) for b in range(3)])
    x, y = random((3, N, 5), device), random((3, M, 5), device)
    for w in (random((3, 40, 1), device), random((40, 5), device), random((3, 1, 5), device),
              random((5,), device), random((1, 40, 1), device)):  # fmt: skip
        expected = torch.stack(
            [
                difference(x[b], y[b], w.expand(3, 40, 5)[b], src=src[b], dst=dst[b], rows=M)
                for b in range(3)
            ]
        )
        made = DIFFERENCE(x, y, w, src=src, dst=dst, batch_dims=1)
        torch.testing.assert_close(made, expected)
        plan = index_plan(src=(src, N), dst=(dst, M), batch_dims=1)
        torch.testing.assert_close(DIFFERENCE(x, y, w, plan=plan), expected)
        plan = torch_ops.gather_plan(dst, M, batch_dims=1)
        torch.testing.assert_close(DIFFERENCE(x, y, w, src=src, dst=plan), expected)
    # Two axes of batches, which no one stride walks; an input that has some of them.
    x2 = x.expand(2, 3, N, 5).transpose(0, 1).contiguous().transpose(0, 1)
    w = random((2, 1, 40, 1), device)
    made = DIFFERENCE(
        x2, y.expand(2, 3, M, 5), w, src=src.expand(2, 3, 40), dst=dst.expand(2, 3, 40),
        batch_dims=2,
    )  # fmt: skip
    for a in range(2):
        expected = DIFFERENCE(x, y, w[a].expand(3, 40, 1), src=src, dst=dst, batch_dims=1)
        torch.testing.assert_close(made[a], expected)


def test_what_a_snippet_sees(device: torch.device) -> None:
    """The entry's number, their number, raw arrays, functions, return, outputs that start as 0."""
    kernel = IndexedKernel(
        "raw T table, T x[src]",
        "T out[dst], int64 at",
        "at = i; if (x < 0) return; out = twice(x) * table[i % table.size()] + _ind.size()",
        "sees",
        preamble="template <class A> __device__ A twice(A a) { return a + a; }",
    )
    src, dst = random_index(60, N, device), random_index(60, M, device)
    x, table = random((N, 3), device), random((4,), device)
    out, at = kernel(table, x, src=src, dst=dst, sizes={"dst": M})
    assert at.tolist() == [[e] * 3 for e in range(60)]
    entry = torch.arange(60, device=device)
    rows = x[src]
    messages = torch.where(rows < 0, 0, 2 * rows * table[entry % 4].unsqueeze(1) + 60)
    torch.testing.assert_close(out, reduced(messages, dst, M))


def test_sizes(device: torch.device) -> None:
    src, dst = random_index(20, 5, device), random_index(20, 5, device)
    x = random((5, 2), device)
    assert COPY(x, src=src, dst=dst, sizes={"dst": 9}).shape == (9, 2)
    assert bool((COPY(x, src=src, dst=dst, sizes={"dst": 9})[5:] == 0).all())
    empty = src[:0]
    assert COPY(x[:0], src=empty, dst=empty, sizes={"dst": 0}).shape == (0, 2)
    assert COPY(x, src=empty, dst=empty, sizes={"dst": 3}).tolist() == [[0, 0]] * 3
    assert COPY(x[:, :0], src=src, dst=dst, sizes={"dst": 3}).shape == (3, 0)
    dot = IndexedKernel("T a[src]", "T s", "s = a", "rows", features="sum")
    assert dot(x[:, :0], src=src).tolist() == [0] * 20


def test_same_bits(device: torch.device) -> None:
    src, dst = random_index(30000, N, device), random_index(30000, M, device, "hot")
    x, y = random((N, 20), device, torch.float32), random((M, 20), device, torch.float32)
    w = random((30000, 1), device, torch.float32)
    first = DIFFERENCE(x, y, w, src=src, dst=dst)
    for _ in range(3):
        assert torch.equal(DIFFERENCE(x, y, w, src=src, dst=dst, deterministic=True), first)
    if device.type == "cpu":
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            assert torch.equal(DIFFERENCE(x, y, w, src=src, dst=dst), first)
        finally:
            torch.set_num_threads(threads)


def test_few_and_many_features_have_one_kernel() -> None:
    """On the CPU, which has no lanes to share the entries of narrow rows."""
    kernel = IndexedKernel("T x[src]", "T out[dst]", "out = 3 * x - 7", "of_any_width")
    cpu = torch.device("cpu")
    src, dst = random_index(20, N, cpu), random_index(20, M, cpu)
    before = cache_info().compiles
    for width in (16, 64, 256):
        kernel(random((N, width), cpu), src=src, dst=dst, sizes={"dst": M})
    assert cache_info().compiles == before + 1


def test_kernels_are_values(device: torch.device) -> None:
    """A kernel of the same text is the same op, and can be pickled; so can plans."""
    again = pickle.loads(pickle.dumps(DIFFERENCE))
    assert again._kernel.op_name == DIFFERENCE._kernel.op_name
    assert "difference" in repr(again) and "T x[src]" in repr(again)
    other = IndexedKernel("T x[src]", "T out[dst]", "out = x", "copy", reduce="mean")
    assert other._kernel.op_name != COPY._kernel.op_name
    src, dst = random_index(20, N, device), random_index(20, M, device)
    plan = index_plan(src=(src, N), dst=(dst, M))
    assert repr(plan).startswith("IndexPlan(src=int64[20] to 9, dst=int64[20] to 7, batch_dims=0")
    x = random((N, 4), device)
    expected = COPY(x, plan=plan)
    torch.testing.assert_close(COPY(x, plan=pickle.loads(pickle.dumps(plan))), expected)
    file = io.BytesIO()
    torch.save({"plan": plan}, file)
    file.seek(0)
    with torch.serialization.safe_globals([IndexPlan]):
        torch.testing.assert_close(COPY(x, plan=torch.load(file)["plan"]), expected)
    torch.testing.assert_close(COPY(x, plan=plan.to(device)), expected)
    backward = index_plan(dst=(dst, M), other=(src, 100), src=(src, N))
    torch.testing.assert_close(COPY(x, plan=backward), expected)


def test_plans_hold_what_they_say(device: torch.device) -> None:
    src, dst = random_index(50, N, device), random_index(50, M, device, "hot")
    plan = index_plan(src=(src.int(), N), dst=(dst, M))
    order, offsets, of_src, of_dst = plan.parts[4:]
    assert order.tolist() == dst.argsort(stable=True).tolist()
    counts = torch.bincount(dst, minlength=M)
    assert offsets.tolist() == [0, *counts.cumsum(0).tolist()]
    assert of_src.tolist() == src[order.long()].tolist()
    assert of_dst.tolist() == dst[order.long()].tolist()
    assert plan.longest == (int(torch.bincount(src).max()), int(counts.max()))
    assert {part.dtype for part in plan.parts} == {torch.int32}


def test_plans_that_nothing_waits_for(device: torch.device) -> None:
    """They lack the lengths of rows, which kernels can do without."""
    src, dst = random_index(9000, N, device), random_index(9000, M, device, "hot")
    x, y, w = (random((rows, 5), device).requires_grad_() for rows in (N, M, 9000))
    loose = plan_of(("src", "dst"), [src, dst], [N, M], 0, wait=False)
    plan = index_plan(src=(src, N), dst=(dst, M))
    assert loose.longest == (-1, -1)
    assert all(map(torch.equal, loose.parts, plan.parts))
    results = []
    for given in (loose, plan):
        out = DIFFERENCE(x, y, w, plan=given)
        results.append((out, *torch.autograd.grad(out.square().sum(), (x, y, w))))
    torch.testing.assert_close(*results)


def test_plans_that_nothing_waits_for_and_bad_entries(device: torch.device) -> None:
    src, dst = random_index(50, N, device), random_index(50, M, device)
    src[7], dst[9] = N, -1

    def call() -> None:
        plan = plan_of(("src", "dst"), [src, dst], [N, M], 0, wait=False)
        COPY(random((N, 3), device), plan=plan)
        torch_ops.check_errors()

    with pytest.raises(IndexError, match=r"(src|dst|index)\[(7|9)\] is (9|-1)"):
        call()


@pytest.mark.parametrize("width", [3, 16, 40])
def test_outputs_of_entries_in_either_order(width: int, device: torch.device) -> None:
    """With a plan, narrow rows are written in the order of the entries, wide ones in its own."""
    product = IndexedKernel("T x[src], T y[dst]", "T e", "e = x * y", "product")
    dot = IndexedKernel("T x[src], T y[dst]", "T e", "e = x * y", "dot", features="sum")
    src, dst = random_index(3000, N, device), random_index(3000, M, device, "hot")
    x, y = random((N, width), device), random((M, width), device)
    expected = x[src] * y[dst]
    for given in ({"src": src, "dst": dst}, {"plan": index_plan(src=(src, N), dst=(dst, M))}):
        assert torch.equal(product(x, y, **given), expected)
        torch.testing.assert_close(dot(x, y, **given), expected.sum(-1))


@pytest.mark.sanitizer
def test_passes_for_the_sanitizer(device: torch.device) -> None:
    """Each kind of pass, its gradients, long rows and odd widths, with and without a plan."""
    dot = IndexedKernel("T q[dst], T k[src]", "T s", "s = q * k", "dot", features="sum")
    best = IndexedKernel("T x[src], T w", "T out[dst]", "out = x * w", "best", reduce="amax")
    # On the CPU the sizes, second derivatives and two kernels by indices are of other tests.
    for width, entries in ((33, 2500), (1, 700), (8, 700))[: 3 if device.type == "cuda" else 1]:
        src, dst = random_index(entries, N, device), random_index(entries, M, device, "hot")
        x = random((N, width), device, torch.float32).requires_grad_()
        y = random((M, width), device, torch.float32).requires_grad_()
        w = random((entries, 1), device, torch.float32).requires_grad_()
        plan = index_plan(src=(src, N), dst=(dst, M))
        for given in ({"plan": plan}, {"src": src, "dst": dst}):
            sizes = {"sizes": {"dst": M}}
            on_cuda = device.type == "cuda"
            total = DIFFERENCE(x, y, w, **given).sum()
            if on_cuda or "plan" in given:
                total = total + dot(y, x, **given).sum()
                total = total + best(x, w, **given, **sizes).sum()
            gradients = torch.autograd.grad(total, (x, y, w), create_graph=on_cuda)
            if on_cuda:
                squares = sum((g * g).sum() for g in gradients)
                gradients += torch.autograd.grad(squares, (x, y, w))
            assert all(bool(torch.isfinite(g).all()) for g in gradients)


def bad_entries(device: torch.device) -> list[tuple[Tensor, int]]:
    base = random_index(20, 5, device)
    cases = []
    for position, value in ((3, 5), (0, -1), (19, 2**31 - 1), (7, -(2**31))):
        index = base.clone()
        index[position] = value
        cases.append((index, position))
    return cases


@pytest.mark.parametrize("width", [1, 4, 33])
def test_entries_out_of_range(width: int, device: torch.device, sync_mode: None) -> None:
    """Named by kernel, index, position and value; by whichever index it is."""
    x, good = random((5, width), device), random_index(20, 5, device)
    e = IndexedKernel("T x[src]", "T e", "e = x", "rows")
    for bad, at in bad_entries(device):
        text = rf"\[{at}\] is {bad[at].item()}, out of range for an axis of size 5"
        with pytest.raises(IndexError, match=f"copy: src{text}"):
            COPY(x, src=bad, dst=good, sizes={"dst": 5})
        with pytest.raises(IndexError, match=f"copy: dst{text}"):
            COPY(x, src=good, dst=bad, sizes={"dst": 5})
        with pytest.raises(IndexError, match=f"rows: src{text}"):
            e(x, src=bad.int())
        with pytest.raises(IndexError, match=f"index_plan: dst{text}"):
            index_plan(src=(good, 5), dst=(bad, 5))
        with pytest.raises(IndexError, match=rf"copy: dst\[1, {at}\] is {bad[at].item()}"):
            COPY(
                x.expand(2, 5, width),
                src=good.expand(2, 20),
                dst=torch.stack((good, bad)),
                sizes={"dst": 5},
                batch_dims=1,
            )
    with pytest.raises(IndexError, match="number of entries of dst is 20, but the axis has size 0"):
        COPY(x, src=good, dst=good, sizes={"dst": 0})
    # What went wrong is over.
    torch.testing.assert_close(
        COPY(x, src=good, dst=good, sizes={"dst": 5}), copy(x, src=good, dst=good, rows=5)
    )


def test_batches_without_entries(device: torch.device) -> None:
    empty = torch.zeros(2, 0, dtype=torch.int64, device=device)
    plan = index_plan(src=(empty, 3), dst=(empty, 5), batch_dims=1)
    kernel = IndexedKernel("T x[src]", "T out[dst]", "out = x", "copied")
    assert torch.equal(
        kernel(torch.ones(2, 3, 4, device=device), plan=plan), torch.zeros(2, 5, 4, device=device)
    )


def test_the_reductions_that_were_given_are_copied() -> None:
    reduce = {"out": "amax"}
    kernel = IndexedKernel("T x[src]", "T out[src]", "out = x", "largest", reduce=reduce)
    reduce["out"] = "sum"
    x, src = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0])
    assert pickle.loads(pickle.dumps(kernel))(x, src=src).tolist() == [[1], [0]]
