"""Where the C library is. Nothing is loaded here."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent
NAME = "libtorch_ops_c.so.1"  # the number is that of the C interface
VARIABLE = "TORCH_OPS_LIBRARY"


def get_include() -> str:
    """The folder with ``torch_ops.h``, and ``torch_ops/`` with headers for CUDA programs."""
    return str(ROOT / "include")


def get_prefix() -> str:
    """The folder above those two: for ``CMAKE_PREFIX_PATH``."""
    return str(ROOT)


def get_library_dir() -> str:
    """The folder with ``libtorch_ops_c.so.1``, its CMake package (``cmake``) and ``pkgconfig``."""
    return str(ROOT / "lib")


@cache
def library_path() -> str:
    """The file of the C library that is loaded: what was found first stays."""
    return str(find_library())


def find_library() -> Path:
    """The library's file: the package's own, or what TORCH_OPS_LIBRARY says.

    Raises:
        ImportError: There is none, or the variable is no absolute path of a file, or of a folder
            that holds the library.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        path = ROOT / "lib" / NAME
        if not path.is_file():
            raise ImportError(
                f"torch_ops_host is not built: there is no {path}. Build it in the folder of its "
                "sources: pip install --no-build-isolation -e ."
            )
        return path.resolve()

    def refuse(reason: str) -> ImportError:
        return ImportError(f"{VARIABLE} is {named!r}: {reason}.")

    path = Path(named)
    if not path.is_absolute():
        raise refuse("it must be an absolute path")
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise refuse(f"it does not lead to a file or folder ({error})") from error
    if path.is_dir():
        folder = path
        try:
            path = (folder / NAME).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise refuse(f"this folder holds no {NAME}") from error
    if not path.is_file():
        raise refuse(f"{path} is not a regular file")
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":  # libtorch_ops_c.so, say, which is for the linker
            raise refuse(f"{path} is not a shared library; name {NAME} or its folder")
    return path
