"""RawModule and RawKernel: whole CUDA sources, launched on torch's stream, arguments checked."""

from __future__ import annotations

import importlib
import math
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from torch_ops.jit import _foreign
from torch_ops.jit.building.cache import Artefact
from torch_ops.jit.building.compilation import compile_cuda
from torch_ops.jit.building.image import kernels_in, load_once, params_in_ptx
from torch_ops.jit.building.signature import (
    SIGNATURES,
    Param,
    find_kernels,
    kernel_name,
    make_param,
    signature_of,
    types_in,
)
from torch_ops.jit.building.source import Source, UserText
from torch_ops.jit.building.toolchain import DEFAULT_ARCH, arch_of
from torch_ops.jit.language.constants import define
from torch_ops.jit.language.params import check_standard, check_text

_ext: Any = importlib.import_module("torch_ops._ext.jit")


class RawKernel:
    """A kernel of a CUDA source: ``kernel(grid, block, args)``.

    NVRTC compiles ``code`` when the kernel is first used, for the GPU that it is used on. The
    compiled code is kept on disk (:func:`cache_info`). The call runs on torch's current stream and
    on the tensors' device, checks the arguments against the kernel's signature, and can be part of
    a CUDA graph. It has no derivative: wrap it in a ``torch.autograd.Function``. It needs a GPU;
    compiling does not.

    Args:
        code: The source.
        name: The kernel in it: the name of a ``__global__`` function, with its namespace, or an
            instance of a template such as ``"scale<float, 4>"``. ``extern "C"`` is not needed.
        options: Options of NVRTC, such as ``"-use_fast_math"``, ``"-I/folder"`` or
            ``"-arch=sm_90"``.
        constants: Values that become part of the source: ints, floats, bools and strings become
            macros, a torch.dtype becomes a type. ``{"UNROLL": 8, "T": torch.float32}``
        backend: ``"nvrtc"``.

    A call, ``kernel(grid, block, args, *, shared_mem=0, stream=None, strided=False,
    return_event=False, cooperative=False)``, takes:

    - ``grid``, ``block``: an int or a tuple of up to three. A grid of 0 launches nothing.
    - ``args``: a tuple, an argument for each parameter.

      - A pointer accepts a tensor of its element type, contiguous, on the GPU; ``None``, a null
        pointer; or any array with ``__dlpack__`` or ``__cuda_array_interface__``, for whose
        producer the launch waits. It accepts no integer. ``void*`` and pointers to structs accept
        any dtype.
      - A number accepts a Python or NumPy number that fits its type; a struct accepts bytes or a
        NumPy record.
    - ``cooperative``: All blocks run at the same time, so that they may wait for each other
      (``cooperative_groups::this_grid().sync()``). A grid of more blocks than fit is an error; one
      block per multiprocessor fits.
    - ``shared_mem``: bytes of dynamic shared memory per block, up to the GPU's limit.
    - ``stream``: a ``torch.cuda.Stream`` instead of the current one.
    - ``strided``: Tensors need not be contiguous; the kernel knows their strides.
    - ``return_event``: Return a ``torch.cuda.Event`` that is recorded after the kernel, for a
      library that reads the results on its own stream.

    Tensors for pointers that are not to const count as written: autograd notices if it has saved
    one of them.

    Raises:
        CompileError: The source does not compile. This and the next error are raised at
            construction or at the first use.
        ModuleNotFoundError: It is not in the cache and cuda-core is not installed.
        TypeError: An argument of a call is of the wrong kind, dtype or number.
        ValueError: There is no such kernel. In a call: a tensor is not contiguous; a number does
            not fit; grid, block or shared_mem exceeds the kernel's limit.
        RuntimeError: A tensor is not on a CUDA device, or on another device than the others; there
            is no GPU.

    Example:
        >>> import torch, torch_ops.jit
        >>> scale = torch_ops.jit.RawKernel('''
        ... __global__ void scale(const float* x, float* y, float factor, int n) {
        ...   int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...   if (i < n) y[i] = factor * x[i];
        ... }''', "scale")
        >>> if torch.cuda.is_available():
        ...     x = torch.ones(1000, device="cuda")
        ...     y = torch.empty_like(x)
        ...     scale((4,), (256,), (x, y, 3.0, 1000))
        ...     assert (y == 3).all()
    """

    __module__ = "torch_ops.jit"

    def __init__(
        self,
        code: str,
        name: str,
        *,
        options: Sequence[str] = (),
        constants: Mapping[str, Any] | None = None,
        backend: str = "nvrtc",
    ) -> None:
        _check_str("RawKernel", "name", name)
        module = RawModule.__new__(RawModule)
        expressions = (name,) if "<" in name else ()
        module._begin(*_checked("RawKernel", code, expressions, options, constants, backend))
        module._what = f'RawKernel "{name}"'
        self._begin(module, name)

    def _begin(self, module: RawModule, name: str) -> None:
        self._module = module
        self._name = name
        self._made: Any = None

    @classmethod
    def _of(cls, module: RawModule, name: str) -> RawKernel:
        kernel = cls.__new__(cls)
        kernel._begin(module, name)
        return kernel

    def __call__(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any] = (),
        *,
        shared_mem: int = 0,
        stream: torch.cuda.Stream | None = None,
        strided: bool = False,
        return_event: bool = False,
        cooperative: bool = False,
    ) -> torch.cuda.Event | None:
        launcher = self._made or self._launcher
        device = launcher.launch(grid, block, args, shared_mem, stream, strided, cooperative)
        return self._event(device, stream) if return_event else None

    @property
    def _launcher(self) -> Any:
        # Two threads may both make one: they are equal, and one is kept.
        if self._made is None:
            params = self._module._params(self._name)
            what = f'RawKernel "{self._name}"'
            # The garbage collector does not see into the launcher, so it must not own the kernel.
            load = partial(RawModule._load, weakref.proxy(self._module), self._name)
            self._made = _ext.RawLauncher(what, params, load, partial(_foreign.adopt, what))
        return self._made

    @staticmethod
    def _event(device: int, stream: torch.cuda.Stream | None) -> torch.cuda.Event:
        event = torch.cuda.Event()
        if stream is None:
            stream = torch.cuda.current_stream(device if device >= 0 else None)
        event.record(stream)
        return event

    @property
    def name(self) -> str:
        """The name by which it was requested."""
        return self._name

    @property
    def module(self) -> RawModule:
        """The kernel's module, with ``ptx``, ``cubin`` and ``log``."""
        return self._module

    @property
    def num_regs(self) -> int:
        """Registers per thread, on the current GPU."""
        return int(self._launcher.attributes().num_regs)

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory per block, in bytes; a launch may add to it."""
        return int(self._launcher.attributes().shared_size_bytes)

    @property
    def local_size_bytes(self) -> int:
        """Local memory per thread, for spilled registers and for arrays, in bytes."""
        return int(self._launcher.attributes().local_size_bytes)

    @property
    def max_threads_per_block(self) -> int:
        """The most threads that a block can have with its registers, on the current GPU."""
        return int(self._launcher.attributes().max_threads_per_block)

    def suggest_block(self, shared_mem: int = 0) -> int:
        """The number of threads per block that keeps the most threads of the current GPU busy.

        Args:
            shared_mem: Bytes of dynamic shared memory that a launch will use.
        """
        return int(self._launcher.suggest_block(shared_mem))

    def __reduce__(self) -> Any:
        return RawKernel._of, (self._module, self._name)

    def __repr__(self) -> str:
        return f"RawKernel({self._name!r})"


class RawModule:
    """A CUDA source with several kernels, or with templates.

    Args:
        code: The source.
        name_expressions: Instances of templates that it is compiled for, such as
            ``("scale<float>", "scale<double>")``. Other kernels need not be named.
        options: As for :class:`RawKernel`.
        constants: As for :class:`RawKernel`.
        backend: ``"nvrtc"``.

    Two modules of the same source, options and constants share the loaded code, and so their
    ``__device__`` variables. Loaded code stays loaded until the process ends.

    Raises:
        CompileError: The source does not compile (at the first use).

    Example:
        >>> import torch_ops.jit
        >>> module = torch_ops.jit.RawModule(
        ...     "template <class T> __global__ void one(T* x) { x[threadIdx.x] = T(VALUE); }",
        ...     name_expressions=("one<float>", "one<int>"),
        ...     constants={"VALUE": 1},
        ... )
        >>> module.get_function("one<int>")
        RawKernel('one<int>')
    """

    __module__ = "torch_ops.jit"

    def __init__(
        self,
        code: str,
        *,
        name_expressions: Sequence[str] = (),
        options: Sequence[str] = (),
        constants: Mapping[str, Any] | None = None,
        backend: str = "nvrtc",
    ) -> None:
        self._begin(*_checked("RawModule", code, name_expressions, options, constants, backend))

    def _begin(
        self,
        code: str = "",
        names: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        defined: str = "",
        image: Artefact | None = None,
    ) -> None:
        self._made_of = (code, names, options, defined, image)
        self._what = "RawModule"
        self._code = code
        self._names = names
        self._options = options
        self._pieces = (defined, UserText("code", code))
        self._image = image  # if there is no source
        self._compiled: dict[str, Artefact] = {}  # by architecture
        self._kernels: dict[str, RawKernel] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        # For spawned processes: there it is compiled again, or found in the cache.
        return _make_module, self._made_of

    @staticmethod
    def from_ptx(ptx: str | bytes | os.PathLike[str]) -> RawModule:
        """A module of PTX, which the driver compiles when it is loaded.

        Args:
            ptx: The text, or a path. PTX shows the size of a parameter and whether it is a float;
                mangled names show the rest.

        Raises:
            OSError: There is no such file.
            TypeError: It is neither code nor a path.
            ValueError: It is not PTX.
        """
        if isinstance(ptx, str) and ".version" in ptx:
            data = ptx.encode()
        else:
            data = ptx if isinstance(ptx, bytes) else _read("from_ptx: ptx", ptx)
        if b".version" not in data or b".target" not in data:
            raise ValueError("RawModule.from_ptx: this is not PTX: it has no .version or .target.")
        return _make_module(
            "", (), (), "", Artefact(data.rstrip(b"\0"), {"format": "ptx", "names": {}})
        )

    @staticmethod
    def from_cubin(cubin: bytes | str | os.PathLike[str]) -> RawModule:
        """A module of code that is compiled for one architecture.

        Args:
            cubin: The bytes, or a path. For an ``extern "C"`` kernel a cubin shows only the sizes
                of the parameters: numbers must then be NumPy scalars, which have a type.

        Raises:
            OSError: There is no such file.
            TypeError: It is neither code nor a path.
            ValueError: It is not a cubin.
        """
        if isinstance(cubin, bytes | bytearray | memoryview):
            data = bytes(cubin)
        else:
            data = _read("from_cubin: cubin", cubin)
        if not data.startswith(b"\x7fELF"):
            raise ValueError("RawModule.from_cubin: this is not a cubin: it is not an ELF file.")
        return _make_module("", (), (), "", Artefact(data, {"format": "cubin", "names": {}}))

    def get_function(self, name: str) -> RawKernel:
        """Returns the kernel of this name; compiles the module if it is not compiled yet.

        Args:
            name: As for :class:`RawKernel`; a mangled name is accepted too.

        Raises:
            ValueError: There is no such kernel.
            CompileError: The source does not compile.
        """
        _check_str("get_function", "name", name)
        self._symbol(name)
        return self._kernels.setdefault(name, RawKernel._of(self, name))

    def get_global(
        self,
        name: str,
        dtype: torch.dtype = torch.uint8,
        shape: Sequence[int] | None = None,
        *,
        device: torch.device | str | int | None = None,
    ) -> torch.Tensor:
        """A ``__device__`` or ``__constant__`` variable as a tensor that uses its memory.

        Later launches see what is written to the tensor, and the tensor shows what kernels write.
        Write a ``__constant__`` variable by ``tensor.copy_(...)``, from a tensor of its dtype.
        Each GPU has its own copy. The memory lives as long as the process.

        Args:
            name: The variable, with its namespace; a mangled name is accepted too. It must be
                neither static nor in an unnamed namespace.
            dtype: The type of its elements. Default: bytes.
            shape: Its shape. None: one axis.
            device: The GPU; None: the current one.

        Raises:
            ValueError: There is no such variable; dtype and shape do not match its size.
            RuntimeError: There is no GPU.
            CompileError: The source does not compile.

        Example:
            >>> import torch, torch_ops.jit
            >>> module = torch_ops.jit.RawModule("__constant__ float table[3];")
            >>> if torch.cuda.is_available():
            ...     table = module.get_global("table", torch.float32)
            ...     _ = table.copy_(torch.tensor([1.0, 2.0, 3.0]))
        """
        _check_str("get_global", "name", name)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"get_global: dtype must be a torch.dtype, but it is {dtype!r}.")
        what = f'get_global("{name}")'
        _check_gpu(f"{what} needs")
        on = torch.device("cuda" if device is None else device)
        if on.type != "cuda":
            raise ValueError(f"{what}: device must be a CUDA device, but it is {on}.")
        index = on.index
        index = torch.cuda.current_device() if index is None else index
        library = load_once(self._artefact(arch_of(index)))
        memory = _ext.get_global(library, _mangled(name), index)
        size = memory.numel()
        count = size // dtype.itemsize if shape is None else math.prod(shape)
        if count * dtype.itemsize != size or memory.data_ptr() % dtype.itemsize:
            raise ValueError(
                f"{what}: the variable has {size} bytes at address {memory.data_ptr():#x}, which "
                f"do not make up a tensor of {dtype}"
                + ("." if shape is None else f" and shape {tuple(shape)}.")
            )
        return memory.view(dtype).view((count,) if shape is None else tuple(shape))

    @property
    def ptx(self) -> str:
        """The module as PTX, for the architecture of the current GPU, or for sm_90 without one."""
        if self._image is not None and self._image.facts["format"] == "ptx":
            return self._image.data.decode()
        if self._image is not None:
            raise ValueError("RawModule.ptx: the module was made of a cubin, which holds no PTX.")
        names = self._all_names()
        optional = names[len(self._names) :]
        source = Source.of(*self._pieces)
        return self._compile(source, _current_arch(), names, optional, "ptx").data.decode()

    @property
    def cubin(self) -> bytes:
        """The module compiled for the current GPU's architecture, or for sm_90 without one."""
        artefact = self._artefact(_current_arch())
        if artefact.facts["format"] != "cubin":
            raise ValueError("RawModule.cubin: the module is PTX, which the driver compiles.")
        return artefact.data

    @property
    def log(self) -> str:
        """The warnings that the compiler printed."""
        return str(self._artefact(_current_arch()).facts.get("log", ""))

    def __repr__(self) -> str:
        if self._image is not None:
            return f"RawModule(<{self._image.facts['format']}>)"
        return f"RawModule({', '.join(self._all_names())})"

    # ---- from a name to a kernel

    def _all_names(self) -> list[str]:
        """The names that were requested, followed by those that are found in the source."""
        found = [kernel.name for kernel in find_kernels(self._code) if not kernel.is_template]
        return list(dict.fromkeys([*self._names, *found]))

    def _compile(
        self, source: Source, arch: str, names: list[str], optional: list[str], target: str
    ) -> Artefact:
        return compile_cuda(
            self._what,
            source,
            arch=arch,
            options=self._options,
            name_expressions=names,
            optional=optional,
            target=target,
        )

    def _artefact(self, arch: str) -> Artefact:
        if self._image is not None:
            return self._image
        with self._lock:
            found = self._compiled.get(arch)
            if found is None:
                names = self._all_names()
                signatures = [signature_of(name) for name in names]
                found = self._compiled[arch] = self._compile(
                    Source.of(*self._pieces, SIGNATURES),
                    arch,
                    names + signatures,
                    # Names that were only found in the text may be inside an #if, or in a string.
                    names[len(self._names) :] + signatures,
                    "cubin",
                )
            return found

    def _symbol(self, name: str, arch: str | None = None) -> str:
        """The name of a kernel in the compiled code."""
        artefact = self._artefact(arch or _current_arch())
        names = artefact.facts["names"]
        known = kernels_in(artefact)
        for symbol in (names.get(name), name):
            if symbol in known:
                return str(symbol)
        meant = [symbol for symbol in known if kernel_name(symbol) == name.replace(" ", "")]
        if len(meant) == 1:
            return meant[0]
        shown = [n for n in names if not n.startswith("&torch_ops::")]
        shown += [symbol for symbol in known if symbol not in names.values()]
        raise ValueError(
            f'There is no kernel "{name}" in the module; it has: {", ".join(shown) or "none"}. '
            "Instances of templates must be named in name_expressions."
        )

    def _params(self, name: str) -> list[Param] | None:
        """The parameters that arguments are checked against; None if only loading shows them."""
        artefact = self._artefact(_current_arch())
        symbol = self._symbol(name)
        signature = artefact.facts["names"].get(signature_of(name))
        types = types_in(signature or symbol)
        if types is None:
            if artefact.facts["format"] == "ptx":
                return params_in_ptx(artefact.data.decode(), symbol)
            return None
        bare = name.partition("<")[0].strip()
        called = next((k.parameters for k in find_kernels(self._code) if k.name == bare), ())
        called = called if len(called) == len(types) else ("",) * len(types)
        return [make_param(type, name) for type, name in zip(types, called, strict=True)]

    def _load(self, name: str, device: int | None) -> tuple[int, int]:
        """Compiles and loads for a device (None: the current one); returns it and a handle."""
        _check_gpu(f'RawKernel "{name}" runs on')
        device = torch.cuda.current_device() if device is None else device
        arch = arch_of(device)
        symbol = self._symbol(name, arch)
        with torch.cuda.device(device):
            return device, _ext.get_kernel(load_once(self._artefact(arch)), symbol)


