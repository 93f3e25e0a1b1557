"""replace_modules: a model's layers by ours, in place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Literal, NamedTuple, TypeGuard, TypeVar, overload

from torch import Tensor, nn
from torch._subclasses import FakeTensor

from torch_ops.ops._arguments import given
from torch_ops.ops.embedding import Embedding
from torch_ops.ops.embedding_bag import EmbeddingBag
from torch_ops.ops.relu import LeakyReLU, ReLU
from torch_ops.ops.sigmoid import Sigmoid

Model = TypeVar("Model", bound=nn.Module)

# Each is a subclass of the other, which adds no parameter, buffer or hook.
_OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Embedding: Embedding,
    nn.EmbeddingBag: EmbeddingBag,
    nn.ReLU: ReLU,
    nn.LeakyReLU: LeakyReLU,
    nn.Sigmoid: Sigmoid,
}
_FORWARDS = {cls: cls.forward for cls in _OURS}
_SAVES_A_MASK = (nn.ReLU, nn.LeakyReLU)
_PASSES_ON = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
)  # what they return shares memory with their input


class Replacement(NamedTuple):
    """What :func:`replace_modules` did with a layer.

    Attributes:
        name: The layer's name in the model; "" is the model itself.
        old: The class that it had.
        new: The class that it has now, or None where it was left.
        reason: Why it was left, or "".
    """

    name: str
    old: type[nn.Module]
    new: type[nn.Module] | None
    reason: str


def _is_plain(model: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether it calls its layers one after another."""
    if not isinstance(model, nn.Sequential) or "forward" in vars(model):
        return False
    return type(model).forward is nn.Sequential.forward


def _in_order(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that a container calls, those of containers in it too."""
    if _is_plain(model):
        for child in model:
            yield from _in_order(child)
    else:
        yield model


def _before_linear(model: nn.Module) -> set[int]:
    """The ids of layers that a container shows to stand before a Linear, wherever it shows them."""
    plain = [module for module in model.modules() if _is_plain(module)]
    parts = {id(child) for container in plain for child in container}
    before: set[int] = set()
    elsewhere: set[int] = set()
    for container in plain:
        if id(container) in parts:
            continue  # read where it stands
        layers = [layer for layer in _in_order(container) if not isinstance(layer, _PASSES_ON)]
        for layer, following in zip_longest(layers, layers[1:]):
            (before if isinstance(following, nn.Linear) else elsewhere).add(id(layer))
    return before - elsewhere


def _is_known(weight: Tensor) -> bool:
    """Whether our ops take it: it is of no subclass, a DTensor or a fake tensor."""
    return type(weight) in (nn.Parameter, Tensor, FakeTensor) or hasattr(weight, "device_mesh")


def _save(layer: nn.Module) -> object:
    """Ours has it already if its class was set to torch's again."""
    return getattr(layer, "save", "mask")


def _reason(layer: nn.Module, before_linear: set[int]) -> str | None:
    """Why a layer is left; "" where it is not; None where it is of none of the classes."""
    cls = type(layer)
    if cls in _OURS.values():
        return "it is one of torch_ops already"
    if cls not in _OURS:
        known = next((base for base in _OURS if isinstance(layer, base)), None)
        return (
            None
            if known is None
            else f"{cls.__qualname__} is a subclass of torch.nn.{known.__name__}"
        )
    if "forward" in vars(layer):
        return "it has a forward of its own"
    if cls.forward is not _FORWARDS[cls]:
        return f"the forward of torch.nn.{cls.__name__} was replaced"
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and not _is_known(weight):
        return f"its weight is {given(weight)}, which may know only torch's ops"
    if cls in _SAVES_A_MASK and str(_save(layer)) not in ("mask", "output"):
        return "it has an attribute save, which would be overwritten"
    if cls in _SAVES_A_MASK and id(layer) in before_linear:
        return "it stands before a Linear, which keeps its output: a mask would save nothing"
    return ""


@overload
def replace_modules(model: Model, report: Literal[False] = False) -> Model: ...


@overload
def replace_modules(model: Model, report: Literal[True]) -> tuple[Model, list[Replacement]]: ...


@overload
def replace_modules(model: Model, report: bool) -> Model | tuple[Model, list[Replacement]]: ...


def replace_modules(model: Model, report: bool = False) -> Model | tuple[Model, list[Replacement]]:
    """Makes the layers of a model that this library has into its own, in place.

    ``torch.nn.Embedding``, ``EmbeddingBag``, ``ReLU``, ``LeakyReLU`` and ``Sigmoid`` become
    :class:`Embedding`, :class:`EmbeddingBag`, :class:`ReLU`, :class:`LeakyReLU` and
    :class:`Sigmoid`. The layers stay the objects that they
    are, with their parameters, tied weights, hooks, names, training flags and ``inplace``; so an
    optimizer, a ``state_dict`` and every other reference stay right.

    Left as they are:

    - instances of subclasses of these classes, and layers with a ``forward`` of their own or an
      attribute ``save``,
    - an Embedding or EmbeddingBag whose weight is a subclass of Tensor other than a DTensor or a
      fake tensor, such as a quantized weight,
    - a ReLU or LeakyReLU that an ``nn.Sequential`` shows to stand before an ``nn.Linear``: the
      Linear keeps its input in any case, so that a mask comes on top (:func:`relu`, Memory).

    Code that asks for the exact class of a layer, such as torch's quantizers, captum's DeepLift,
    opacus and BackPACK, does not know ours; and torch.fx names the nodes of its graph otherwise.
    ``layer.__class__ = torch.nn.ReLU`` turns a layer back.

    Args:
        model: Any module; it may be one of the layers itself.
        report: Whether to tell what was done.

    Returns:
        ``model``; with ``report=True`` a tuple of it and of a list with an entry for each layer of
        these classes or their subclasses: its name, its class, its new class or None, and the
        reason why it was left.

    Raises:
        TypeError: ``model`` is no module.

    Example:
        >>> import torch, torch_ops
        >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.ReLU())
        >>> torch_ops.replace_modules(model)
        Sequential(
          (0): Embedding(9, 4)
          (1): ReLU()
        )
        >>> type(model[0])
        <class 'torch_ops.Embedding'>
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"replace_modules: model must be a torch.nn.Module, but it is {given(model)}."
        )
    before_linear = _before_linear(model)
    done: list[Replacement] = []
    for name, layer in model.named_modules():
        old, reason = type(layer), _reason(layer, before_linear)
        if reason is None:
            continue
        new = None if reason else _OURS[old]
        if new is not None:
            if old in _SAVES_A_MASK:
                layer.save = _save(layer)
                layer.inplace = bool(layer.inplace)  # torch's takes anything
            layer.__class__ = new
        done.append(Replacement(name, old, new, reason))
    return (model, done) if report else model
