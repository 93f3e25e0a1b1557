"""Benchmarks: each case is checked before it is timed. ``python -m benchmarks.gather --help``."""
