"""ElementwiseKernel: a snippet of CUDA C++ for each element, with gradients, on CPU and CUDA."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides

from torch_ops.jit._registered import (
    copy_to_outputs,
    derives,
    device_of,
    hashed,
    is_proxy,
    join_arguments,
    known_numbers,
    load_functions,
    register_fake,
    signature,
    split_arguments,
    untraced,
)
from torch_ops.jit.building.compilation import included_headers
from torch_ops.jit.generation.elementwise import Form, cuda_source, host_source
from torch_ops.jit.generation.reduction import Reduction
from torch_ops.jit.generation.text import shared_options
from torch_ops.jit.language.derivative_errors import check_preamble
from torch_ops.jit.language.params import (
    Param,
    check_names,
    check_options,
    check_text,
    parse_params,
    without_wide_typedefs,
)
from torch_ops.jit.language.program import (
    Program,
    Snippet,
    check_assigned,
    defined_macros,
    may_mean,
    mentions,
    surely_assigns,
)
from torch_ops.jit.reduction import make_reduction

_is_compiling = torch.compiler.is_compiling

_ext: Any = importlib.import_module("torch_ops._ext.jit")


class ElementwiseKernel:
    """A kernel from a snippet of CUDA C++ that computes one element of the outputs.

    The language is CuPy's. The snippet is compiled at the first call for each combination of dtypes
    and memory layouts, by NVRTC for CUDA tensors and by the host's C++ compiler for CPU tensors,
    and kept in memory and on disk (:func:`torch_ops.jit.cache_info`).

    Args:
        in_params: The inputs, ``"T x, float32 y, raw T w"``. A type is a dtype's name or one
            letter, which stands for ``torch.result_type`` of all arguments declared with it. A
            ``raw`` parameter is an array that the snippet indexes: ``w[j]`` by the row-major index,
            or ``ptrdiff_t rc[] = {r, c}; w[rc]``; also ``w.size()``, ``w.shape()[d]``.
        out_params: The outputs, declared likewise. An output that the snippet does not assign in
            every case keeps the value of the tensor in ``out=``, and is 0 in a new tensor; one that
            it never assigns is an error.
        operation: The snippet. ``i`` is the row-major index of the element, ``_ind.size()`` the
            number of elements. ``T`` and the other letters are types: that of the computation,
            which is float for float16 and bfloat16.
        name: For messages and profilers.
        preamble: Text before the kernel: functions, includes.
        loop_prep: Text that runs once per thread (CUDA) or worker (CPU) before its elements.
        after_loop: Text that runs once per thread or worker after its elements.
        options: Options for NVRTC. ``-I`` and ``-std=`` are also passed to the host's compiler.
            ``-D`` and ``-U`` become lines before the preamble.
        backward: ``"auto"``: the snippet is differentiated. ``None``: gradients are refused. Other
            text: a snippet that reads ``grad_<output>``, the inputs and the outputs, and writes
            ``grad_<input>``; for a raw input that is a raw array of zeros.

    Call:
        ``kernel(*inputs, size=None, out=None)``; inputs are tensors of any shapes that broadcast
        and any strides, and numbers. Outputs may follow the inputs, or be given in ``out`` (a tuple
        for several). ``size`` is the shape if only raw arrays and numbers are given. Returns
        the output, or a tuple of several, in the memory format of torch's own elementwise ops.

    Gradient:
        By forward-mode differentiation of the snippet over dual numbers, inside the generated
        backward kernel: first and higher derivatives, forward mode, ``torch.vmap``, by every
        floating input that is not raw. A broadcast input's gradient is summed in float32 at
        least. The inputs are saved, or what the snippet in ``backward`` mentions. Code that would
        lose a derivative does not compile: see docs/jit.md. None on complex tensors: the backward
        pass raises an error.

    Memory:
        Only the outputs. A broadcast input's gradient is made at full size before it is summed if
        that needs at most 64 MB (on the CPU 4 MB), else in parts.

    Deterministic, unless the snippet itself uses atomics.

    Raises:
        CompileError: At the first call: the snippet, or at the first gradient its derivative, does
            not compile.
        TypeError: An argument's dtype cannot be cast to the declared one by ``torch.can_cast``; a
            wrong number of arguments; a declaration of an unknown type.
        ValueError: ``out`` has the wrong shape; ``size`` is missing or not allowed; a declaration
            is malformed; an output is never assigned; a parameter has the name of a gradient
            in ``backward``.
        RuntimeError: Shapes do not broadcast; tensors on several devices; ``out`` together with
            gradients; in the backward pass: ``backward=None``, or a raw input requires a gradient
            that no snippet gives; no compiler.

    Example:
        >>> import torch
        >>> from torch_ops.jit import ElementwiseKernel
        >>> leaky_relu = ElementwiseKernel(
        ...     "T x, T slope", "T y", "y = x > 0 ? x : slope * x", "leaky_relu"
        ... )
        >>> x = torch.tensor([-2.0, 3.0], requires_grad=True)
        >>> y = leaky_relu(x, 0.25)
        >>> y
        tensor([-0.5000,  3.0000], grad_fn=<leaky_relu_backward>)
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([0.2500, 1.0000]),)

    The parameter language is that of ``cupy.ElementwiseKernel``. Differentiation: A. Griewank,
    A. Walther, "Evaluating Derivatives", SIAM 2008, chapter 3.
    """

    __module__ = "torch_ops.jit"

    def __init__(
        self,
        in_params: str,
        out_params: str,
        operation: str,
        name: str = "kernel",
        *,
        preamble: str = "",
        loop_prep: str = "",
        after_loop: str = "",
        options: Sequence[str] = (),
        backward: str | None = "auto",
    ) -> None:
        inputs = parse_params(in_params, "in_params")
        outputs = parse_params(out_params, "out_params")
        check_names(inputs, outputs, name)
        for title, text in (
            ("operation", operation),
            ("preamble", preamble),
            ("loop_prep", loop_prep),
            ("after_loop", after_loop),
        ):
            check_text(title, text)
        check_options(options)
        if backward is not None and not isinstance(backward, str):
            raise TypeError(
                f'backward must be "auto", a snippet or None, but it is {type(backward).__name__}.'
            )
        check_text("backward", backward or "")
        names = {param.name for param in (*inputs, *outputs)}
        twice = sorted(name for name in names if "grad_" + name in names)
        if twice and backward not in ("auto", None):
            raise ValueError(
                f"backward: grad_{twice[0]} would have two meanings: a parameter, and the gradient "
                f"of {twice[0]}. Give the parameter another name."
            )
        self.name = name
        self.in_params = in_params
        self.out_params = out_params
        self.operation = operation
        self.backward = backward
        self._texts: dict[str, Any] = {
            "preamble": preamble,
            "loop_prep": loop_prep,
            "after_loop": after_loop,
            "options": tuple(options),
            "backward": backward,
        }
        preamble = without_wide_typedefs(preamble)
        snippet = Snippet(operation, "operation", preamble, loop_prep, after_loop)
        program = Program(name, inputs, outputs, snippet)
        texts = "\n".join((preamble, loop_prep, operation, after_loop, backward or ""))
        headers = included_headers(texts, options)
        if not headers:  # which may define macros
            macros = defined_macros((preamble, operation), shared_options(options))
            check_assigned(operation, outputs, macros)
        source = repr((program, tuple(options), backward, headers))
        self.inputs = inputs
        self.outputs = outputs
        self.has_raw_outputs = any(param.raw for param in outputs)
        self._keeps_outputs = _keeps_outputs(program, tuple(options)) or self.has_raw_outputs
        self._kernel = _make_kernel(program, hashed(name, source), tuple(options), backward)
        self._call = self._kernel.call
        self._op = getattr(torch.ops.torch_ops_jit, self._kernel.op_name).default

    def __call__(self, *args: Any, size: int | Sequence[int] | None = None, out: Any = None) -> Any:
        if not _is_compiling():
            try:
                results = self._call(args, size, out)
            except TypeError:
                if not any(map(is_proxy, args)):
                    raise
                results = NotImplemented
            if results is not NotImplemented:
                return results
        return self._by_op(args, size, out)

    def _by_op(self, args: tuple[Any, ...], size: Any, out: Any) -> Any:
        """The call that torch.compile traces, and subclasses of Tensor see: its registered op."""
        if len(args) == len(self.inputs) + len(self.outputs) and out is None:
            out = args[len(self.inputs) :]
        elif len(args) != len(self.inputs):
            raise TypeError(
                f"{self.name}: the number of arguments must be {len(self.inputs)}, but it is "
                f"{len(args)}."
            )
        if out is not None and self._keeps_outputs:
            raise RuntimeError(
                f"{self.name}: an output that the snippet does not assign in every case, or a raw "
                "one, cannot be given in out= inside torch.compile. Call the kernel in a function "
                "that torch_ops.jit.op registers with mutates_args=."
            )
        tensors, numbers, positions = split_arguments(
            self.name, self.inputs, args[: len(self.inputs)]
        )
        if isinstance(size, int):
            size = [size]
        results = self._op(tensors, numbers, positions, size)
        if out is not None:
            outs = out if isinstance(out, tuple | list) else (out,)
            names = [f"output {param.name}" for param in self.outputs]
            results = copy_to_outputs(self.name, names, outs, results, tensors)
        if len(self.outputs) == 1:  # proxies have no length
            return results[0]
        return tuple(results[number] for number in range(len(self.outputs)))

    def __reduce__(self) -> tuple[Any, ...]:
        again = functools.partial(ElementwiseKernel, **self._texts)
        return again, (self.in_params, self.out_params, self.operation, self.name)

    def __repr__(self) -> str:
        return f"ElementwiseKernel({self.in_params!r}, {self.out_params!r}, name={self.name!r})"


def _keeps_outputs(program: Program, options: tuple[str, ...]) -> bool:
    snippet = program.snippet
    texts = (snippet.preamble, snippet.loop_prep, snippet.operation)
    macros = defined_macros(texts, shared_options(options))
    return program.parent is None and not all(
        param.raw or surely_assigns(snippet.operation, param.name, macros)
        for param in program.outputs
    )


def _saves(program: Program, options: tuple[str, ...], backward: str | None) -> list[bool]:
    """What is saved for a derivative: of each input, then of each output."""
    snippet = program.snippet
    by_code = backward not in ("auto", None)
    if program.parent is not None or not (by_code or snippet.title == "backward"):
        return [True] * len(program.inputs) + [False] * len(program.outputs)
    text = str(backward) if by_code else snippet.operation
    macros = defined_macros((snippet.preamble, text), shared_options(options))
    return [
        may_mean(text, {param.name}, macros) and (param in program.inputs or by_code)
        for param in (*program.inputs, *program.outputs)
    ]


def _make_kernel(
    program: Program, op_name: str, options: tuple[str, ...], backward: str | None
) -> Any:
    """The C++ side of a program, registered as ``torch_ops_jit::<op_name>``."""
    snippet = program.snippet
    macros = defined_macros(snippet.texts, shared_options(options))
    texts = "\n".join((snippet.loop_prep, snippet.operation, snippet.after_loop))
    kernel = _ext.Elementwise(
        **signature(
            program.name,
            op_name,
            program.inputs,
            program.outputs,
            (*snippet.texts, *options),
        ),
        uses_index=may_mean(snippet.operation, {"i"}, macros),
        uses_size=may_mean(texts, {"_ind"}, macros),
        reads_outputs=_keeps_outputs(program, options),
        has_loop_parts=bool(snippet.loop_prep or snippet.after_loop),
        saves=_saves(program, options, backward),
        compile=untraced(functools.partial(_compile, program, options)),
        derive=derives(op_name, functools.partial(_derive, program, options, backward)),
        sum=functools.partial(_sum, program, options),
    )
    register_fake(op_name, functools.partial(_fake, kernel, program))
    return kernel


def _sum(program: Program, options: tuple[str, ...]) -> Any:
    """Called from C++: the reduction that sums the program's output, or None."""
    snippet = program.snippet
    if snippet.loop_prep or snippet.after_loop or len(program.outputs) != 1:
        return None
    return make_reduction(Reduction.sum_of(program), options)


