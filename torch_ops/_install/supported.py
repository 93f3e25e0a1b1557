"""What torch_ops is built for and tested with: the one place that says so.

setup.py, the check at import, the tests, CI and the docs read it; `make supported` prints it. For
another version of torch, add it here, and mend what its compiler says in
src/common/torch/registration/compat.h.
"""

# Of torch, oldest first.
TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
OLDEST_TORCH = TORCH[0]

# Of Python, oldest first, each with the GIL. pyproject.toml says the same to pip.
PYTHON = ("3.11", "3.12", "3.13", "3.14", "3.15")
OLDEST_PYTHON = PYTHON[0]

# The first torch that PyPI has for a Python, where that is not the oldest.
FIRST_TORCH = {"3.15": "2.15"}

# Of CUDA; the kernel library is compiled once for each major version.
CUDA_MAJOR = "13"

# Of GPUs, as TORCH_CUDA_ARCH_LIST spells them: what a release is compiled for. Newer GPUs run the
# PTX of the last.
ARCHS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0+PTX")


def torches(python: str) -> tuple[str, ...]:
    """The versions of torch that there are for a Python, such as "3.12" or "3.14t"."""
    return TORCH[TORCH.index(FIRST_TORCH.get(python.rstrip("t"), OLDEST_TORCH)) :]


if __name__ == "__main__":  # a line for each, in JSON, as a step of CI has its outputs
    import json

    for _name in ("TORCH", "PYTHON", "CUDA_MAJOR", "ARCHS"):
        print(f"{_name.lower()}={json.dumps(globals()[_name])}")
    _exclude = [
        {"python": python, "torch": torch}
        for python in PYTHON
        for torch in TORCH
        if torch not in torches(python)
    ]
    print(f"exclude={json.dumps(_exclude)}")
