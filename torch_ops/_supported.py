"""What torch_ops is built for and tested with: the one place that says so.

setup.py, the check at import, the tests, CI and the docs read it. For another version of torch, add
it here, and mend what its compiler says in src/common/torch/compat.h.
"""

# Of torch, oldest first.
TORCH = ("2.11", "2.13")
OLDEST_TORCH = TORCH[0]

# Of CUDA; the kernel library is compiled once for each major version.
CUDA_MAJOR = "13"

# Of GPUs, as TORCH_CUDA_ARCH_LIST spells them: what a release is compiled for. Newer GPUs run the
# PTX of the last.
ARCHS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0+PTX")
