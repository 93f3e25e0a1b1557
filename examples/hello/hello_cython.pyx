# hello from Cython, by the declarations in torch_ops_host/capi.pxd. In this folder:
#
#   python setup.py build_ext --inplace
#   python -c "import hello_cython; hello_cython.main()"
from torch_ops_host cimport capi


def main():
    cdef capi.torch_ops_status status = capi.torch_ops_hello(8, capi.TORCH_OPS_HOST)
    if status != capi.TORCH_OPS_SUCCESS:
        raise RuntimeError(capi.torch_ops_last_error().decode())