def _check_gpu(what: str) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"{what} a CUDA GPU, and torch finds none here. Compiling it, and checking its "
            "arguments, is all that can be done without."
        )
    torch.cuda.init()


def _mangled(name: str) -> str:
    """The symbol of a variable: its name, or a mangled one in a namespace."""
    parts = name.split("::")
    if len(parts) == 1:
        return name
    return f"_ZN{''.join(f'{len(part)}{part}' for part in parts)}E"


def _make_module(*made_of: Any) -> RawModule:
    module = RawModule.__new__(RawModule)
    module._begin(*made_of)
    return module


def _current_arch() -> str:
    if torch.cuda.is_available():
        return arch_of(torch.cuda.current_device())
    return DEFAULT_ARCH


def _read(argument: str, path: Any) -> bytes:
    if not isinstance(path, str | os.PathLike):  # open would take a number for a file descriptor
        raise TypeError(
            f"RawModule.{argument} must be bytes or a path, but it is a {type(path).__name__}."
        )
    with open(path, "rb") as file:
        return file.read()


def _checked(
    what: str,
    code: str,
    name_expressions: Sequence[str],
    options: Sequence[str],
    constants: Mapping[str, Any] | None,
    backend: str,
) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    """The arguments of RawModule._begin, from those of a user."""
    _check_str(what, "code", code)
    if backend != "nvrtc":
        raise ValueError(f'{what}: backend must be "nvrtc", but it is {backend!r}.')
    names = dict.fromkeys(_strings(what, "name_expressions", name_expressions))
    given = _strings(what, "options", options)
    check_standard(given)
    return code, tuple(names), given, define(constants)


def _check_str(what: str, argument: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what}: {argument} must be a str, but it is a {type(value).__name__}.")
    check_text(f"{what}: {argument}", value)


def _strings(what: str, argument: str, value: Any) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(item, str) for item in value)
    ):
        raise TypeError(f"{what}: {argument} must be a tuple of strings, but it is {value!r}.")
    check_text(f"{what}: {argument}", "".join(value))
    return tuple(value)
