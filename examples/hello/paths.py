"""Prints what a C compiler must be told to find the header and the library.

What `pkg-config --cflags --libs torch_ops_c` prints, for machines that lack it.
"""

import torch_ops_host

folder = torch_ops_host.get_library_dir()
print(f"-I{torch_ops_host.get_include()} -L{folder} -ltorch_ops_c -Wl,-rpath,{folder}")
