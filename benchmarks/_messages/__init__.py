"""What benchmarks/messages.py compares with (kernels of NVIDIA Warp), and what fits its numbers."""
