"""The calls of relu and sigmoid, and the networks, that several benchmarks time."""
