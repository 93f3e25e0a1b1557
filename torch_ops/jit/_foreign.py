"""Arrays of other libraries as arguments of a kernel, without a copy."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

_ext: Any = importlib.import_module("torch_ops._ext.jit")

LEGACY_STREAM = 1  # the legacy default stream's handle, in CUDA and in both protocols


def adopt(
    name: str,
    array: Any,
    index: int,
    parameter: str,
    writes: bool,
    stream: torch.cuda.Stream | None,
) -> Tensor:
    """A tensor on the memory of an array; the launch's stream waits for the array's producer.

    DLPack is preferred: there the producer itself makes the stream wait. With
    ``__cuda_array_interface__`` the stream waits for the one that the interface names, or for the
    legacy default stream if it names none.
    """
    what = f"{name}: argument {index} ({parameter})"
    interface = getattr(array, "__cuda_array_interface__", None)
    if writes and interface is not None and interface["data"][1]:
        raise ValueError(f"{what} is written by the kernel, but the array given is read-only.")
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(what, array, stream)
    if interface is None:
        raise TypeError(f"{what} is a pointer: a {type(array).__name__} is not an array.")
    return _from_interface(what, array, interface, stream)


def _from_dlpack(what: str, array: Any, stream: torch.cuda.Stream | None) -> Tensor:
    try:
        kind, device = array.__dlpack_device__()
        if kind == 2 and _is_capturing(stream):  # kDLCUDA
            raise _in_capture(what)
        with (
            torch.cuda.stream(stream)
            if kind == 2 and stream
            else torch.cuda.device(device if kind == 2 else -1)
        ):
            return torch.utils.dlpack.from_dlpack(array)
    except (BufferError, TypeError, ValueError) as error:
        raise TypeError(
            f"{what}: the {type(array).__name__} given cannot be shared by DLPack: {error}"
        ) from error


class _Shown:
    """An array that hides whether it is read-only: torch refuses read-only arrays."""

    def __init__(self, array: Any, interface: dict[str, Any]) -> None:
        self.kept = array
        address, _ = interface["data"]
        self.__cuda_array_interface__ = {**interface, "data": (address, False)}


def _from_interface(
    what: str, array: Any, interface: dict[str, Any], stream: torch.cuda.Stream | None
) -> Tensor:
    if interface.get("mask") is not None:
        raise TypeError(f"{what}: the array given has a mask.")
    if not torch.cuda.is_available():
        raise RuntimeError(f"{what}: the array given is on a CUDA GPU, and torch finds none.")
    try:
        tensor = torch.as_tensor(_Shown(array, interface))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what}: the {type(array).__name__} given cannot be shared by "
            f"__cuda_array_interface__: {error}"
        ) from error
    if _is_capturing(stream):
        raise _in_capture(what)
    device = tensor.device.index
    consumer = stream if stream is not None else torch.cuda.current_stream(device)
    producer = interface.get("stream")
    # torch says 0 for the legacy default stream.
    _ext.wait_for_stream(
        consumer.cuda_stream or LEGACY_STREAM,
        LEGACY_STREAM if producer is None else int(producer),
        device,
    )
    return tensor


def _is_capturing(stream: torch.cuda.Stream | None) -> bool:
    if not torch.cuda.is_available():
        return False
    if stream is None:
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def _in_capture(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} is an array of another library, and its stream cannot be waited for while a CUDA "
        "graph is captured. Make a tensor of it before (torch.from_dlpack, torch.as_tensor), and "
        "pass that."
    )
