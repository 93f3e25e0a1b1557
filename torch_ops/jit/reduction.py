"""ReductionKernel: a map, a reduction and a last step, each a line of CUDA C++."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

from torch_ops.jit._registered import (
    as_number,
    copy_to_outputs,
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
from torch_ops.jit.generation.reduction import (
    Reduction,
    ReductionForm,
    cuda_source,
    host_source,
    result_dtype,
)
from torch_ops.jit.generation.text import shared_options
from torch_ops.jit.language.params import (
    Param,
    check_names,
    check_options,
    check_text,
    parse_params,
    parse_type,
    without_wide_typedefs,
)
from torch_ops.jit.language.program import check_assigned, defined_macros, may_mean

_is_compiling = torch.compiler.is_compiling

_ext: Any = importlib.import_module("torch_ops._ext.jit")


class ReductionKernel:
    """A reduction over any axes from three snippets of CUDA C++, with CuPy's meaning.

    Args:
        in_params: The inputs, declared as for :class:`ElementwiseKernel`; they broadcast.
        out_params: The only output.
        map_expr: An expression in the inputs: the value of each element that is reduced.
        reduce_expr: An expression in ``a`` and ``b`` that combines two values. It must be
            associative and commutative.
        post_map_expr: A statement that writes the output from ``a``, the combined value:
            ``"y = sqrt(a)"``. ``_in_ind.size()`` and ``_out_ind.size()`` are the numbers of
            elements of input and output.
        identity: The result of no elements: a number or an expression. None: an error if there are
            no elements.
        name: For messages.
        reduce_type: The type of ``a`` and ``b``, in which values are combined: a dtype's name such
            as ``"float64"``, or a letter of the parameters. None: that of the output. float16 and
            bfloat16 mean float32.
        preamble: Text before the kernel.
        options: As for :class:`ElementwiseKernel`.

    Call:
        ``kernel(*inputs, dim=None, keepdim=False, out=None)``. ``dim`` is an axis or several; None:
        all of them; ``()``: none. Returns a tensor of the input's shape without these axes (with
        ``keepdim=True`` of size 1 there).

    Values are combined in ``reduce_type``, else in the type of the output; in float32 for float16
    and bfloat16.

    Gradient:
        None: the backward pass, or torch.compile when it makes its graph, raises an error that
        says so; so does forward mode. torch.vmap, torch.compile and torch.export work.

    Memory:
        If few outputs have many elements, each output's are reduced in parts, whose results need
        8 bytes each, or 16 for complex128.

    Deterministic: the order in which values are combined depends on sizes and strides, and, on
    CUDA, on where in words of 16 bytes the inputs begin; for reductions over columns, on the GPU's
    number of multiprocessors.

    Raises:
        CompileError: At the first call, a snippet does not compile.
        TypeError: As for :class:`ElementwiseKernel`.
        ValueError: No elements and no identity; ``out`` has the wrong shape; an axis named twice;
            ``post_map_expr`` never assigns the output.
        IndexError: An axis is out of range.
        RuntimeError: Shapes do not broadcast; tensors on several devices; no compiler; ``out`` and
            an argument that requires grad.

    Example:
        >>> import torch
        >>> from torch_ops.jit import ReductionKernel
        >>> norm = ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", 0, "norm")
        >>> norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), dim=1)
        tensor([5., 2.])

    The language is that of ``cupy.ReductionKernel``.
    """

    __module__ = "torch_ops.jit"

    def __init__(
        self,
        in_params: str,
        out_params: str,
        map_expr: str,
        reduce_expr: str,
        post_map_expr: str,
        identity: str | complex | None,
        name: str = "reduce",
        *,
        reduce_type: str | None = None,
        preamble: str = "",
        options: Sequence[str] = (),
    ) -> None:
        inputs = parse_params(in_params, "in_params")
        outputs = parse_params(out_params, "out_params")
        check_names(inputs, outputs, name)
        if len(outputs) != 1 or outputs[0].raw:
            raise ValueError(
                f"out_params must declare one output that is not raw, but it is {out_params!r}."
            )
        if outputs[0].name == "a":
            raise ValueError(
                "out_params: the output cannot be named 'a', the combined value in post_map_expr."
            )
        for title, text in (
            ("map_expr", map_expr),
            ("reduce_expr", reduce_expr),
            ("post_map_expr", post_map_expr),
            ("preamble", preamble),
        ):
            check_text(title, text)
        check_options(options)
        self._texts: tuple[Any, ...] = (map_expr, reduce_expr, post_map_expr, identity, name)
        self._keywords: dict[str, Any] = {
            "reduce_type": reduce_type,
            "preamble": preamble,
            "options": tuple(options),
        }
        self.name = name
        self.in_params = in_params
        self.out_params = out_params
        reduction = Reduction(
            name,
            inputs,
            outputs[0],
            map_expr,
            reduce_expr,
            post_map_expr,
            _as_text(identity),
            without_wide_typedefs(preamble),
            reduce_type=_parse_reduce_type(reduce_type, (*inputs, *outputs)),
        )
        self.inputs = inputs
        texts = "\n".join((preamble, map_expr, reduce_expr, post_map_expr))
        headers = included_headers(texts, options)
        if not headers:  # which may define macros
            macros = defined_macros((preamble, post_map_expr), shared_options(options))
            check_assigned(post_map_expr, outputs, macros, "post_map_expr")
        self.source = repr((reduction, tuple(options), headers))
        self._kernel = make_reduction(reduction, tuple(options), hashed(name, self.source))
        self._op = getattr(torch.ops.torch_ops_jit, self._kernel.op_name).default

    def __call__(
        self,
        *args: Any,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        out: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        if others:
            raise TypeError(
                f"{self.name}: besides the inputs, a call takes dim=, keepdim= and out=, but got "
                f"{next(iter(others))}=. CuPy's axis= is dim=, and its keepdims= is keepdim=."
            )
        if not _is_compiling():
            try:
                result: Any = self._kernel.call(args, dim, keepdim, out)
            except TypeError:
                if not any(map(is_proxy, args)):
                    raise
                result = NotImplemented
            if result is not NotImplemented:
                return result
        return self._by_op(args, dim, keepdim, out)

    def _by_op(self, args: tuple[Any, ...], dim: Any, keepdim: bool, out: Any) -> Tensor:
        """The call that torch.compile traces, and subclasses of Tensor see: its registered op."""
        if len(args) != len(self.inputs):
            raise TypeError(
                f"{self.name}: the number of arguments must be {len(self.inputs)}, but it is "
                f"{len(args)}."
            )
        if isinstance(dim, int):
            dim = [dim]
        tensors, numbers, positions = split_arguments(self.name, self.inputs, args)
        result = self._op(tensors, numbers, positions, dim, keepdim)
        if out is not None:
            (result,) = copy_to_outputs(self.name, ("out",), (out,), (result,), tensors)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        again = functools.partial(ReductionKernel, **self._keywords)
        return again, (self.in_params, self.out_params, *self._texts)

    def __repr__(self) -> str:
        return f"ReductionKernel({self.in_params!r}, {self.out_params!r}, name={self.name!r})"


def make_reduction(reduction: Reduction, options: tuple[str, ...], op_name: str = "") -> Any:
    """The C++ side of a reduction; with a name registered as ``torch_ops_jit::<op_name>``."""
    expressions = (reduction.map_expr, reduction.reduce_expr, reduction.post_map_expr)
    texts = (*expressions, reduction.identity or "")
    macros = defined_macros((reduction.preamble, *texts), shared_options(options))
    kernel = _ext.Reduction(
        **signature(
            reduction.name,
            op_name,
            reduction.inputs,
            [reduction.output],
            (reduction.preamble, *texts, *options),
        ),
        has_identity=reduction.identity is not None,
        uses_size=may_mean("\n".join(texts), {"_in_ind", "_out_ind"}, macros),
        compile=untraced(functools.partial(_compile, reduction, options)),
    )
    if op_name:
        register_fake(op_name, functools.partial(_fake, kernel, reduction))
    return kernel


def _fake(
    kernel: Any,
    reduction: Reduction,
    tensors: list[Tensor],
    numbers: list[Any],
    positions: list[int],
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Shape and dtype of the result, and the errors, as src/jit/reduction/ has them."""
    name = reduction.name
    dtype = kernel.output_dtypes(tensors, known_numbers(numbers), positions)[0]
    by_input = join_arguments(reduction.inputs, tensors, positions)
    walked = [
        value
        for value, param in zip(by_input, reduction.inputs, strict=True)
        if value is not None and not param.raw
    ]
    if not walked:
        raise TypeError(f"{name}: a reduction takes a tensor at least that is not raw.")
    device = device_of(name, tensors)
    shape = torch.broadcast_shapes(*(value.shape for value in walked))
    reduced = kernel.reduced_axes(len(shape), dim)
    kept = [
        1 if is_reduced else size
        for size, is_reduced in zip(shape, reduced, strict=False)
        if keepdim or not is_reduced
    ]
    elements = math.prod(
        size for size, is_reduced in zip(shape, reduced, strict=False) if is_reduced
    )
    # Lengths that depend on data are known only to the real call.
    empty = guard_or_false(elements == 0) and guard_or_true(math.prod(kept) != 0)
    if reduction.identity is None and empty:
        raise ValueError(
            f"{name}: there is no element to reduce (shape {list(shape)}), and the kernel has no "
            "identity."
        )
    return torch.empty(kept, dtype=dtype, device=device)


