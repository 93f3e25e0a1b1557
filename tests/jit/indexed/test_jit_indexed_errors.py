"""What IndexedKernel and index_plan refuse, and in which words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from indexed_reference import random, random_index

import torch_ops
from torch_ops.jit import IndexedKernel, index_plan

N, M, E = 5, 4, 12

DECLARATIONS: list[tuple[str, str, str, dict[str, Any], type[Exception], str]] = [
    ("T x", "T y", "y = x", {}, ValueError, "Without an index use ElementwiseKernel"),
    ("T x[src", "T y[dst]", "y = x", {}, ValueError, "must be a type and a name"),
    ("T x[a][b]", "T y[dst]", "y = x", {}, ValueError, "one index in brackets at most"),
    ("T x[]", "T y[dst]", "y = x", {}, ValueError, "'' cannot be the name of an index"),
    ("T x[a b]", "T y[dst]", "y = x", {}, ValueError, "'a b' cannot be the name of an index"),
    ("T x[torch_ops_a]", "T y", "y = x", {}, ValueError, "cannot be the name of an index"),
    ("raw T x[src]", "T y[dst]", "y = x", {}, ValueError, "leave out raw"),
    ("T x[src]", "raw T y", "y[0] = x", {}, ValueError, "y is raw"),
    ("T x[src]", "T y[dst], T z[src]", "y = z = x", {}, ValueError, "dst and src"),
    ("T x[src]", "T y[dst]", "x + 1;", {}, ValueError, "assigns the output y nowhere"),
    ("T x[src]", "T y[dst], T e", "e = x + y", {}, ValueError, "assigns the output y nowhere"),
    ("T x[src]", "T y[dst]", "if (y == x) return;", {}, ValueError, "assigns the output y"),
    ("T x[src]", "", "x;", {}, ValueError, "an output at least"),
    ("V x[src]", "V y[dst]", "y = x", {"reduce": "max"}, ValueError, "one of sum, mean"),
    ("T x[src]", "T y[dst]", "y = x", {"reduce": {"z": "sum"}}, ValueError, "names 'z'"),
    ("T x[src]", "T y[dst]", "y = x", {"reduce": {"y": "prod"}}, ValueError, "for y, but"),
    ("T x[src]", "T y[dst]", "y = x", {"reduce": 3}, TypeError, "a string or a dict"),
    ("T x[src]", "T y", "y = x", {"reduce": {"y": "sum"}}, ValueError, "reduced outputs are none"),
    ("T x[src]", "T y[dst]", "y = x", {"features": "sum"}, ValueError, "They keep their features"),
    ("T x[src]", "T y", "y = x", {"features": (0,)}, ValueError, "count from the end"),
    ("T x[src]", "T y", "y = x", {"features": (-1, -1)}, ValueError, "each once"),
    ("T x[src]", "T y", "y = x", {"features": "mean"}, TypeError, "over the last axis"),
    ("T x[src]", "T y", 3, {}, TypeError, "operation must be a string"),  # type: ignore[list-item]
]


@pytest.mark.parametrize("case", DECLARATIONS, ids=lambda case: str(case[:3]))
def test_declarations(case: tuple[Any, ...]) -> None:
    inputs, outputs, operation, more, error, text = case
    with pytest.raises(error, match=text):
        IndexedKernel(inputs, outputs, operation, **more)


@pytest.mark.parametrize(
    "name", ["i", "_ind", "out", "sizes", "plan", "x", "y", "T", "batch_dims", "for"]
)
def test_names_of_indices_that_are_taken(name: str) -> None:
    with pytest.raises(ValueError, match=rf"an index cannot be named '{name}'"):
        IndexedKernel(f"T x[{name}]", "T y[dst]", "y = x")


def test_outputs_that_functions_assign() -> None:
    """By reference, by pointer, by an operator, in one branch."""
    for text in ("put(x, y);", "put(&y);", "y += x;", "y++;", "if (x > 0) y = x;", "f(y)"):
        IndexedKernel("T x[src]", "T y[dst]", text)


KERNEL = IndexedKernel("T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y)", "message")
COPY = IndexedKernel("T x[src]", "T out[dst]", "out = x", "copy")


def given(device: torch.device) -> tuple[Any, ...]:
    src, dst = random_index(E, N, device), random_index(E, M, device)
    return random((N, 3), device), random((M, 3), device), random((E, 1), device), src, dst


def test_shapes(device: torch.device) -> None:
    x, y, w, src, dst = given(device)
    both = {"src": src, "dst": dst}
    with pytest.raises(ValueError, match=r"w has one number for each entry.* shape is \[12, 1\]"):
        KERNEL(x, y, w[:, 0], **both)
    with pytest.raises(ValueError, match=r"axes of x, which is read by src, must be 2.*\[5, 1\]"):
        KERNEL(x[:, 0], y, w, **both)
    with pytest.raises(ValueError, match=r"axis 0 of w with shape \[11, 1\].*entries, 12"):
        KERNEL(x, y, w[1:], **both)
    with pytest.raises(ValueError, match=r"y with shape \[4, 2\] does not broadcast with x"):
        KERNEL(x, y[:, :2], w, **both)
    with pytest.raises(ValueError, match=r"dst must have the shape of src, \[12\]"):
        KERNEL(x, y, w, src=src, dst=dst[1:])
    with pytest.raises(ValueError, match=r"src must have 1 axis, \[E\].*\[12, 1\]"):
        KERNEL(x, y, w, src=src[:, None], dst=dst)
    with pytest.raises(ValueError, match=r"axis 0 of x .* must be as long as that of src"):
        KERNEL(x[None], y[None], w, src=src.expand(2, E), dst=dst.expand(2, E), batch_dims=1)
    with pytest.raises(ValueError, match="names axis -1 of the features, but there are 0"):
        IndexedKernel("T x[src]", "T s", "s = x", "sum", features="sum")(x[:, 0], src=src)
    with pytest.raises(ValueError, match="batch_dims must not be negative"):
        KERNEL(x, y, w, **both, batch_dims=-1)


def test_arguments(device: torch.device) -> None:
    x, y, w, src, dst = given(device)
    both = {"src": src, "dst": dst}
    for call, error, text in (
        (
            lambda: KERNEL(x, y, **both),
            TypeError,
            "besides the indices src, dst by name, must be 3",
        ),
        (lambda: KERNEL(x, y, w, src=src), TypeError, "the index dst is missing"),
        (lambda: KERNEL(x, y, w, **both, index=src), TypeError, "but got index"),
        (lambda: KERNEL(x, y, w, src=src.double(), dst=dst), TypeError, "src must be int32 or"),
        (lambda: KERNEL(x, y, w, src=[0], dst=dst), TypeError, "src must be a tensor or a Gath"),
        (lambda: KERNEL("x", y, w, **both), TypeError, "x must be a tensor or a number"),
        (lambda: KERNEL(x, y, w, plan=src), TypeError, "plan must be what torch_ops.jit.index_"),
        (lambda: KERNEL(x, y, w, **both, sizes=3), TypeError, "sizes must be a dict"),
        (lambda: KERNEL(x, y, w, **both, sizes={"to": 3}), ValueError, "sizes names to"),
        (lambda: KERNEL(x, y, w, **both, sizes={"dst": 2.5}), TypeError, "must be an int"),
        (lambda: KERNEL(x, y, w, **both, sizes={"dst": 2**63}), ValueError, "must fit int64"),
        (
            lambda: KERNEL(x, y, w, src=src.to_sparse(), dst=dst),
            TypeError,
            "src must be a strided tensor, but it is Sparse",
        ),
        (lambda: KERNEL(x, y, w, **both, sizes={"dst": -1}), ValueError, "must not be negative"),
        (
            lambda: KERNEL(x, y, w, **both, sizes={"dst": 9}),
            ValueError,
            "counts is 9 by sizes=, but 4",
        ),
        (lambda: KERNEL(x, y, w, **both, batch_dims=0.5), TypeError, "batch_dims must be an int"),
        (lambda: KERNEL(x, y, w, **both, deterministic=src), TypeError, "must be a bool"),
        (
            lambda: COPY(x, **both),
            ValueError,
            r'no input is read by dst. Pass sizes=\{"dst": \.\.\.\} or a plan',
        ),
    ):
        with pytest.raises(error, match=text):
            call()


def test_plans(device: torch.device) -> None:
    x, y, w, src, dst = given(device)
    plan = index_plan(src=(src, N), dst=(dst, M))
    with pytest.raises(TypeError, match="given twice"):
        KERNEL(x, y, w, plan=plan, src=src)
    with pytest.raises(ValueError, match="the plan has no index dst; it has src"):
        COPY(x, plan=index_plan(src=(src, N)))
    with pytest.raises(ValueError, match="src counts is 9 by the plan or sizes=, but 5 by"):
        COPY(x, plan=index_plan(src=(src, 9), dst=(dst, M)))
    with pytest.raises(ValueError, match="dst counts is 4 by the plan, but 7 by sizes="):
        COPY(x, plan=plan, sizes={"dst": 7})
    with pytest.raises(ValueError, match="made for batch_dims=0, but batch_dims=1"):
        COPY(x, plan=plan, batch_dims=1)
    with pytest.raises(ValueError, match="dst is a plan for dim=1"):
        COPY(x, src=src, dst=torch_ops.gather_plan(dst, M, dim=1))
    longer = dataclasses.replace(plan, parts=(*plan.parts[:5], plan.parts[5][1:], *plan.parts[6:]))
    with pytest.raises(ValueError, match="the plan of dst was made for other indices"):
        COPY(x, plan=longer)
    for make, error, text in (
        (lambda: index_plan(), ValueError, "takes an index at least"),
        (lambda: index_plan(src=src), TypeError, r"src must be a tensor and how many rows"),
        (lambda: index_plan(src=([0], 2)), TypeError, r"but it is tuple of list, int\."),
        (lambda: index_plan(src=(src, 1.5)), TypeError, "the number of rows of src"),
        (lambda: index_plan(src=(src, -1)), ValueError, "must not be negative"),
        (lambda: index_plan(src=(src.double(), N)), TypeError, "must be int32 or int64"),
        (lambda: index_plan(src=(src[None], N)), ValueError, "must have 1 axes"),
        (lambda: index_plan(src=(src, N), dst=(dst[1:], M)), ValueError, "the shape of src"),
        (lambda: index_plan(src=(src, N), batch_dims=-1), ValueError, "batch_dims must be"),
        (lambda: plan.to(torch.float32), TypeError, r"^IndexPlan\.to: device must be .*float32"),
    ):
        with pytest.raises(error, match=text):
            make()


def test_dtypes(device: torch.device) -> None:
    x, _, _, src, dst = given(device)
    more = {"src": src, "dst": dst, "sizes": {"dst": M}}
    with pytest.raises(TypeError, match="output out is bool, which has no sum"):
        COPY(x > 0, **more)
    largest = IndexedKernel("T x[src]", "T out[dst]", "out = x", "largest", reduce="amax")
    with pytest.raises(TypeError, match="output out is complex, so it has no largest value"):
        largest(torch.complex(x, x), **more)
    fixed = IndexedKernel("int32 x[src]", "int32 out[dst]", "out = x", "fixed")
    with pytest.raises(TypeError, match="x is declared int32"):
        fixed(x, **more)


def test_devices() -> None:
    x, _, _, src, dst = given(torch.device("cpu"))
    with pytest.raises(
        (RuntimeError, NotImplementedError), match=r"must be on one device, but x is on meta"
    ):
        COPY(x.to("meta"), src=src, dst=dst, sizes={"dst": M})


def test_rows_without_axes(device: torch.device) -> None:
    *_, src, dst = given(device)
    call = {"src": src, "dst": dst, "sizes": {"dst": M}}
    for scalar in (torch.tensor(2.0), torch.tensor(2.0, device=device)):
        with pytest.raises(
            ValueError, match=r"of x, which is read by src, must be 1, but x has none"
        ):
            COPY(scalar, **call)
    scaled = IndexedKernel("T w, T x[src]", "T out[dst]", "out = w * x", "scaled")
    with pytest.raises(ValueError, match=r"of x, which is read by src, must be 1, but x has none"):
        scaled(2.0, torch.tensor(2.0, device=device), **call)
    batches = {name: call[name].unsqueeze(0) for name in ("src", "dst")}
    with pytest.raises(ValueError, match=r"must be 2, but its shape is \[5\]"):
        scaled(2.0, torch.ones(5, device=device), **batches, sizes={"dst": M}, batch_dims=1)
    ones = torch.ones(N, dtype=torch.float64, device=device)
    assert torch.equal(COPY(2.0, **call).double(), COPY(2 * ones, **call))


def test_texts_that_do_not_compile(device: torch.device) -> None:
    x, _, _, src, dst = given(device)
    kernel = IndexedKernel("T x[src]", "T out[dst]", "out = fcator * x", "scale")
    with pytest.raises(torch_ops.jit.CompileError, match=r"operation, line 1.*fcator") as caught:
        kernel(x, src=src, dst=dst, sizes={"dst": M})
    assert caught.value.line == 1


def test_traced_calls_refuse_the_same(device: torch.device) -> None:
    x, y, w, src, dst = given(device)
    plan = index_plan(src=(src, N), dst=(dst, M))
    for call, text in (
        (lambda: KERNEL(x, y, src=src, dst=dst), "must be 3, but it is 2"),
        (lambda: KERNEL(x, y, w, src=src), "dst is missing"),
        (lambda: KERNEL(x, y, w, src=src, dst=dst, index=dst), "but got index"),
        (lambda: KERNEL(x, y, w, plan=plan, src=src), "given twice"),
        (lambda: KERNEL(x, y, w[:, 0], src=src, dst=dst), "one number for each entry"),
        (lambda: KERNEL(x, y, w, src=src, dst=dst, sizes={"to": 3}), "sizes names to"),
        (
            lambda: COPY(x, plan=plan, sizes={"dst": 7}),
            "dst counts is 4 by the plan, but 7 by sizes=",
        ),
    ):
        with pytest.raises(Exception, match=text):
            torch.compile(call, fullgraph=True, backend="eager")()
    torch._dynamo.reset()


def test_an_index_that_is_named_offsets(device: torch.device, sync_mode: None) -> None:
    """An entry may not be the axis's end, as an offset of segments may."""
    kernel = IndexedKernel("T x[offsets]", "T y[rows]", "y = x", "named")
    index = torch.tensor([0, 4], device=device)
    text = r"offsets\[1\] is 4, out of range for an axis of size 4: it must be between 0 and 3"
    with pytest.raises(IndexError, match=text):
        kernel(torch.ones(4, 2, device=device), offsets=index, rows=index, sizes={"rows": 5})
