"""Train a graph network of PyTorch Geometric on a graph made here. Nothing of torch_ops is in it.

    python examples/pyg/train.py [--device cuda] [--epochs N] [--nodes N]

compare.py runs the same twice: as it is here, and after one line.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

try:
    import torch
    import torch.nn.functional as F
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    from torch import Tensor, nn
    from torch_geometric.data import Data
    from torch_geometric.nn import GATv2Conv, SAGEConv
except ModuleNotFoundError as error:
    sys.exit(
        f"The example needs {error.name}, which {sys.executable} does not find:\n"
        "    pip install torch_geometric rich matplotlib"
    )

CLASSES = 8
FEATURES = 64


def make_graph(nodes: int, seed: int = 0) -> Data:
    """Communities: most edges lie within one, and features tell a node's own but faintly."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, count: int) -> Tensor:
        return torch.randint(high, (count,), generator=generator)

    label = draw(CLASSES, nodes)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    x = 0.35 * centres[label] + torch.randn(nodes, FEATURES, generator=generator)
    # Of each node 20 edges: to a node of its own community with probability 0.7, else to any.
    by_label = label.argsort()
    counts = label.bincount(minlength=CLASSES)
    begins = counts.cumsum(0) - counts
    receiver = torch.arange(nodes).repeat_interleave(20)
    community = label[receiver]
    place = (torch.rand(len(receiver), generator=generator) * counts[community]).long()
    own = by_label[begins[community] + place]
    is_own = torch.rand(len(receiver), generator=generator) < 0.7
    sender = torch.where(is_own, own, draw(nodes, len(receiver)))
    is_test = torch.rand(nodes, generator=generator) < 0.5
    return Data(x, torch.stack([sender, receiver]), y=label, is_test=is_test)


class Network(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.first = SAGEConv(FEATURES, width, aggr=["mean", "max"])
        self.second = GATv2Conv(width, width // heads, heads)
        self.third = SAGEConv(width, CLASSES, aggr="mean")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        x = F.elu(self.second(x, edge_index))
        return self.third(x, edge_index)


@dataclass
class Run:
    """What a training comes to. Seconds are of epochs, after the first few."""

    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    seconds: float = 0.0
    megabytes: float = 0.0


def train(
    graph: Data, epochs: int, device: torch.device, advance: Callable[[], None] = lambda: None
) -> Run:
    torch.manual_seed(0)
    model = Network().to(device)
    graph = graph.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    run, times = Run(), []

    def loss_of() -> Tensor:
        output = model(graph.x, graph.edge_index)
        return F.cross_entropy(output[~graph.is_test], graph.y[~graph.is_test])

    run.megabytes = memory(loss_of, device) * 1e-6
    for _ in range(epochs):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        run.losses.append(loss.item())  # which waits for a GPU
        times.append(time.perf_counter() - begin)
        advance()
    with torch.no_grad():
        correct = model(graph.x, graph.edge_index).argmax(1) == graph.y
        run.accuracy = correct[graph.is_test].double().mean().item()
    run.seconds = sorted(times[3:] or times)[len(times[3:] or times) // 2]
    return run


def memory(loss_of: Callable[[], Tensor], device: torch.device) -> int:
    """The bytes at the peak of a step on a GPU; on a CPU those kept for the backward pass."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss_of().backward()
        return torch.cuda.max_memory_allocated() - before
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = loss_of()
    loss.backward()
    return sum(kept.values())


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Tell communities of a graph apart.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument("--epochs", type=int, default=40, metavar="N", help="default: 40")
    parser.add_argument("--nodes", type=int, default=4000, metavar="N", help="default: 4000")
    return parser


def progress() -> Progress:
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns)


def main() -> None:
    options = arguments().parse_args()
    with progress() as bar:
        task = bar.add_task("PyTorch Geometric", total=options.epochs)
        run = train(
            make_graph(options.nodes),
            options.epochs,
            torch.device(options.device),
            lambda: bar.advance(task),
        )
    print(
        f"accuracy {run.accuracy:.3f}, {run.seconds * 1e3:.1f} ms an epoch, {run.megabytes:.0f} MB"
    )


if __name__ == "__main__":
    main()
