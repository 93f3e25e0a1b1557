"""NumPy's indexing: by arrays, by masks and by coordinates."""
