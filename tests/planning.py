"""Plans for the tests of gather_plan and of calls with a plan."""

from __future__ import annotations

from typing import Any

import torch
from gathering import Case, index_for

import torch_ops
from torch_ops import GatherPlan

# Batches and axes before dim together: what a plan says of batches must be spread over slices.
SPREAD = [
    Case((3, 2, 7, 5), (3, 11), dim=2, batch_dims=1),
    Case((2, 3, 4, 7), (2, 3, 5), dim=-1, batch_dims=2),
    Case((3, 2, 2, 7, 4), (3, 4, 3), dim=3, batch_dims=1),
    Case((5, 40, 9, 33), (5, 700), dim=2, batch_dims=1),
]


def plan_for(case: Case, device: torch.device, dtype: torch.dtype = torch.int64) -> GatherPlan:
    index = index_for(case, device, dtype)
    return torch_ops.gather_plan(index, case.source[case.axis], **case.kwargs)


def parts(plan: GatherPlan) -> tuple[Any, ...]:
    """What the overloads take after the data."""
    return plan.index, plan.rows, plan.order, plan.dim_size, plan.dim, plan.batch_dims
