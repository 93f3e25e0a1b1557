"""Another name for torch_ops_host, which can be had without torch."""

import sys

import torch_ops_host

sys.modules[__name__] = torch_ops_host