def _what(program: Program) -> str:
    return f'ElementwiseKernel "{program.name}"'


def _compile(
    program: Program, options: tuple[str, ...], device: int | None, *facts: Any
) -> tuple[int, int, int]:
    """Called from C++ for a new form of call: its function, threads, and unrolling."""
    form = Form(*facts)
    what = _what(program)
    if device is None:
        source = host_source(program, form)
        (run,) = load_functions(what, program, options, device, source, "run")
        return run, 0, 0
    source, threads, unroll = cuda_source(program, form)
    (kernel,) = load_functions(what, program, options, device, source, "kernel")
    return kernel, threads, unroll


def _derive(
    program: Program,
    options: tuple[str, ...],
    backward: str | None,
    op_name: str,
    kind: str,
    wanted: list[bool],
    wide: list[bool],
    given: list[bool],
) -> Any:
    """Called from C++ for a new derivative, with the name of its op."""
    what = _what(program)
    if backward is None:
        raise RuntimeError(
            f"{what} has no gradient: it was made with backward=None. Detach its inputs, or make "
            'it with backward="auto".'
        )
    by_code = backward != "auto" and kind == "vjp"
    for param, is_wanted in zip(program.inputs, wanted, strict=True):
        if is_wanted and param.raw and not by_code:
            raise RuntimeError(
                f"{what} has no automatic gradient with respect to its raw parameter {param.name}: "
                'what an element reads of it is not known. Give a snippet in backward="...", or '
                f"detach {param.name}."
            )
    if any(param.raw for param in program.outputs):
        raw = ", ".join(param.name for param in program.outputs if param.raw)
        raise RuntimeError(f"{what} has no gradient: its output {raw} is raw.")
    if backward != "auto" and kind == "jvp":
        raise RuntimeError(
            f"{what} has no forward-mode derivative: its gradient is given by a snippet, which "
            'tells that of the backward pass alone. Make it with backward="auto".'
        )
    if not by_code:
        check_preamble(what, program.snippet.preamble)
    if by_code:
        assert backward is not None
        saves = _saves(program, options, backward)[len(program.inputs) :]
        read = tuple(out for out, is_saved in zip(program.outputs, saves, strict=True) if is_saved)
        made = _by_code(program, backward, wanted, wide, read, options)
    elif kind == "vjp":
        made = program.vjp(wanted, wide, given)
    else:
        made = program.jvp(wanted)
    return _make_kernel(made, op_name, options, "auto")


