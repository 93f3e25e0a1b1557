"""What a training loop does around an op: mixed precision, determinism, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from op_checks import Op
from torch import Tensor
from torch.utils import _pytree as pytree

from support import Call, assert_close, calls, sized_call


def low_precision(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.bfloat16


def dtypes_of(function: Any, call: Call, dtypes: list[torch.dtype]) -> list[torch.dtype] | None:
    """Those of the outputs where the inputs have these, or None where that is an error."""
    tensors = call.tensors
    for at, dtype in zip(call.inputs, dtypes, strict=True):
        tensors[at] = tensors[at].to(dtype)
    args = call.args(tensors)
    if call.op.inplace:
        args = (args[0].clone(), *args[1:])
    try:
        output = function(*args, **call.sample.kwargs)
    except (RuntimeError, TypeError):
        return None
    return [leaf.dtype for leaf in pytree.tree_leaves(output)]


class TrainingChecks:
    def test_autocast(self, op: Op, device: torch.device) -> None:
        """The dtype of the result is that of torch's own call; or as without autocast."""
        low = low_precision(device)
        for call in calls(op, device):
            count = len(call.inputs)
            choices = [[torch.float32] * count, [low] * count]
            if count > 1:
                choices += [
                    [torch.float32, *[low] * (count - 1)],
                    [low, *[torch.float32] * (count - 1)],
                ]
            for dtypes in choices:
                outside = dtypes_of(op.function, call, dtypes)
                with torch.autocast(device.type, dtype=low):
                    inside = dtypes_of(op.function, call, dtypes)
                    expected = dtypes_of(op.torchs, call, dtypes) if op.torchs else outside
                assert inside == expected, f"{call.shapes()} {dtypes}"

    def test_grad_scaler(self, op: Op, device: torch.device) -> None:
        """A step on what autocast made of float32 parameters."""
        low = low_precision(device)
        for call in calls(op, device):
            leaves = [leaf.detach().float().requires_grad_() for leaf in call.leaves()]
            scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
            optimizer = torch.optim.SGD(leaves, lr=1.0)
            with torch.autocast(device.type, dtype=low):
                eye = [torch.eye(max(leaf.shape[-1:], default=1), device=device) for leaf in leaves]
                made = [
                    torch.mm(leaf.reshape(-1, one.shape[0]), one).view(leaf.shape)
                    for leaf, one in zip(leaves, eye, strict=True)
                ]
                assert {tensor.dtype for tensor in made} == {low}
                output = call.of_inputs(*made)
                loss = output.float().sum()
            before = [leaf.detach().clone() for leaf in leaves]
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            rounded = [leaf.to(low).double().requires_grad_() for leaf in before]
            expected = torch.autograd.grad(call.of_inputs(*rounded).sum(), rounded)
            for leaf, start, step in zip(leaves, before, expected, strict=True):
                torch.testing.assert_close(
                    (start - leaf.detach()).double(),
                    step,
                    # A few roundings of the low precision, on the way there and back.
                    rtol=8 * torch.finfo(low).eps,
                    atol=8 * torch.finfo(low).eps * max(1.0, step.abs().max().item()),
                    msg=lambda text, call=call: f"{call.shapes()}: {text}",
                )

    def test_deterministic_algorithms(self, op: Op, device: torch.device) -> None:
        """With torch.use_deterministic_algorithms(True): no error, and the same bits again."""
        call = Call(op, op.colliding(device)) if op.colliding else sized_call(op, device, 40)
        torch.use_deterministic_algorithms(True)
        try:
            runs = []
            for _ in range(3):
                runs.append(pytree.tree_leaves(call(*call.tensors)))
                if "gradcheck" not in op.exempt:
                    runs[-1] += call.gradients()
        finally:
            torch.use_deterministic_algorithms(False)
        for again in runs[1:]:
            for one, other in zip(runs[0], again, strict=True):
                assert torch.equal(one, other), call.shapes()

    def test_seeds(self, op: Op, device: torch.device) -> None:
        """No random numbers are drawn."""
        generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()  # until then there are none
            generators.append(torch.cuda.default_generators[0])
        call = calls(op, device, 1)[0]
        before = [generator.get_state() for generator in generators]
        call(*call.tensors)
        if "gradcheck" not in op.exempt:
            call.gradients()
        for state, generator in zip(before, generators, strict=True):
            assert torch.equal(state, generator.get_state())

    def test_threads(self, op: Op, device: torch.device) -> None:
        """Forward and backward in several threads at once; on CUDA, each on streams of its own."""
        call = sized_call(op, device, 60)
        derivative = "gradcheck" not in op.exempt

        def results() -> list[Tensor]:
            outputs = list(pytree.tree_leaves(call(*call.tensors)))
            return outputs + list(call.gradients() if derivative else ())

        expected = results()

        def work(_: int) -> list[Tensor]:
            if device.type == "cpu":
                return [part for _ in range(5) for part in results()]
            # Two streams in turns: scratch of one call must not be that of another still running.
            streams = [torch.cuda.Stream(device) for _ in range(2)]
            made = []
            for turn in range(10):
                stream = streams[turn % 2]
                stream.wait_stream(torch.cuda.default_stream(device))
                with torch.cuda.stream(stream):
                    made += results()
            for stream in streams:
                stream.synchronize()
            return made

        if device.type == "cuda":
            torch.cuda.synchronize()
        with ThreadPoolExecutor(4) as pool:
            for made in pool.map(work, range(4)):
                for at, part in enumerate(made):
                    assert_close(part, expected[at % len(expected)], call.shapes())
