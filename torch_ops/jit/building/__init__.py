"""From text to code: sources, compilers, the cache, what compiled code tells."""
