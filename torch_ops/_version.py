"""The version of torch_ops: this line is its only source."""

__version__ = "0.1.0"
