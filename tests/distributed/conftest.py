"""The devices of ranks."""

from __future__ import annotations

import pytest
import ranks
import torch


@pytest.fixture
def ranks_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of this test have devices of this type."""
    monkeypatch.setattr(ranks, "device_type", device.type)