def _by_code(
    program: Program,
    code: str,
    wanted: list[bool],
    wide: list[bool],
    read: tuple[Param, ...],
    options: tuple[str, ...] = (),
) -> Program:
    """The program of the gradients that the user's snippet computes, which reads some outputs."""
    macros = defined_macros((program.snippet.preamble,), shared_options(options))
    text = "\n".join((code, *macros.values()))
    grads = tuple(Param("grad_" + out.name, out.type) for out in program.outputs)
    inputs = (*grads, *program.inputs, *read)
    outputs: list[Param] = []
    unwanted: list[Param] = []
    scratch: list[Param] = []
    for number, param in enumerate(program.inputs):
        name = "grad_" + param.name
        like = len(grads) + number if param.raw else -1
        grad = Param(name, param.type, raw=param.raw, wide=wide[number], like=like)
        if wanted[number]:
            if not mentions(text, name):
                raise RuntimeError(
                    f"{_what(program)}: its backward snippet does not write {name}, but "
                    f"{param.name} requires a gradient."
                )
            outputs.append(grad)
        elif mentions(text, name):
            (unwanted if param.raw else scratch).append(grad)
    snippet = Snippet(code, "backward", program.snippet.preamble, scratch=tuple(scratch))
    return Program(program.name, inputs, (*outputs, *unwanted), snippet)


