"""hello from Python by ctypes.

python hello_ctypes.py
"""

import ctypes

import torch_ops_host

library = ctypes.CDLL(torch_ops_host.library_path())
library.torch_ops_last_error.restype = ctypes.c_char_p

HOST = 0  # TORCH_OPS_HOST
status = library.torch_ops_hello(ctypes.c_int32(8), ctypes.c_int32(HOST))
if status != 0:
    raise SystemExit(library.torch_ops_last_error().decode())
