"""The example examples/g2_energies: its data, its network, and the command as a user runs it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from programs import ROOT, run_with_torch

import torch_ops

FOLDER = ROOT / "examples" / "g2_energies"

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")


@pytest.fixture(scope="module")
def demo() -> Iterator[dict[str, ModuleType]]:
    """The demo's modules. They import one another by plain names, as a script's modules do."""
    names = [path.stem for path in FOLDER.glob("*.py") if path.stem != "make_data"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield {name: __import__(name) for name in names}
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    with np.load(FOLDER / "g2.npz") as file:
        return dict(file)


# ---- the data -----------------------------------------------------------------------------------


def test_data_has_the_148_molecules(data: dict[str, Any]) -> None:
    atoms = data["counts"].max()
    assert data["numbers"].shape == (148, atoms)
    assert data["positions"].shape == (148, atoms, 3)
    assert data["energies"].shape == data["counts"].shape == (148,)
    assert len(set(data["names"])) == 148


def test_data_is_padded_with_zeros_behind_the_atoms(data: dict[str, Any]) -> None:
    is_atom = np.arange(data["numbers"].shape[1]) < data["counts"][:, None]
    assert ((data["numbers"] > 0) == is_atom).all()
    assert (data["positions"][~is_atom] == 0).all()
    assert data["counts"].min() == 2  # single atoms have nothing to split


def test_atoms_are_a_bond_apart(data: dict[str, Any]) -> None:
    """A position in another unit, or on the wrong atom, shows here."""
    for name, count, positions in zip(
        data["names"], data["counts"], data["positions"], strict=True
    ):
        atoms = positions[:count]
        distances = np.linalg.norm(atoms[:, None] - atoms, axis=-1)
        nearest = distances[~np.eye(count, dtype=bool)].reshape(count, -1).min(axis=1)
        assert nearest.min() > 0.7 and nearest.max() < 3.2, name  # H2 to Na2


# Total atomisation energies without zero-point energy, from the literature, eV.
@pytest.mark.parametrize(
    ("name", "energy"),
    [("H2", 4.75), ("N2", 9.9), ("H2O", 10.1), ("CH4", 18.2), ("CO2", 16.9), ("C6H6", 59.3)],
)
def test_known_energies(data: dict[str, Any], name: str, energy: float) -> None:
    (row,) = np.flatnonzero(data["names"] == name)
    assert data["energies"][row] == pytest.approx(energy, abs=0.1)


def test_every_molecule_is_bound(data: dict[str, Any]) -> None:
    """By 0.7 eV (Na2) at least, and by no more than the strongest bonds allow for each atom."""
    assert data["energies"].min() > 0.7
    assert (data["energies"] / data["counts"]).max() < 6


# ---- the network --------------------------------------------------------------------------------


def test_edges_join_bonded_atoms_both_ways(
    demo: dict[str, ModuleType], data: dict[str, Any]
) -> None:
    molecules = demo["dataset"].load()
    assert (molecules.neighbours[molecules.edge_mask == 0] == 0).all()
    count = molecules.elements.shape[1]
    own = torch.arange(count).repeat_interleave(molecules.neighbours.shape[1] // count)
    edges = []  # of each molecule: (atom, neighbour) -> distance
    for row, real in enumerate(molecules.edge_mask.bool()):
        ends = zip(own[real].tolist(), molecules.neighbours[row][real].tolist(), strict=True)
        edges.append(dict(zip(ends, molecules.distances[row][real].tolist(), strict=True)))
        assert len(edges[row]) == real.sum()  # none is there twice

    (methane,) = np.flatnonzero(data["names"] == "CH4")
    assert edges[methane].keys() == {(0, h) for h in range(1, 5)} | {(h, 0) for h in range(1, 5)}
    for row, atoms in enumerate(data["counts"]):
        # Both ways, and as long: an atom hears from those that it sends to.
        assert edges[row] == {(b, a): distance for (a, b), distance in edges[row].items()}
        # A molecule of n atoms in one piece has n - 1 bonds at least.
        assert len(edges[row]) >= 2 * (int(atoms) - 1)


def test_parts_do_not_overlap(demo: dict[str, ModuleType]) -> None:
    split = demo["dataset"].split
    train, test = split(148, 0)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(148))
    fewer, validation = split(148, 0, validate=True)
    assert sorted([*fewer.tolist(), *validation.tolist()]) == sorted(train.tolist())


def test_linear_fit(demo: dict[str, ModuleType]) -> None:
    dataset = demo["dataset"]
    molecules = dataset.load()
    counts = dataset.count_elements(molecules)
    error = molecules.energies - dataset.LinearFit(molecules)(molecules)
    # Least squares: what is left has nothing to do with any count, nor with a constant.
    torch.testing.assert_close(counts.T @ error, torch.zeros_like(counts[0]), atol=1e-8, rtol=0)
    assert error.mean().abs() < 1e-8

    unseen = counts[:, 1] > 0  # lithium
    fit = dataset.LinearFit(molecules[~unseen])
    assert fit(molecules[unseen]).isfinite().all()
    assert fit.coefficients[1].abs() < 1e-8  # a mean atom


@pytest.mark.parametrize("library", ["torch_ops", "torch_only"])
def test_padding_changes_nothing(demo: dict[str, ModuleType], library: str) -> None:
    molecules = demo["dataset"].load()
    model = demo["model"].EnergyModel({"torch_ops": torch_ops, **demo}[library]).double()
    together = model(molecules)
    for row in range(0, 148, 7):
        one = molecules[torch.tensor([row])]
        mask = one.edge_mask.unflatten(1, (one.elements.shape[1], -1))
        atoms, edges = int(one.atom_mask.sum()), int(mask.sum(dim=2).max())
        bare = type(one)(
            one.elements[:, :atoms],
            one.atom_mask[:, :atoms],
            *(
                table.view_as(mask)[:, :atoms, :edges].flatten(1)
                for table in (one.neighbours, one.distances, one.edge_mask)
            ),
            one.energies,
        )
        torch.testing.assert_close(model(bare), together[row : row + 1])


# ---- the command --------------------------------------------------------------------------------


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return run_with_torch(*command, cwd=ROOT, PYTHONPATH=path, COLUMNS="100")


def test_training(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    script = str(FOLDER / "train.py")
    done = run(script, "--epochs", "12", "--seeds", "3", "4", "--out", str(out))
    assert done.returncode == 0, done.stdout
    assert str(out / "energies.png") in done.stdout
    assert "Largest difference" in done.stdout

    assert (out / "energies.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    results = json.loads((out / "results.json").read_text("utf-8"))
    assert results["seeds"] == [3, 4] and len(results["errors"]) == 2
    ours, theirs = results["losses"]["torch_ops"], results["losses"]["torch"]
    assert len(ours) == len(theirs) == 12
    assert all(map(math.isfinite, ours + theirs))
    assert sum(ours[-3:]) < 0.95 * sum(ours[:3])
    # In float64, over so few steps, rounding alone.
    assert results["largest loss difference"] < 1e-9
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-9
    for errors in results["errors"]:
        assert errors["linear fit"] < 3 < 8 < errors["training mean"]
        assert errors["network"] < 3


def test_missing_gpu(
    demo: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--device", "cuda"])
    with pytest.raises(SystemExit):
        demo["train"].main()
    assert "torch finds no GPU" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["a_file", "a_file/folder", "/proc"])
def test_nothing_can_be_written(
    demo: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    place: str,
) -> None:
    """Said before the training, which would be lost."""
    (tmp_path / "a_file").touch()
    out = tmp_path / place  # an absolute place as it is
    monkeypatch.setattr(sys, "argv", ["train.py", "--out", str(out)])
    monkeypatch.delattr(demo["training"].Training, "epoch")
    with pytest.raises(SystemExit):
        demo["train"].main()
    assert f"--out: nothing can be written to {out}: " in capsys.readouterr().err


def test_missing_packages() -> None:
    """Each is hidden in turn, in the order in which the demo imports them."""
    done = run(
        "-c",
        f"""
import runpy, sys
sys.path.insert(0, {str(FOLDER)!r})  # as Python does for a script
for name in ["matplotlib", "rich", "torch_ops"]:
    sys.modules[name] = None
    try:
        runpy.run_path({str(FOLDER / "train.py")!r}, run_name="__main__")
    except SystemExit as error:
        print(name, "->", str(error.code).splitlines()[0])
    del sys.modules[name]
""",
    )
    assert done.returncode == 0, done.stdout
    for name in ["matplotlib", "rich", "torch_ops"]:
        assert f"{name} -> The demo needs {name}" in done.stdout