def _parse_reduce_type(name: str | None, params: Sequence[Param]) -> torch.dtype | str | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"reduce_type must be a string or None, but it is {type(name).__name__}.")
    found = parse_type(name, "reduce_type")
    letters = sorted({param.type for param in params if isinstance(param.type, str)})
    if isinstance(found, str) and found not in letters:
        raise ValueError(
            f"reduce_type is {name!r}, a letter that no parameter is declared with; they have "
            f"{', '.join(letters) or 'none'}."
        )
    return found


def _as_text(identity: Any) -> str | None:
    identity = as_number(identity)
    if identity is None or isinstance(identity, str):
        return identity
    if isinstance(identity, bool):
        return str(identity).lower()
    if isinstance(identity, int) and not -(2**63) <= identity < 2**64:
        raise ValueError(f"identity is {identity}, which no integer of CUDA's holds.")
    if isinstance(identity, int | float):
        if math.isnan(identity):
            return "(0.0 / 0.0)"
        if math.isinf(identity):
            return "(1.0 / 0.0)" if identity > 0 else "(-1.0 / 0.0)"
        return repr(float(identity) if isinstance(identity, float) else int(identity))
    if isinstance(identity, complex):
        return f"torch_ops::complex<double>({_as_text(identity.real)}, {_as_text(identity.imag)})"
    raise TypeError(
        f"identity must be a number, a string or None, but it is {type(identity).__name__}."
    )


def _compile(
    reduction: Reduction, options: tuple[str, ...], device: int | None, *facts: Any
) -> tuple[int, int, int]:
    """Called from C++ for a new form of call: its two functions, and a result's bytes."""
    form, program = ReductionForm(*facts), reduction.program
    what = f'{"Reduction" if program is None else "Elementwise"}Kernel "{reduction.name}"'
    source = (host_source if device is None else cuda_source)(reduction, form)
    partial, finish = load_functions(what, program, options, device, source, "partial", "finish")
    return partial, finish, result_dtype(reduction, form).itemsize
