"""Builds hello_cython.pyx: what a Cython module that calls the C library needs."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import torch_ops_host

folder = torch_ops_host.get_library_dir()
extension = Extension(
    "hello_cython",
    ["hello_cython.pyx"],
    include_dirs=[torch_ops_host.get_include()],
    library_dirs=[folder],
    libraries=["torch_ops_c"],
    runtime_library_dirs=[folder],
)
# capi.pxd is found beside the package torch_ops_host, also where it is no installed one.
site = str(Path(torch_ops_host.__file__).parent.parent)
setup(
    name="hello_cython", ext_modules=cythonize([extension], include_path=[site], language_level=3)
)
