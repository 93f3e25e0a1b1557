"""The training of one network: everything that an epoch needs, and what it brought."""

from __future__ import annotations

import statistics
import time

import torch
from dataset import LinearFit, Molecules
from model import EnergyModel, Ops
from torch import Tensor

# Chosen by cross-validation inside the training molecules; README.md says more.
BATCH = 16
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2


class Training:
    """A network that learns what a linear fit, made on the same molecules, leaves over."""

    def __init__(self, ops: Ops, train: Molecules, test: Molecules, seed: int, epochs: int) -> None:
        self.train, self.test = train, test
        self.device = train.energies.device
        self.linear_fit = LinearFit(train)
        self.residuals = train.energies - self.linear_fit(train)
        self.scale = self.residuals.std()

        torch.manual_seed(seed)  # the same initial weights whatever the ops are,
        self.order = torch.Generator().manual_seed(seed)  # and the same batches
        # In float64, as the data are: in float32 the rounding errors of two runs grow to 0.05 eV
        # over the epochs, and would hide a small mistake in an operator.
        self.model = EnergyModel(ops).to(train.energies)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        batches = -(-len(train) // BATCH)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, LEARNING_RATE, total_steps=epochs * batches
        )

        self.losses: list[float] = []  # of each epoch: mean absolute error in eV on its batches,
        self.test_errors: list[float] = []  # then on the test molecules, for the plot alone
        self.seconds: list[float] = []

    def epoch(self) -> None:
        start = time.perf_counter()
        total = torch.zeros_like(self.scale)
        order = torch.randperm(len(self.train), generator=self.order).to(self.device)
        for rows in order.split(BATCH):
            predicted = self.scale * self.model(self.train[rows])
            loss = (predicted - self.residuals[rows]).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += len(rows) * loss.detach()
        # item() waits for the GPU: the time is that of the work, not of launching it.
        self.losses.append(total.item() / len(self.train))
        self.seconds.append(time.perf_counter() - start)
        self.test_errors.append(self.test_error(self.predict()))

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Energies of the test molecules."""
        return self.linear_fit(self.test) + self.scale * self.model(self.test)

    def test_error(self, predicted: Tensor) -> float:
        """Mean absolute error of predicted energies of the test molecules, eV."""
        return (predicted - self.test.energies).abs().mean().item()

    def milliseconds_an_epoch(self) -> float:
        """Median time; the first tenth of the epochs is warm-up."""
        return 1e3 * statistics.median(self.seconds[len(self.seconds) // 10 :])
