"""Numbers that torch.compile and torch.export keep as symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import torch_ops
from torch_ops.jit import ElementwiseKernel, IndexedKernel, index_plan

INDEX = [0, 9]
CALLS: dict[str, Callable[..., Tensor]] = {
    "gather": lambda x, i, n: torch_ops.gather(x, i, mode="fill", fill_value=n),
    "batch_gather": lambda x, i, n: torch_ops.batch_gather(
        x.t(), i.expand(2, 2), mode="fill", fill_value=n
    ),
    "gather_elements": lambda x, i, n: torch_ops.gather_elements(
        x, i[:, None].expand(2, 2), 0, mode="fill", fill_value=n
    ),
    "gather_nd": lambda x, i, n: torch_ops.gather_nd(x, i[:, None], mode="fill", fill_value=n),
    "masked_gather": lambda x, i, n: torch_ops.masked_gather(x, x[:, 0] > 2, size=9, fill_value=n),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("numbers", [(5, 6, 7), (0.5, 1.5, 2.5)], ids=str)
def test_fill_values_of_a_compiled_function(
    device: torch.device, name: str, numbers: tuple[Any, ...]
) -> None:
    x, index = torch.arange(8.0, device=device).view(4, 2), torch.tensor(INDEX, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[name], backend="aot_eager", fullgraph=True)
    for number in numbers:
        assert torch.equal(compiled(x, index, number), CALLS[name](x, index, number))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("strict", [False, True])
def test_sizes_as_fill_values(device: torch.device, name: str, strict: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return CALLS[name](x, index, x.shape[0])

    index = torch.tensor(INDEX, device=device)
    x = torch.arange(8.0, device=device).view(4, 2)
    rows = torch.export.Dim("rows", min=2, max=8)
    exported = torch.export.export(
        Model(), (x, index), dynamic_shapes=({0: rows}, None), strict=strict
    )
    for size in (4, 6):
        x = torch.arange(2.0 * size, device=device).view(size, 2)
        assert torch.equal(exported.module()(x, index), Model()(x, index))


# With a size given as a number: in each the entries are below it.
SIZED: dict[str, Callable[[Tensor, Tensor, Any], Any]] = {
    "scatter_add": lambda x, i, n: torch_ops.scatter_add(x, i, n),
    "scatter": lambda x, i, n: torch_ops.scatter(x, i, n, reduce="amax"),
    "scatter, sorted": lambda x, i, n: torch_ops.scatter(x, i.sort()[0], n, sorted=True),
    "scatter, return_arg": lambda x, i, n: torch_ops.scatter(
        x, i, n, reduce="amax", return_arg=True
    ),
    "scatter_elements_add": lambda x, i, n: torch_ops.scatter_elements_add(
        x, i[:, None].expand_as(x), (n, 2), 0
    ),
    "gather_csr": lambda x, i, n: torch_ops.gather_csr(
        x[:2], torch.stack((i.min() * 0, i.min() * 0 + 1, i.min() * 0 + n)), output_size=n
    ),
    "masked_gather": lambda x, i, n: torch_ops.masked_gather(x, x[:, 0] > 0, size=n),
    "softmax": lambda x, i, n: torch_ops.softmax(x, i, n),
    "logsumexp": lambda x, i, n: torch_ops.logsumexp(x, i, n),
    "gather_plan": lambda x, i, n: torch_ops.scatter_add(x, torch_ops.gather_plan(i, n)),
}


@pytest.mark.parametrize("name", SIZED)
def test_sizes_of_a_compiled_function(device: torch.device, name: str) -> None:
    """One compilation for all but the first size, and for the first one."""
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, i, like: SIZED[name](x, i, like.shape[0]), backend=counter, fullgraph=True
    )
    for size in (5, 6, 7, 9):
        x = torch.arange(4.0 * size, device=device).view(-1, 2)
        index = torch.arange(2 * size, device=device) % size
        torch.testing.assert_close(
            compiled(x, index, x[:size]), SIZED[name](x, index, size), rtol=0, atol=0
        )
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_data_say(device: torch.device, name: str) -> None:
    """As ``int(index.max()) + 1``, which no guard may ask about."""

    def call(x: Tensor, index: Tensor) -> Any:
        return SIZED[name](x, index, index.max().item() + 1)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        for entries in ([0, 2, 1, 2], [3, 0, 0, 1, 3]):
            index = torch.tensor(entries, device=device)
            x = torch.arange(2.0 * len(entries), device=device).view(-1, 2)
            torch.testing.assert_close(compiled(x, index), call(x, index), rtol=0, atol=0)


def test_fill_values_that_data_say(device: torch.device) -> None:
    def call(x: Tensor, index: Tensor) -> Tensor:
        return torch_ops.gather(x, index, mode="fill", fill_value=index.max().item())

    torch._dynamo.reset()
    x, index = torch.arange(8.0, device=device).view(4, 2), torch.tensor(INDEX, device=device)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x, index), call(x, index))


WRITES: dict[str, Callable[..., Tensor]] = {
    "index_put": torch_ops.index_put,
    "index_put_": lambda x, i, value: torch_ops.index_put_(x.clone(), i, value),
    "index_add": torch_ops.index_add,
}


@pytest.mark.parametrize("name", WRITES)
def test_values_that_are_sizes(device: torch.device, name: str) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return WRITES[name](x, index, x.shape[0])

    index = torch.tensor([0, 2], device=device)
    arguments = [(torch.rand(size, device=device), index) for size in (5, 6, 7, 9)]
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    called = [torch.compile(Model(), backend=counter, fullgraph=True)]
    for strict in (False, True):
        sizes = ({0: torch.export.Dim.DYNAMIC}, None)
        program = torch.export.export(Model(), arguments[0], dynamic_shapes=sizes, strict=strict)
        called.append(program.module())
    for call in called:
        for given in arguments:
            assert torch.equal(call(*given), Model()(*given))
    assert counter.frame_count == 2


COPIES = IndexedKernel("T x[src]", "T out[dst]", "out = x", "copies")
SCALES = IndexedKernel("T x[src], T w", "T out[dst]", "out = x * w", "scales")
PRODUCTS = ElementwiseKernel("T x, T y", "T z", "z = x * y", "products")


def plan_for(index: Tensor, rows: int) -> Any:
    return index_plan(src=(index, rows), dst=(index.flip(0), rows))


def test_plans_that_are_new_in_each_step(device: torch.device) -> None:
    """Their longest rows differ, which is no reason to compile again."""
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, plan: COPIES(x, plan=plan), backend=counter, fullgraph=True)
    for zeros in range(2, 12):
        index = torch.arange(40, device=device) % 19 + 1
        index[:zeros] = 0
        x = torch.rand(20, 2, device=device, requires_grad=True)
        plan = plan_for(index, 20)
        output, expected = compiled(x, plan), COPIES(x, plan=plan)
        assert torch.equal(output, expected)
        weights = torch.rand_like(expected)
        gradients = [torch.autograd.grad(each, x, weights)[0] for each in (output, expected)]
        assert torch.equal(*gradients)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_plans_made_by_compiled_code(device: torch.device, backend: str) -> None:
    def call(x: Tensor, index: Tensor) -> Tensor:
        return COPIES(x, plan=plan_for(index, x.shape[0]))

    torch._dynamo.reset()
    # Inductor gets what the others are given from the second size on.
    dynamic = True if backend == "inductor" else None
    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=dynamic)
    for size in (5, 6, 7):
        x, index = torch.rand(size, 2, device=device), torch.tensor([0, 1, 1, 4], device=device)
        assert torch.equal(compiled(x, index), call(x, index))
    with FakeTensorMode():
        assert call(torch.ones(5, 2), torch.tensor([0, 1])).shape == (5, 2)


def test_plans_made_by_exported_code(device: torch.device) -> None:
    """With more entries than rows, and fewer."""

    class Module(torch.nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return COPIES(x, plan=plan_for(index, x.shape[0]))

    def arguments(rows: int, entries: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(rows, 2, device=device)
        return x, torch.arange(entries, device=device) % rows

    sizes = ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO})
    exported = torch.export.export(Module(), arguments(5, 7), dynamic_shapes=sizes)
    program = exported.run_decompositions().module()
    for given in (arguments(6, 9), arguments(7, 3)):
        assert torch.equal(program(*given), Module()(*given))


def test_exported_with_one_plan_and_called_with_another(device: torch.device) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, plan: Any) -> Tensor:
            return COPIES(x, plan=plan)

    x = torch.rand(5, 2, device=device)
    plans = [plan_for(torch.tensor(rows, device=device), 5) for rows in ([0, 1, 2], [3, 3, 3])]
    exported = torch.export.export(Module(), (x, plans[0])).module()
    for plan in plans:
        assert torch.equal(exported(x, plan), COPIES(x, plan=plan))


# Of rows that a mask picked, whose number no guard may ask about, and of their places.
PICKED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "relu": lambda x, rows, mask: torch_ops.relu(rows),
    "gather": lambda x, rows, mask: torch_ops.gather(rows, mask.nonzero()[:, 0] * 0),
    "gather_nd": lambda x, rows, mask: torch_ops.gather_nd(rows, mask.nonzero() * 0),
    "masked_gather": lambda x, rows, mask: torch_ops.masked_gather(rows, rows[:, 0] > 0.5, size=3),
    "masked_scatter": lambda x, rows, mask: torch_ops.masked_scatter(rows, mask),
    "index": lambda x, rows, mask: torch_ops.index(rows, (mask.nonzero()[:, 0] * 0, 1)),
    "index by a mask": lambda x, rows, mask: torch_ops.index(rows, rows[:, 0] > 0.5),
    "softmax by offsets": lambda x, rows, mask: torch_ops.softmax(
        rows, offsets=torch.stack((mask.sum() * 0, mask.sum()))
    ),
    "elementwise kernel": lambda x, rows, mask: PRODUCTS(rows, rows),
    "elementwise kernel, first argument broadcast": lambda x, rows, mask: PRODUCTS(x[0], rows),
    "elementwise kernel, second argument broadcast": lambda x, rows, mask: PRODUCTS(rows, x[0]),
    "indexed kernel": lambda x, rows, mask: SCALES(
        rows, rows, src=mask.nonzero()[:, 0] * 0, dst=mask.nonzero()[:, 0], sizes={"dst": 5}
    ),
}


@pytest.mark.parametrize("name", PICKED)
def test_rows_that_a_mask_picked(device: torch.device, name: str) -> None:
    def call(x: Tensor, mask: Tensor) -> Tensor:
        return PICKED[name](x, x[mask], mask)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        for places in ([0, 2, 3], [0, 1, 2, 3, 4], [1, 3]):
            mask = torch.zeros(5, dtype=torch.bool, device=device)
            mask[places] = True
            x = torch.rand(5, 2, device=device, requires_grad=True)
            output, expected = compiled(x, mask), call(x, mask)
            assert torch.equal(output, expected)
            weights = torch.rand_like(expected)
            gradients = [torch.autograd.grad(each, x, weights)[0] for each in (output, expected)]
            torch.testing.assert_close(*gradients)
