"""leaky_relu as one line of CUDA C++, with gradients that nobody wrote, trained in a small network.

The slope is a parameter that is learnt, one for each channel: its gradient is summed over all that
it was broadcast to. Runs on the CPU as on a GPU.

    python examples/jit/leaky_relu.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torch_ops.jit import ElementwiseKernel

leaky_relu = ElementwiseKernel(
    "T x, T slope", "T y", "y = x > 0 ? x : slope * x", name="leaky_relu"
)


class LeakyReLU(nn.Module):
    """leaky_relu with a learnt slope for each of the last axis's channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((channels,), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        return leaky_relu(x, self.slope)


def compare_with_torch(device: torch.device) -> None:
    """On broadcast and transposed inputs: values and gradients to the last bit or nearly so."""
    x = torch.randn(6, 5, 4, device=device).transpose(0, 2).requires_grad_()
    slope = torch.rand(6, device=device, requires_grad=True)
    weights = torch.randn(4, 5, 6, device=device)
    results = []
    for function in (leaky_relu, lambda x, slope: torch.where(x > 0, x, slope * x)):
        y = function(x, slope)
        results.append((y, *torch.autograd.grad((y * weights).sum(), (x, slope))))
    torch.testing.assert_close(results[0], results[1])
    assert results[0][0].stride() == results[1][0].stride()
    print("values and gradients: torch's own, on broadcast and transposed input")


def train(device: torch.device, steps: int = 300) -> None:
    """Fits y = |x_0| - 0.3 |x_1|."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), LeakyReLU(16), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(steps + 1):
        x = torch.randn(256, 2, device=device)
        target = x[:, :1].abs() - 0.3 * x[:, 1:].abs()
        loss = nn.functional.mse_loss(model(x), target)
        if step % 100 == 0:
            print(f"step {step:3}: loss {loss.item():.4f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02, loss
    slopes = model[1].slope.detach()
    print(f"slopes from {slopes.min():.2f} to {slopes.max():.2f}, all 0.25 at first")


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"on {device}")
    compare_with_torch(device)
    train(device)


if __name__ == "__main__":
    main()
