"""Write g2.npz, the molecules of the G2 set, from the tables in the package ase.

    pip install ase
    python examples/g2_energies/make_data.py

Run once: the result lies beside this file, and training reads that alone.

The G2 set holds 148 small molecules with measured enthalpies of formation. It was
collected to test quantum-chemical methods, in two parts:

  G2-1   55 molecules: Curtiss, Raghavachari, Trucks and Pople,
         J. Chem. Phys. 94, 7221 (1991)
  G2-2   93 more: Curtiss, Raghavachari, Redfern and Pople,
         J. Chem. Phys. 106, 1063 (1997), which also tabulates the atoms

ase.data.g2 holds both parts: enthalpies from experiment, positions optimised with
MP2(full)/6-31G(d), zero-point energies and thermal corrections as in Staroverov,
Scuseria, Tao and Perdew, J. Chem. Phys. 119, 12129 (2003).

The energy to split a molecule M into its atoms A, all at rest, is

  E = sum_A [H_f(A) - T(A)] - H_f(M) + ZPE(M) + T(M)

  H_f(A)   enthalpy of formation of the atom at 0 K
  T(A)     H(298 K) - H(0 K) of the element in its standard state
  H_f(M)   enthalpy of formation of the molecule at 298 K
  ZPE(M)   zero-point energy, T(M) = H(298 K) - H(0 K), both of the molecule

ase's own get_atomization_energy computes the same, but looks molecules and atoms up
in the table of the first part only and so knows 55 of the 148; here both parts count.
"""

from pathlib import Path

import numpy as np
from ase.data import atomic_numbers, g2, g2_1, g2_2
from ase.symbols import string2symbols

EV_PER_KCAL_PER_MOL = 0.0433641
TARGET = Path(__file__).with_name("g2.npz")

TABLE = {**g2_1.data, **g2_2.data}


def atomization_energy(name: str) -> float:
    """Energy in kcal/mol to split a molecule into its atoms, all at rest."""
    molecule = TABLE[name]
    atoms = [TABLE[symbol] for symbol in string2symbols(molecule["symbols"])]
    return (
        sum(atom["enthalpy"] - atom["thermal correction"] for atom in atoms)
        - molecule["enthalpy"]
        + molecule["ZPE"]
        + molecule["thermal correction"]
    )


def main() -> None:
    # Single atoms stand in the same tables; there is nothing to split in them.
    names = [name for name in TABLE if len(TABLE[name]["positions"]) > 1]
    assert set(names) == set(g2.molecule_names) and len(names) == 148

    # Where ase computes the energy itself, the two must agree.
    for name in g2_1.molecule_names:
        assert abs(atomization_energy(name) - g2.get_atomization_energy(name)) < 1e-9, name

    names.sort()
    counts = np.array([len(TABLE[name]["positions"]) for name in names])
    numbers = np.zeros((len(names), counts.max()), dtype=np.uint8)
    positions = np.zeros((len(names), counts.max(), 3))
    for row, (name, count) in enumerate(zip(names, counts, strict=True)):
        symbols = string2symbols(TABLE[name]["symbols"])
        numbers[row, :count] = [atomic_numbers[symbol] for symbol in symbols]
        positions[row, :count] = TABLE[name]["positions"]

    np.savez_compressed(
        TARGET,
        names=np.array(names),
        numbers=numbers,
        positions=positions,
        counts=counts.astype(np.uint8),
        energies=np.array([atomization_energy(name) for name in names]) * EV_PER_KCAL_PER_MOL,
    )
    print(f"{TARGET}: {len(names)} molecules of up to {counts.max()} atoms")


if __name__ == "__main__":
    main()
