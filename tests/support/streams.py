"""What only a GPU has: graphs, streams, a device that is not the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_checks import Op
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from support import Call, assert_close, sized_call, weighted


def forward_and_backward(call: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor]:
    """The outputs and, where there is a derivative, the gradients of `tensors` that want one."""
    output = call(*tensors)
    outputs = list(pytree.tree_leaves(output))
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    return outputs + (list(torch.autograd.grad(weighted(output), leaves)) if leaves else [])


def fresh(call: Call) -> list[Tensor]:
    tensors = [tensor.detach().clone() for tensor in call.tensors]
    if "gradcheck" not in call.op.exempt:
        for at in call.inputs:
            tensors[at].requires_grad_()
    return tensors


class CudaChecks:
    """Where there is a GPU; on it alone."""

    # The leaves are of the stream that is current elsewhere; their gradients are not accumulated.
    @pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
    def test_cuda_graph(self, op: Op, device: torch.device) -> None:
        """Captured once, forward and backward, and replayed on other values."""
        call = sized_call(op, device, 30)
        tensors = fresh(call)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                forward_and_backward(call, tensors)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = forward_and_backward(call, tensors)
        for factor in (0.5, -2.0):
            with torch.no_grad():
                for at in call.inputs:
                    tensors[at].mul_(factor)
            graph.replay()
            assert_close(results, forward_and_backward(call, tensors), call.shapes())

    def test_other_streams(self, op: Op, device: torch.device) -> None:
        """On the current stream, whichever it is: after what it has been given before."""
        call = sized_call(op, device, 30)
        expected = forward_and_backward(call, fresh(call))
        torch.cuda.synchronize()
        for stream in (torch.cuda.Stream(), torch.cuda.Stream(priority=-1)):
            with torch.cuda.stream(stream):
                tensors = [torch.zeros_like(tensor) for tensor in call.tensors]
                torch.cuda._sleep(20_000_000)  # the values come late
                for tensor, given in zip(tensors, call.tensors, strict=True):
                    tensor.copy_(given)
                for tensor, like in zip(tensors, fresh(call), strict=True):
                    tensor.requires_grad_(like.requires_grad)
                results = forward_and_backward(call, tensors)
            stream.synchronize()
            assert_close(results, expected, call.shapes())

    def test_other_device(self, op: Op, device: torch.device) -> None:
        """Tensors on a device that is not the current one."""
        if torch.cuda.device_count() < 2:
            pytest.skip("needs two GPUs")
        expected = forward_and_backward(
            sized_call(op, device, 30), fresh(sized_call(op, device, 30))
        )
        other = torch.device("cuda", 1)
        call = sized_call(op, other, 30)
        assert torch.cuda.current_device() == 0
        results = forward_and_backward(call, fresh(call))
        assert torch.cuda.current_device() == 0
        for result, wanted in zip(results, expected, strict=True):
            assert result.device == other
            assert_close(result.cpu(), wanted.cpu(), call.shapes())

    # Inductor captures nothing, once, to have a pool of memory.
    @pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
    @pytest.mark.timeout(600)
    def test_reduce_overhead(self, op: Op, device: torch.device) -> None:
        """torch.compile(mode="reduce-overhead"), which records CUDA graphs: none is given up."""
        torch.compiler.reset()
        counters.clear()
        call = sized_call(op, device, 30)
        compiled = torch.compile(op.functional, fullgraph=True, mode="reduce-overhead")

        def run() -> list[Tensor]:
            torch.compiler.cudagraph_mark_step_begin()
            made = forward_and_backward(
                lambda *given: compiled(*call.args(given), **call.sample.kwargs), fresh(call)
            )
            return [tensor.detach().clone() for tensor in made]

        expected = forward_and_backward(call, fresh(call))
        for _ in range(3):
            assert_close(run(), expected, call.shapes())
        assert counters["inductor"]["cudagraph_skips"] == 0
