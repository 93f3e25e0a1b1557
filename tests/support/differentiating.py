"""Autograd around an op: what is saved, when, and for which gradients work is done."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pytest
import torch
from op_checks import Op
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from support import Call, assert_close, calls, weighted


class CalledOps(TorchDispatchMode):
    """The ops that reach a backend, but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class AutogradChecks:
    def test_saved_tensor_hooks(self, op: Op, device: torch.device) -> None:
        """What is saved may be kept elsewhere."""
        for call in calls(op, device):
            packed: list[Tensor] = []

            def pack(tensor: Tensor, packed: list[Tensor] = packed) -> Tensor:
                packed.append(tensor)
                return tensor.cpu().clone()

            leaves = call.leaves()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.to(device)):
                output = call.of_inputs(*leaves)
            assert packed, call.shapes()
            assert_close(torch.autograd.grad(weighted(output), leaves), call.gradients())
            with torch.autograd.graph.save_on_cpu():
                output = call.of_inputs(*leaves)
            assert_close(torch.autograd.grad(weighted(output), leaves), call.gradients())

    def test_checkpoint(self, op: Op, device: torch.device) -> None:
        """Activation checkpointing, reentrant and not."""
        for call in calls(op, device):
            for use_reentrant in (False, True):
                leaves = call.leaves()
                output = checkpoint(call.of_inputs, *leaves, use_reentrant=use_reentrant)
                weighted(output).backward()
                assert_close(tuple(leaf.grad for leaf in leaves), call.gradients())

    @pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
    def test_anomaly_mode(self, op: Op, device: torch.device) -> None:
        """Nothing to see where all is well; a NaN is found, and the forward call shown."""
        for call in calls(op, device, 1):
            with torch.autograd.detect_anomaly():
                assert_close(call.gradients(), call.gradients())
                leaves = call.leaves()
                output = call.of_inputs(*leaves)
                # torch names the node, and warns with the lines of the forward call.
                with (
                    pytest.warns(UserWarning, match="Error detected in"),
                    pytest.raises(RuntimeError, match=r"Backward.*returned nan values"),
                ):
                    torch.autograd.grad(output, leaves, torch.full_like(output, torch.nan))

    def test_retain_and_create_graph(self, op: Op, device: torch.device) -> None:
        """A second pass, a pass through the pass, and none once the graph is freed."""
        for call in calls(op, device):
            leaves = call.leaves()
            output = call.of_inputs(*leaves)
            cotangent = torch.cos(output.detach()).requires_grad_()
            first = torch.autograd.grad(output, leaves, cotangent, retain_graph=True)
            again = torch.autograd.grad(output, leaves, cotangent, create_graph=True)
            assert_close(again, first)
            # The gradient is linear in the cotangent: its derivative by that is the tangent.
            vectors = [torch.sin(leaf.detach()) for leaf in leaves]
            pairs = [pair for pair in zip(again, vectors, strict=True) if pair[0].requires_grad]
            connected, directions = zip(*pairs, strict=True)
            (moved,) = torch.autograd.grad(connected, cotangent, directions, retain_graph=True)
            _, tangent = torch.func.jvp(
                call.of_inputs, tuple(leaf.detach() for leaf in leaves), tuple(vectors)
            )
            assert_close(moved, tangent, call.shapes())
            torch.autograd.grad(output, leaves, cotangent.detach())
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                torch.autograd.grad(output, leaves, cotangent.detach())

    def test_missing_and_expanded_gradients(self, op: Op, device: torch.device) -> None:
        """Undefined gradients stay undefined; those that share memory are as good as others."""
        for call in calls(op, device):
            leaves = call.leaves()
            output = call.of_inputs(*leaves)
            absent = torch._C._functions.UndefinedGrad()(output)
            gone = torch.autograd.grad(absent.sum(), leaves, allow_unused=True, retain_graph=True)
            assert gone == (None,) * len(leaves)
            one = torch.full((), 1.5, dtype=output.dtype, device=device).expand(output.shape)
            expanded = torch.autograd.grad(output, leaves, one, retain_graph=True)
            whole = torch.autograd.grad(output, leaves, one.contiguous(), retain_graph=True)
            assert_close(expanded, whole, call.shapes())
            assert_close(torch.autograd.grad((1.5 * output).sum(), leaves), whole)

    def test_needs_input_grad(self, op: Op, device: torch.device) -> None:
        """No work for a gradient that nobody asked for."""
        call = calls(op, device, 1)[0]
        inputs = call.inputs

        def work(required: tuple[int, ...], asked: tuple[int, ...]) -> list[str]:
            leaves = call.leaves(required)
            output = call.of_inputs(*leaves)
            wanted = [leaf for at, leaf in zip(inputs, leaves, strict=True) if at in asked]
            cotangent = torch.ones_like(output)
            with CalledOps() as called:
                torch.autograd.grad(output, wanted, cotangent)
            return called.names

        everything = work(inputs, inputs)
        assert everything
        with CalledOps() as forward:
            output = call.of_inputs(*call.leaves(()))
        assert not output.requires_grad
        with CalledOps() as plain, torch.no_grad():
            call.of_inputs(*call.leaves())
        assert forward.names == plain.names
        each = [work((at,), (at,)) for at in inputs]
        for at, alone in zip(inputs, each, strict=True):
            assert work(inputs, (at,)) == alone, call.shapes()
        assert len(inputs) == 1 or min(map(len, each)) < len(everything), call.shapes()

    def test_inputs_are_not_kept(self, op: Op, device: torch.device) -> None:
        """Values that the derivative does not need are freed, and may be overwritten."""
        for call in calls(op, device):
            expected = call.gradients()
            free = [at for at in call.inputs if at not in op.kept]
            leaves = call.leaves()
            given = [leaf.clone() for leaf in leaves]
            output = call.of_inputs(*given)
            with torch.no_grad():
                for at, tensor in zip(call.inputs, given, strict=True):
                    if at in free:
                        tensor.zero_()
            loss = weighted(output)
            assert_close(torch.autograd.grad(loss, leaves, retain_graph=True), expected)
            references = [
                weakref.ref(tensor)
                for at, tensor in zip(call.inputs, given, strict=True)
                if at in free
            ]
            del given, tensor
            assert [reference() for reference in references] == [None] * len(free), call.shapes()
            assert_close(torch.autograd.grad(loss, leaves), expected)
            # What it does need is guarded.
            for at in op.kept:
                given = [leaf.clone() for leaf in leaves]
                output = call.of_inputs(*given)
                given[call.inputs.index(at)].detach().zero_()
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    torch.autograd.grad(weighted(output), leaves)

    def test_inference_mode(self, op: Op, device: torch.device) -> None:
        """Inside, and outside on tensors that were made inside."""
        for call in calls(op, device):
            expected = call(*call.tensors)
            with torch.inference_mode():
                output = call(*call.tensors)
                copies = [tensor.clone() for tensor in call.tensors]
                inside = call(*copies)
            assert_close(output, expected)
            assert_close(inside, expected)
            if isinstance(output, Tensor):
                assert output.is_inference() and not output.requires_grad
            assert_close(call(*copies), expected)  # made there, used here

    def test_versions(self, op: Op, device: torch.device) -> None:
        """Nothing that is only read counts as written; what is overwritten counts once."""
        for call in calls(op, device):
            for wanted in (False, True):
                tensors = [tensor.clone() for tensor in call.tensors]
                if wanted and "gradcheck" not in op.exempt:
                    for at in call.inputs:
                        tensors[at] = tensors[at].requires_grad_().clone()
                before = [tensor._version for tensor in tensors]
                write_into(call, tensors)
                after = [tensor._version for tensor in tensors]
                expected = list(before)
                expected[0] += op.inplace
                assert after == expected, call.shapes()

    def test_hooks(self, op: Op, device: torch.device) -> None:
        """On the output, on its node, and on the leaves."""
        for call in calls(op, device):
            expected = call.gradients()
            leaves = call.leaves()
            output = call.of_inputs(*leaves)
            node = output.grad_fn
            assert node is not None
            before, after, of_leaf = [], [], []
            output.register_hook(lambda gradient: 2 * gradient)
            output.retain_grad()
            node.register_prehook(before.extend)
            node.register_hook(partial(keep_outputs, after))
            leaves[0].register_post_accumulate_grad_hook(of_leaf.append)
            weighted(output).backward()
            assert_close(before, after)
            assert_close([output.grad], before)
            assert of_leaf == [leaves[0]]
            assert_close(tuple(leaf.grad for leaf in leaves), tuple(2 * part for part in expected))


def keep_outputs(kept: list[Tensor], inputs: tuple[Tensor, ...], outputs: tuple[Tensor]) -> None:
    """A node's hook: what it was given, which its signature calls its outputs."""
    kept.extend(outputs)


def write_into(call: Call, tensors: list[Tensor]) -> Any:
    """The op itself: one that works in place writes into the first tensor."""
    return call.op.function(*call.args(tensors), **call.sample.kwargs)
