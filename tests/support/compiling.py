"""torch.compile, compiled autograd, torch.export and AOTInductor.

Dynamo and AOTAutograd are checked with the backend "aot_eager", or Dynamo alone with "eager", twice
as fast, where AOTAutograd is given the same graph by another check. Inductor compiles each op once,
for its first compilation on a CPU takes half a minute.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from op_checks import Op, few, requiring_grad
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import fresh_cache
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from support import Call, assert_close, calls, functional_name, raised, sized_call, weighted
from torch_ops.decompositions import decompose

# Dynamo times the guards of each function that it has compiled, after a flush of the CPU's caches:
# some 20 ms each time.
torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0

OPCHECKS = (
    *("test_schema", "test_autograd_registration", "test_faketensor"),
    "test_aot_dispatch_dynamic",
)


def run(function: Callable[..., Any], call: Call) -> list[Tensor]:
    """What it returns for the call's tensors, and the gradients where it has any."""
    leaves = call.leaves()
    tensors = call.tensors
    for at, leaf in zip(call.inputs, leaves, strict=True):
        tensors[at] = leaf
    outputs = pytree.tree_leaves(function(*tensors))
    if not outputs[0].requires_grad:
        return outputs
    return [*outputs, *torch.autograd.grad(weighted(outputs[0]), leaves)]


class CompileChecks:
    # opcheck looks at .grad of what it is given; an in-place op must not be given a leaf.
    @pytest.mark.slow
    def test_opcheck(self, op: Op, device: torch.device) -> None:
        """Schema, fake kernel, autograd registration, and AOTAutograd with dynamic shapes."""
        samples = (op.registered(sample) for sample in op.samples(device, torch.float32))
        checked = few(sample for sample in samples if sample is not None)
        assert checked
        for given in checked:
            for wanted in (False, True):
                sample = requiring_grad(given, wanted)
                args = sample.args
                if op.inplace and wanted:
                    args = (args[0].clone(), *args[1:])
                torch.library.opcheck(op.overload, args, sample.kwargs, test_utils=OPCHECKS)

    # A float that a function holds is an input to Dynamo by default, and costs a compilation more:
    # that of torch's own leaky_relu too. Here it is a constant.
    @torch._dynamo.config.patch(specialize_float=True)
    def test_compile(self, op: Op, device: torch.device) -> None:
        """Whole graphs, forward and backward; how often sizes that change compile anew."""
        # Of sizes that are constants test_inductor has a graph.
        for dynamic, allowed, backend in ((None, 2, "eager"), (True, 1, "aot_eager")):
            torch.compiler.reset()
            counter = CompileCounterWithBackend(backend)
            function = sized_call(op, device, 9).without_values()
            compiled = torch.compile(function, fullgraph=True, backend=counter, dynamic=dynamic)
            for size in (9, 12, 17):
                call = sized_call(op, device, size)
                assert_close(run(compiled, call), run(call, call), call.shapes())
            assert counter.frame_count <= allowed, f"dynamic={dynamic}: {counter.frame_count}"

    @pytest.mark.slow
    def test_compiled_func_grad(self, op: Op, device: torch.device) -> None:
        """torch.func inside compiled code, where a missing derivative would be lost silently."""
        torch.compiler.reset()
        call = calls(op, device, 1)[0]
        gradient = grad(call.loss, argnums=call.inputs)
        expected = gradient(*call.tensors)
        assert any(part.abs().sum() > 0 for part in expected)
        compiled = torch.compile(gradient, fullgraph=True, backend="eager")
        assert_close(compiled(*call.tensors), expected)
        stacked = [
            torch.stack([t, t]) if i in call.inputs else t for i, t in enumerate(call.tensors)
        ]
        dims = tuple(0 if i in call.inputs else None for i in range(len(stacked)))
        each = torch.compile(vmap(gradient, dims), fullgraph=True, backend="aot_eager")
        assert_close(each(*stacked), tuple(torch.stack([part, part]) for part in expected))

    # The capture looks at .grad of all that nodes have saved. That AOTAutograd takes the ops of the
    # backward pass, test_compile and opcheck show.
    @pytest.mark.slow
    def test_compiled_autograd(self, op: Op, device: torch.device) -> None:
        """The backward pass captured as one graph, with stand-ins for what each node holds."""
        torch.compiler.reset()
        capture = torch.compile(backend="eager", fullgraph=True, dynamic=True)
        for call in calls(op, device, 2):
            leaves = call.leaves()
            loss = weighted(call.of_inputs(*leaves))
            expected = torch.autograd.grad(loss, leaves, retain_graph=True)
            with compiled_autograd._enable(capture):
                loss.backward()
            assert_close([leaf.grad for leaf in leaves], list(expected), call.shapes())

    def test_export(self, op: Op, device: torch.device) -> None:
        """torch.export with every size dynamic that may be; run with others."""
        program = exported(op, device)
        for size in (9, 12):
            call = sized_call(op, device, size)
            assert_close(program.module()(*call.tensors), call(*call.tensors), call.shapes())

    # What the decompositions compute, test_decompositions.py checks for more calls.
    @pytest.mark.slow
    def test_decompose(self, op: Op, device: torch.device) -> None:
        """The exported program in torch's ops alone; run with other sizes."""
        program = decompose(exported(op, device))
        targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
        called = [each for each in targets if isinstance(each, torch._ops.OpOverload)]
        # torch's norm is no core op.
        others = "aten" if op.name == "embedding_renorm_" else "nothing else"
        assert called
        for each in called:
            assert torch.Tag.core in each.tags or each.namespace == others, each
        for size in (9, 12):
            call = sized_call(op, device, size)
            assert_close(program.module()(*call.tensors), call(*call.tensors), call.shapes())

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_inductor(self, op: Op, device: torch.device) -> None:
        """Forward and backward, compiled by the default backend."""
        torch.compiler.reset()
        call = sized_call(op, device, 9)
        compiled = torch.compile(call.without_values(), fullgraph=True)
        assert_close(run(compiled, call), run(call, call), call.shapes())

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_aot_inductor(self, op: Op, device: torch.device, packaged: dict[str, Any]) -> None:
        """In a package of all ops that another Python process has loaded."""
        call = sized_call(op, device, PACKAGED_SIZE)
        assert_close(packaged[op.name], pytree.tree_leaves(call(*call.tensors)), call.shapes())

    @pytest.mark.slow
    def test_errors_when_compiled(self, op: Op, device: torch.device) -> None:
        """Those of the eager call, in a wrapper of Dynamo's where it finds them itself."""
        if op.bad is None:
            pytest.fail(f"{op} has no `bad` calls")
        for sample in op.bad(device):
            call = Call(op, sample)
            plain = raised(partial(call, *call.tensors))
            torch.compiler.reset()
            compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
            error = raised(partial(compiled, *call.tensors))
            text = functional_name(op, str(plain).splitlines()[0])
            found = functional_name(op, str(error))
            assert text in found, f"{call.shapes()}: {error!r}, but {plain!r}"


