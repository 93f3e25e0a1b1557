"""Tensors that are no plain tensors: subclasses, fake ones, those of the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from op_checks import Op
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from support import Call, assert_close, calls, names_of, sized_call, weighted
from support.differentiating import CalledOps


class Seen(Tensor):
    """A subclass by __torch_function__ that keeps the names of what it was given to."""

    names: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


class SeeingMode(TorchFunctionMode):
    """Keeps the names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def as_subclass(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().as_subclass(Seen)


def symbolic(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A fake tensor with a symbol for each size."""
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode.from_tensor(tensor, symbolic_context=dynamic)


class TensorChecks:
    def test_torch_function(self, op: Op, device: torch.device) -> None:
        """A subclass sees each call, and results have its type; a mode sees each call."""
        for call in calls(op, device):
            with SeeingMode() as mode:
                call(*call.tensors)
            assert any("torch_ops." in name for name in mode.names), mode.names
            Seen.names = []
            tensors = [as_subclass(tensor) for tensor in call.tensors]
            output = call(*tensors)
            assert str(op.overload) in Seen.names or any(
                name.startswith("torch_ops.") for name in Seen.names
            ), Seen.names
            plain = call(*call.tensors)
            for one, other in zip(
                pytree.tree_leaves(output), pytree.tree_leaves(plain), strict=True
            ):
                assert type(one) is Seen, call.shapes()
                assert_close(one.as_subclass(Tensor), other)
            if "gradcheck" not in op.exempt:
                leaves = [as_subclass(call.tensors[at]).requires_grad_() for at in call.inputs]
                gradients = torch.autograd.grad(weighted(call.of_inputs(*leaves)), leaves)
                plain = [gradient.as_subclass(Tensor) for gradient in gradients]
                assert_close(plain, list(call.gradients()))

    def test_torch_dispatch(self, op: Op, device: torch.device) -> None:
        """A subclass that holds two tensors, and computes with each."""
        seen: list[str] = []
        for call in calls(op, device):
            with CalledOps() as called:
                call(*call.tensors)
            seen += called.names
            if not call.inputs:
                continue
            others = call.tensors
            for at in call.inputs:
                others[at] = others[at] * 1.5
            pairs = list(call.tensors)
            for at in call.inputs:
                pairs[at] = TwoTensor(call.tensors[at].clone(), others[at].clone())
            output = call(*pairs)
            assert isinstance(output, TwoTensor)
            assert_close(output.a, call(*call.tensors))
            assert_close(output.b, call(*others))
            if "gradcheck" not in op.exempt:
                leaves = [pairs[at].requires_grad_() for at in call.inputs]
                gradients = torch.autograd.grad(weighted(call.of_inputs(*leaves)), leaves)
                assert_close(tuple(part.a for part in gradients), call.gradients())
        # A mode sees ours, unless the call is a composition of torch's.
        assert any(name.startswith("torch_ops.") for name in seen), seen

    def test_fake(self, op: Op, device: torch.device) -> None:
        """Shapes of symbols, which stay symbols where the result's sizes follow from them."""
        call = sized_call(op, device, 4)
        real, larger = (
            pytree.tree_leaves(sized(*sized.tensors)) for sized in (call, sized_call(op, device, 5))
        )
        mode = FakeTensorMode(shape_env=ShapeEnv())
        with mode:
            outputs = pytree.tree_leaves(call(*[symbolic(mode, t) for t in call.tensors]))
        for fake, one, other in zip(outputs, real, larger, strict=True):
            assert fake.dtype == one.dtype and fake.device == one.device
            for size, small, large in zip(fake.shape, one.shape, other.shape, strict=True):
                assert int(size) == small, call.shapes()
                if small != large:
                    assert isinstance(size, torch.SymInt), call.shapes()
        # Without symbols, with what else the result is.
        with FakeTensorMode() as mode:
            outputs = pytree.tree_leaves(call(*[mode.from_tensor(t) for t in call.tensors]))
        for fake, one in zip(outputs, real, strict=True):
            assert (fake.shape, fake.stride()) == (one.shape, one.stride()), call.shapes()

    def test_meta(self, op: Op, device: torch.device) -> None:
        """On the meta device: shape, strides and dtype of the result."""
        for call in calls(op, device):
            on_meta = Call(op, call.sample.map(lambda tensor: tensor.to("meta")))
            outputs = pytree.tree_leaves(on_meta(*on_meta.tensors))
            real = pytree.tree_leaves(call(*call.tensors))
            for shape_only, one in zip(outputs, real, strict=True):
                assert shape_only.device.type == "meta"
                assert shape_only.dtype == one.dtype
                assert (shape_only.shape, shape_only.stride()) == (one.shape, one.stride())

    def test_profiler(self, op: Op, device: torch.device) -> None:
        """The op is shown by its name, and its derivative by that of its node."""
        call = calls(op, device, 1)[0]
        derivative = "gradcheck" not in op.exempt
        if derivative and not op.node:
            pytest.fail(f"{op} has no `node`: what its derivative is called")
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profiled:
            if derivative:
                call.gradients()
            else:
                call(*call.tensors)
        names = {event.name for event in profiled.events()}
        assert names & set(names_of(op)), names
        assert not derivative or op.node in names, names
