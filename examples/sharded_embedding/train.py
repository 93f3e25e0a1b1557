"""Train word vectors whose tables are shared out over the ranks, on text that is made here.

    torchrun --nproc-per-node=4 examples/sharded_embedding/train.py [--save FOLDER] [--load FOLDER]

`--help` lists the rest. A batch depends on the step's number alone, and each rank takes its part of
it; so the losses are the same whatever the number of ranks, and those of one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from rich.console import Console
    from rich.progress import Progress
    from torch import Tensor, nn
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.nn import functional as F

    import torch_ops
    from torch_ops.distributed import ShardedTable
except ModuleNotFoundError as error:
    sys.exit(f"The example needs {error.name}: pip install rich matplotlib, and torch_ops.")

TOPICS = 50  # of the text: a word and its neighbours are of one
NEGATIVES = 5


class Text:
    """Pairs of neighbouring words of a text whose words are distributed by Zipf's law.

    Word w is the w-th most frequent one, and of the topic ``w % TOPICS``.
    """

    def __init__(self, words: int) -> None:
        self.words = words

    def _zipf(self, count: tuple[int, ...], words: int, generator: torch.Generator) -> Tensor:
        """Frequencies fall with 1 / (w + 1): the inverse of the integral is a power."""
        uniform = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        return (torch.pow(words + 1.0, uniform) - 1).long().clamp(max=words - 1)

    def batch(self, step: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Words and a neighbour of each, [size], and words from elsewhere, [size, NEGATIVES]."""
        generator = torch.Generator().manual_seed(step)
        word = self._zipf((size,), self.words, generator)
        of_topic = self._zipf((size,), self.words // TOPICS, generator)
        neighbour = of_topic * TOPICS + word % TOPICS
        return word, neighbour, self._zipf((size, NEGATIVES), self.words, generator)


def loss_of(word: Tensor, neighbour: Tensor, others: Tensor) -> Tensor:
    """T. Mikolov et al., "Distributed Representations of Words and Phrases", 2013, equation 4."""
    near = (word * neighbour).sum(-1)
    far = torch.einsum("bd,bnd->bn", word, others)
    return -(F.logsigmoid(near).sum() + F.logsigmoid(-far).sum())


class Vectors(nn.Module):
    """A table for words and one for their neighbours."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.words, self.neighbours = make(), make()

    def forward(self, word: Tensor, neighbour: Tensor, others: Tensor) -> Tensor:
        return loss_of(self.words(word), self.neighbours(neighbour), self.neighbours(others))


def small(rows: Tensor) -> None:
    nn.init.normal_(rows, std=0.1)


def device_of_rank(kind: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def alike(vectors: nn.Module) -> Any:
    """The same tables in one piece, in each process."""
    whole = Vectors(lambda: None)
    for name, table in vectors.named_children():
        weight = table.weight.detach().full_tensor().clone()
        setattr(whole, name, torch_ops.Embedding.from_pretrained(weight, freeze=False))
    return whole


@contextlib.contextmanager
def progress_bar(first: int, steps: int, shown: bool) -> Iterator[Any]:
    """A function to be called with each step's loss."""
    with Progress(console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task("loss", total=steps, completed=first)
        yield lambda loss: progress.update(task, advance=1, description=f"loss {loss:.4f}")


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Trains on this rank; all ranks return the same losses."""
    device, world, rank = device_of_rank(options.device), dist.get_world_size(), dist.get_rank()
    text = Text(options.words)

    def make() -> ShardedTable:
        return ShardedTable(
            options.words,
            options.dim,
            device=device,
            init=small,
            route=options.route,
            sparse=options.sparse,
        )

    torch.manual_seed(0)
    vectors = Vectors(make)
    # A sparse gradient is that of local_weight, which is no DTensor.
    trained = [
        table.local_weight if options.sparse else table.weight for table in vectors.children()
    ]
    optimizer = torch.optim.Adagrad(trained, lr=options.lr)
    first = 0
    if options.load:
        model_state, optimizer_state = get_state_dict(vectors, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
        checkpoint.load(state, checkpoint_id=options.load)
        set_state_dict(
            vectors,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        first = state["step"]
    # What is compared with is in one piece: only for tables that fit.
    compared = alike(vectors) if options.compare else None
    if compared is not None:
        reference = torch.optim.Adagrad(compared.parameters(), lr=options.lr)
        if options.load:
            for table, plain in zip(vectors.parameters(), compared.parameters(), strict=True):
                sums = optimizer.state[table]["sum"].full_tensor()
                reference.state[plain]["sum"].copy_(sums)
                reference.state[plain]["step"].copy_(optimizer.state[table]["step"])

    part = slice(rank * options.batch // world, (rank + 1) * options.batch // world)
    losses, losses_compared = [], []
    with progress_bar(first, options.steps, shown=rank == 0) as show:
        for step in range(first, options.steps):
            batch = text.batch(step, options.batch)
            loss = vectors(*(each[part].to(device) for each in batch)) / options.batch
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach()
            dist.all_reduce(total)
            losses.append(total.item())
            if compared is not None:
                whole = compared(*(each.to(device) for each in batch)) / options.batch
                whole.backward()
                reference.step()
                reference.zero_grad()
                losses_compared.append(whole.item())
            show(losses[-1])
    if options.save:
        model_state, optimizer_state = get_state_dict(vectors, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": options.steps}
        checkpoint.save(state, checkpoint_id=options.save)
    return {
        "ranks": world,
        "route": vectors.words.route,
        "first_step": first,
        "losses": losses,
        "losses_in_one_piece": losses_compared,
        "of_one_topic": neighbours_of_one_topic(vectors.words),
    }


@torch.no_grad()
def neighbours_of_one_topic(table: ShardedTable, count: int = 500) -> float:
    """How many of the most frequent words have their nearest among these in their own topic."""
    weight: Any = table.weight
    count = min(count, weight.shape[0])
    rows = table(torch.arange(count, device=weight.device))
    rows = F.normalize(rows, dim=1)
    likeness = rows @ rows.T
    nearest = likeness.fill_diagonal_(-1).argmax(1)
    topic = torch.arange(count, device=weight.device) % TOPICS
    return (topic[nearest] == topic).float().mean().item()


def plot(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [results["first_step"] + step for step in range(len(results["losses"]))]
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    label = f"shared out over {results['ranks']} ranks, {results['route']}"
    axes.plot(steps, results["losses"], label=label)
    if results["losses_in_one_piece"]:
        axes.plot(steps, results["losses_in_one_piece"], "--", label="in one piece")
    axes.set(xlabel="step", ylabel="loss of a pair of words")
    axes.legend()
    figure.savefig(path, dpi=120)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=20_000, help="rows of a table (20000)")
    parser.add_argument("--dim", type=int, default=32, help="length of a row (32)")
    parser.add_argument("--batch", type=int, default=4096, help="pairs in a step, of all ranks")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--route", choices=["auto", "direct", "exchange"], default="auto")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--no-compare",
        dest="compare",
        action="store_false",
        help="do not train the same tables in one piece, where they do not fit",
    )
    parser.add_argument(
        "--sparse",
        action="store_true",
        help="gradients of a batch's rows alone, for tables that leave no room for whole ones",
    )
    parser.add_argument("--save", help="write a checkpoint to this folder in the end")
    parser.add_argument("--load", help="begin with the checkpoint of this folder")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/sharded_embedding"),
        help="folder of the losses and the plot",
    )
    options = parser.parse_args(arguments)
    if options.sparse and (options.save or options.load):
        parser.error("--sparse: a checkpoint is of dense parameters; leave out --save and --load")
    return options


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(max(torch.get_num_threads() // int(os.environ["WORLD_SIZE"]), 1))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    results = train(options)
    if dist.get_rank() == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "losses.json").write_text(json.dumps(results), "utf-8")
        plot(results, options.out / "losses.png")
        losses, whole = results["losses"], results["losses_in_one_piece"]
        print(
            f"{results['ranks']} ranks, {results['route']} route: loss {losses[0]:.4f} at step "
            f"{results['first_step']}, {losses[-1]:.4f} in the end"
        )
        if whole:
            difference = max(abs(a - b) for a, b in zip(losses, whole, strict=True))
            print(f"largest difference from the tables in one piece: {difference:.1e}")
        print(f"words whose nearest word is of their topic: {results['of_one_topic']:.0%}")
        print(f"plot: {options.out / 'losses.png'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
