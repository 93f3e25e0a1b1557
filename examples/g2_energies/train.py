"""Train a message-passing network on the G2 molecules, with torch_ops and with torch alone.

    python examples/g2_energies/train.py [--device cuda] [--epochs N] [--seeds S ...] [--out DIR]

Read model.py first: it shows how the operators are used.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryFile

try:
    import torch
    import torch_only
    from dataset import load, split
    from model import Ops
    from report import comparison_table, error_table, plot, summarise
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    from training import Training

    import torch_ops
except ModuleNotFoundError as error:
    sys.exit(
        f"The demo needs {error.name}, which {sys.executable} does not find.\n"
        "`make demo` installs what is needed, builds torch_ops and runs the demo. By hand, in the "
        "folder of setup.py:\n"
        "    pip install numpy rich matplotlib\n"
        "    pip install --no-build-isolation -e ."
    )
except ImportError as error:  # torch_ops is there and not built for this torch: it says what to do
    sys.exit(str(error))

EXPLANATION = """
The energy that it takes to split a molecule into its atoms is mostly a matter of which atoms there
are: a linear fit on their numbers is off by one or two eV. What is left depends on how they are
joined. A network learns it from messages along the bonds: `torch_ops.batch_gather` fetches the
features of each atom's neighbours, and `torch_ops.scatter_add` sums the messages that an atom's
neighbours send to it.

Each seed splits the {count} molecules anew: {train} to train on, {test} {part} molecules. For the
first seed the same training also runs with torch's own operators, the two taking turns at each
epoch.
"""


def main() -> None:
    arguments = parse_arguments()
    seeds, epochs, validate = arguments.seeds, arguments.epochs, arguments.validate
    # On tensors this small a second thread gains little. On a busy machine it costs much: at every
    # operator one thread waits for the other.
    torch.set_num_threads(1)
    molecules = load().to(arguments.device)
    part = "validation" if validate else "test"

    def start(ops: Ops, seed: int) -> Training:
        rows, test_rows = split(len(molecules), seed, validate)
        return Training(ops, molecules[rows], molecules[test_rows], seed, epochs)

    ours = [start(torch_ops, seed) for seed in seeds]
    theirs = start(torch_only, seeds[0])
    tasks = {f"seed {seeds[0]}, torch_ops and torch": [ours[0], theirs]}
    tasks |= {f"seed {seed}": [run] for seed, run in zip(seeds[1:], ours[1:], strict=True)}

    console = Console()
    sizes = {"count": len(molecules), "train": len(theirs.train), "test": len(theirs.test)}
    console.print(Markdown(EXPLANATION.format(part=part, **sizes)))
    console.print()
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        for description, runs in tasks.items():
            for _ in progress.track(range(epochs), description=description.ljust(29)):
                for run in runs:
                    run.epoch()

    results = summarise(seeds, ours, theirs)
    console.print(f"\nMean absolute error on the {part} molecules, eV")
    console.print(error_table(results))
    console.print(f"\nThe same training with either's operators, seed {seeds[0]}, {theirs.device}")
    console.print(comparison_table(results))
    difference = results["largest loss difference"]
    console.print(f"Largest difference between the losses of an epoch: {difference:.1e} eV\n")

    picture, figures = arguments.out / "energies.png", arguments.out / "results.json"
    plot(results, picture)
    figures.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"Plot: {picture}\nAll figures: {figures}", soft_wrap=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn atomisation energies of small molecules.")
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    add("--epochs", type=int, default=300, metavar="N", help="default: 300")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="S", help="default: 0 1 2")
    add(
        "--out",
        type=Path,
        default=Path(__file__).with_name("out"),
        metavar="DIR",
        help="folder for the plot; default: out, beside train.py",
    )
    add(
        "--validate",
        action="store_true",
        help="for choosing hyperparameters: lay the test molecules aside, and show errors on a "
        "part of the training molecules instead",
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs is {arguments.epochs}; it must be at least 1")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU. Leave --device out to train on the CPU.")
    try:  # now, not after the training
        arguments.out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=arguments.out):
            pass
    except OSError as error:
        parser.error(f"--out: nothing can be written to {arguments.out}: {error.strerror}")
    return arguments


if __name__ == "__main__":
    main()
