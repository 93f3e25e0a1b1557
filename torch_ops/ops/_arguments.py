"""What the ops of the gather family ask of their arguments in Python."""

from __future__ import annotations

from typing import Any

from torch.overrides import is_tensor_like

Number = int | float | complex | bool


def mode_arguments(name: str, mode: str, fill_value: Number | None = None) -> dict[str, Any]:
    """The options of a registered op for these of a public function.

    Raises TypeError for what the registered op would refuse without naming it.
    """
    if mode == "raise" and fill_value is None:
        return {}
    if not isinstance(mode, str):
        raise TypeError(f"{name}: mode must be a string, but it is {mode!r}.")
    if fill_value is None:
        return {"mode": mode}
    if not isinstance(fill_value, (int, float, complex)):
        kind = type(fill_value).__name__
        raise TypeError(f"{name}: fill_value must be a number, but a {kind} was given.")
    if isinstance(fill_value, int) and not -(2**63) <= fill_value < 2**63:
        raise ValueError(f"{name}: fill_value must fit int64, but it is {fill_value}.")
    return {"mode": mode, "fill_value": fill_value}


def only_raise(name: str, mode: str, fill_value: Number | None = None) -> None:
    """Raises ValueError for another mode than that of plans."""
    if mode != "raise" or fill_value is not None:
        given = f"mode={mode!r}" if fill_value is None else f"fill_value={fill_value!r}"
        raise ValueError(
            f'{name}: a plan is made for mode="raise", but {given} was given. Its entries were '
            "checked when it was made. Give the index itself for another mode."
        )


def check_tensors(name: str, order: str, **tensors: Any) -> None:
    """Raises TypeError where an argument is no tensor; ``order`` is that of the arguments."""
    for role, argument in tensors.items():
        if not is_tensor_like(argument):  # torch.fx's proxies are
            raise TypeError(
                f"{name}: {role} must be a tensor, but a {type(argument).__name__} was given. "
                f"torch_ops.{name} takes ({order})."
            )