def _fake(
    kernel: Any,
    program: Program,
    tensors: list[Tensor],
    numbers: list[Any],
    positions: list[int],
    size: Sequence[int] | None = None,
) -> list[Tensor]:
    """Shapes, strides and dtypes of the outputs, as src/jit/elementwise/ makes them."""
    dtypes = kernel.output_dtypes(tensors, known_numbers(numbers), positions)
    by_input = join_arguments(program.inputs, tensors, positions)
    walked = [
        value
        for value, param in zip(by_input, program.inputs, strict=True)
        if value is not None and not param.raw
    ]
    device = device_of(program.name, tensors)
    if size is not None or not walked:
        if size is None and tensors:
            raise ValueError(
                f"{program.name}: only raw parameters are given, and numbers, which tell no shape. "
                "Pass size=."
            )
        shape: Any = torch.Size(size or ())
    else:
        shape = torch.broadcast_shapes(*(value.shape for value in walked))
    results = []
    larger = [value.expand(shape) for value in walked if value.dim() > 0]
    for param, dtype in zip(program.outputs, dtypes, strict=True):
        if param.raw:
            like = by_input[param.like] if param.like >= 0 else None
            if like is None:
                raise ValueError(
                    f"{program.name}: the raw output {param.name} needs out=, which a traced call "
                    "cannot have."
                )
            results.append(torch.empty(like.shape, dtype=dtype, device=device))
        elif larger:
            strides = compute_elementwise_output_strides(*larger)
            results.append(torch.empty_strided(shape, strides, dtype=dtype, device=device))
        else:
            results.append(torch.empty(shape, dtype=dtype, device=device))
    return results