class Exported(torch.nn.Module):
    """A call as a module."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(*tensors)


def exported(op: Op, device: torch.device) -> torch.export.ExportedProgram:
    """An error where a size that changes with the call would be made a constant."""
    call, other = sized_call(op, device, 10), sized_call(op, device, 11)
    shapes = tuple(
        {
            dim: torch.export.Dim.DYNAMIC
            for dim, (a, b) in enumerate(zip(one.shape, two.shape, strict=True))
            if a != b
        }
        for one, two in zip(call.tensors, other.tensors, strict=True)
    )
    assert any(shapes)
    return torch.export.export(
        Exported(call), tuple(call.tensors), dynamic_shapes=(shapes,), strict=False
    )


# ---- AOTInductor: one package, for each takes a C++ compiler half a minute ----------------------

PACKAGED_SIZE = 3


class AllOps(torch.nn.Module):
    """One call of each op."""

    def __init__(self, made: dict[str, Call]) -> None:
        super().__init__()
        self.made = made

    def forward(self, tensors: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
        return {name: pytree.tree_leaves(call(*tensors[name])) for name, call in self.made.items()}


LOAD_AND_RUN = """
import sys, torch, torch_ops
package, given, result = sys.argv[1:]
model = torch._inductor.aoti_load_package(package)
torch.save(model(torch.load(given)), result)
"""


def package_and_run(ops: list[Op], device: torch.device, folder: Path) -> dict[str, Any]:
    """The outputs of each op by a package of all, loaded in a fresh Python process."""
    made = {
        op.name: sized_call(op, device, PACKAGED_SIZE)
        for op in ops
        if op.sized and "aot_inductor" not in op.exempt
    }
    tensors = {name: call.tensors for name, call in made.items()}
    program = torch.export.export(AllOps(made), (tensors,), strict=False)
    package, given, result = (str(folder / name) for name in ("ops.pt2", "given.pt", "result.pt"))
    # Its wrapper holds a call of each op, in which there is nothing to optimise. To compile headers
    # before takes longer than to read them once.
    quick = {
        "aot_inductor.compile_wrapper_opt_level": "O0",
        "aot_inductor.precompile_headers": False,
    }
    with fresh_cache():  # processes that run tests side by side would write the same files at once
        torch._inductor.aoti_compile_and_package(
            program, package_path=package, inductor_configs=quick
        )
    torch.save(tensors, given)
    subprocess.run([sys.executable, "-c", LOAD_AND_RUN, package, given, result], check=True)
    return torch.load(result)
