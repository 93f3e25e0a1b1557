"""`python -m torch_ops`: the diagnosis, then one small run of every op on every device.

`python -m torch_ops --help` lists the commands.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import partial

import torch

import torch_ops.ops
from torch_ops._install.diagnose import build_config, check_error_text, diagnosis


def _check(name: str, device: torch.device) -> str:
    return str(importlib.import_module(name).self_check(device))


# What follows a command is read by main() of its module; and what it does.
COMMANDS = {
    "explain": (
        "torch_ops._explain",
        "says which kernels a gather or a sum runs on a GPU, and why",
    ),
    "build": (
        "torch_ops._install.build",
        "compiles bindings for the torch that is installed, if there are none",
    ),
}


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 when every op ran and gave the right result."""
    if arguments and arguments[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[arguments[0]][0])
        return int(module.main(arguments[1:]))
    parser = argparse.ArgumentParser(
        "python -m torch_ops",
        description="Without a command: shows what is installed, and runs each op once.",
        epilog="python -m torch_ops <command> --help shows the arguments of a command.",
    )
    commands = parser.add_subparsers(title="commands", metavar="<command>")
    for name, (_, what) in COMMANDS.items():
        commands.add_parser(name, help=what)
    parser.parse_args(arguments)
    print(diagnosis(), end="\n\n")
    devices = [torch.device("cpu")]
    if build_config().get("cuda") and torch.cuda.is_available():
        devices.append(torch.device("cuda"))

    found = pkgutil.walk_packages(torch_ops.ops.__path__, "torch_ops.ops.")
    modules = {m.name.rpartition(".")[2]: m.name for m in found if not m.ispkg}
    modules = {op: modules[op] for op in sorted(modules) if op[0] != "_"}
    width = max(len(op) for op in modules) + 2
    print(f"{'op':<{width}}{'device':<8}forward and backward")
    checks: list[tuple[str, torch.device, Callable[[], str]]] = [
        (op, device, partial(_check, name, device))
        for op, name in modules.items()
        for device in devices
    ]
    if "gather" in modules:
        checks.append(("errors", devices[0], check_error_text))
    failures = 0
    for name, device, check in checks:
        try:
            result = f"ok: {check()}"
        except Exception as error:  # one broken op must not hide how the others fare
            result = f"FAILED: {type(error).__name__}: {error}"
            failures += 1
        print(f"{name:<{width}}{device.type:<8}{result}")
    print(
        f"\n{failures} of {len(checks)} checks failed"
        if failures
        else f"\nall {len(checks)} checks passed"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
