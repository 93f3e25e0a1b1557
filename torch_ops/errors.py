"""When an index entry that a GPU finds out of range is raised, and how to ask for it."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

# None with a torch without CUDA, or without CUDA kernels.
_cuda: Any = sys.modules.get("torch_ops._ext.torch_cuda")

_MODES = ("async", "sync")
_mode = "async"


def check_errors(device: torch.device | str | int | None = None) -> None:
    """Waits for a CUDA device and raises the IndexError of a call that failed there, if one did.

    On a GPU an op cannot know, without waiting, that an entry of its index is out of range. The
    kernel records such an entry, and the next call on that device of an op that takes an index
    raises it (see :func:`set_error_mode`; :func:`gather_plan` raises its own at once). Nothing is
    recorded where a ``mode`` makes such an entry no error. This function is for
    the places where there is no next call, or where one must know: the end of an epoch, after the
    replay of a CUDA graph, before results are kept. Where nothing has failed it does no more than
    wait. An error is raised once; a call with a good index then works.

    Another thread may capture a CUDA graph meanwhile, since streams are waited for one by one, but
    those that capture: the current stream, all of torch's, and calls of these ops on a
    ``torch.cuda.ExternalStream``. Only for a graph that was launched on such a stream, make that
    the current one.

    Args:
        device: The CUDA device to wait for, as a ``torch.device``, a string or a number. Default:
            each on which such an op has run. A CPU has nothing to wait for: there calls raise
            their errors themselves.

    Raises:
        IndexError: An entry was out of range. One is named, with its value and the bound; where
            several were, which one is unspecified.
        RuntimeError: The current stream is capturing a CUDA graph.

    Example:
        >>> import torch, torch_ops
        >>> device = "cuda" if torch.cuda.is_available() else "cpu"
        >>> index = torch.tensor([2, 0], device=device)
        >>> rows = torch_ops.gather(torch.ones(3, device=device), index)
        >>> torch_ops.check_errors()  # raises nothing: all entries were in range
    """
    if device is None:
        if _cuda is not None:
            _cuda.check_errors(None)
        return
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type != "cuda" or _cuda is None:
        return
    if device.index is not None:
        _cuda.check_errors(device.index)
    elif torch.cuda.is_initialized():
        _cuda.check_errors(torch.cuda.current_device())


def set_error_mode(mode: str) -> None:
    """Says when a call on a GPU raises the IndexError of an entry out of range.

    It holds for all threads and devices, and may be changed at any time. ``TORCH_OPS_SYNC=1`` in
    the environment, read when torch_ops is imported, starts with ``"sync"``.

    Args:
        mode: ``"async"``, the default: the next call on the device, or :func:`check_errors`,
            raises; nothing waits for the GPU. ``"sync"``: the call itself waits for its kernels and
            raises, so that the traceback leads to it. That costs the time that CPU and GPU would
            have worked side by side, so it is for looking for an error. While a CUDA graph is
            captured, calls do not wait in either mode.

    Raises:
        ValueError: ``mode`` is neither of the two.

    Example:
        >>> import torch_ops
        >>> torch_ops.set_error_mode("sync")
        >>> torch_ops.get_error_mode()
        'sync'
        >>> torch_ops.set_error_mode("async")
    """
    if mode not in _MODES:
        raise ValueError(f'set_error_mode: mode must be "async" or "sync", but it is {mode!r}.')
    global _mode
    _mode = mode
    if _cuda is not None:
        _cuda.set_sync(mode == "sync")


def get_error_mode() -> str:
    """Returns the mode that :func:`set_error_mode` has set: ``"async"`` or ``"sync"``.

    Returns:
        A string.

    Example:
        >>> import torch_ops
        >>> torch_ops.get_error_mode()
        'async'
    """
    return _mode


if os.environ.get("TORCH_OPS_SYNC", "").lower() not in ("", "0", "false", "off", "no"):
    set_error_mode("sync")
