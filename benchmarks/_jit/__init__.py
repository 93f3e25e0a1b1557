"""The cases of benchmarks/jit.py: each module offers its groups."""
