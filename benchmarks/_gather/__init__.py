"""The cases of benchmarks/gather.py, and what runs each of its groups."""
