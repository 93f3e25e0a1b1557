"""IndexedKernel: gather, compute and reduce in one kernel, from a snippet, with gradients."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit._registered import (
    derives,
    hashed,
    is_proxy,
    load_functions,
    signature,
    split_arguments,
    untraced,
)
from torch_ops.jit.building.compilation import included_headers
from torch_ops.jit.building.toolchain import arch_of
from torch_ops.jit.generation.indexed import PassForm, cuda_source, host_source, partial_bytes
from torch_ops.jit.generation.indexed_tuning import tuning
from torch_ops.jit.generation.text import shared_options
from torch_ops.jit.language.derivative_errors import check_preamble
from torch_ops.jit.language.indices import read_indices, read_reductions
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
)
from torch_ops.jit.plans import IndexPlan
from torch_ops.ops.plan import GatherPlan

_is_compiling = torch.compiler.is_compiling

_ext: Any = importlib.import_module("torch_ops._ext.jit")


class IndexedKernel:
    """A kernel that gathers rows, computes something for each entry, and reduces it to rows.

    ``kernel(x, y, w, src=src, dst=dst)`` of ``IndexedKernel("T x[src], T y[dst], T w", "T
    out[dst]", "out = w * (x - y)")`` is ``out[m] = sum of w[e] * (x[src[e]] - y[dst[e]]) over the
    entries e with dst[e] == m``, without an intermediate tensor of shape ``[E, D]``. It is for
    messages of graph networks, convolutions on point clouds, attention over lists of neighbours.

    Args:
        in_params: The inputs, declared as for :class:`ElementwiseKernel`. ``T x[src]`` is read at
            row ``src[e]`` for entry ``e``; without brackets, an input has a row for each entry. A
            ``raw`` input is an array that the snippet indexes.
        out_params: The outputs. ``T out[dst]`` is reduced to row ``dst[e]``, ``T s`` has a row for
            each entry. All reduced outputs have the same index.
        operation: The snippet, for one entry and one place of the features. ``i`` is the entry's
            number (counted over all batches), ``_ind.size()`` the number of entries. An output
            starts as 0 in each entry.
        name: For messages and profilers.
        reduce: ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"``, for all reduced outputs; or a dict
            by their names (missing ones are ``"sum"``). Rows without entries are 0. Means of
            integers are rounded down. The largest value is NaN if one value is.
        features: How the features of outputs without an index are reduced: ``"sum"`` sums them
            over the last axis, ``(-2, -1)`` over these axes. Reduced outputs keep theirs.
        preamble: Text before the kernel: functions, includes.
        options: As for :class:`ElementwiseKernel`.

    Call:
        ``kernel(*inputs, <index>=..., plan=None, sizes=None, batch_dims=0, deterministic=None)``

        - inputs: tensors and numbers. They broadcast, gathered ones too, in the entries' frame
          ``[E, D...]``: ``[E, 1]``, ``[1, D]``, ``[D]``; ``[N, 1, F]`` read by ``src`` together
          with ``[N, 3, F]``. A gathered input has as many axes as the frame.
        - an index, by its name: int32 or int64 of shape ``[E]``, or a
          :class:`torch_ops.GatherPlan` of one.
        - ``plan``: a plan of all indices, made by :func:`index_plan`, in place of them.
        - ``sizes``: how many rows an index counts, if no input that is read by it shows that:
          ``{"dst": M}``.
        - ``batch_dims``: leading axes that all share: x ``[B, N, D]``, src ``[B, E]``, w ``[B, E,
          D]`` give ``[B, M, D]``.
        - ``deterministic``: as for :func:`torch_ops.scatter_add`. It has no effect: all sums are
          made in a fixed order.

    Returns:
        The output, or a tuple of several, all contiguous; of shape ``[M, D...]`` if reduced, else
        ``[E, D...]``.

    Gradient:
        By dual numbers, as for :class:`ElementwiseKernel`; first and higher ones, forward mode,
        ``torch.vmap``. That of an input read by ``src`` is a kernel that reduces to ``src``. If
        values are equally large, the first entry gets the gradient. The inputs are saved, and
        for ``"amax"`` and ``"amin"`` which entry it was, 8 bytes for each element of the output.

    Memory:
        Nothing of the size of ``[E, D]``, except inputs, outputs and gradients of that shape.
        With a plan up to 8 bytes per entry for the parts of long rows. Without one the entries are
        sorted: on the CPU 4 bytes per entry and row (8 from 2^31 on), on CUDA 20 bytes per entry
        and 8 per row. Inputs whose batch axes cannot be walked with one stride are copied.

    Deterministic: rows are summed in the order of their entries, cut into parts by their number.

    Raises:
        CompileError: At the first call the snippet, or at the first gradient its derivative, does
            not compile.
        IndexError: An entry is out of range; the message names the index, the position and the
            value. On CUDA a later call raises it, as for :func:`torch_ops.gather`.
        TypeError: An argument or an index has a dtype that does not fit, or is missing; sums of
            bool; the largest of complex numbers.
        ValueError: Declarations, shapes or sizes do not fit.
        RuntimeError: Tensors on several devices; no compiler.

    Example:
        >>> import torch
        >>> from torch_ops.jit import IndexedKernel
        >>> message = IndexedKernel(
        ...     "T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y)", "message"
        ... )
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        >>> src, dst = torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0])
        >>> w = torch.tensor([[1.0], [2.0], [3.0]])
        >>> out = message(x, x.detach(), w, src=src, dst=dst)
        >>> out
        tensor([[12., 12.],
                [-2., -2.],
                [ 0.,  0.]], grad_fn=<message_backward>)
        >>> torch.autograd.grad(out.sum(), x)[0]
        tensor([[1., 1.],
                [2., 2.],
                [3., 3.]])

    Differentiation: A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008, chapter 3.
    """

    __module__ = "torch_ops.jit"

    def __init__(
        self,
        in_params: str,
        out_params: str,
        operation: str,
        name: str = "kernel",
        *,
        reduce: str | Mapping[str, str] = "sum",
        features: str | int | tuple[int, ...] | None = None,
        preamble: str = "",
        options: Sequence[str] = (),
    ) -> None:
        inputs = parse_params(in_params, "in_params", indexed=True)
        outputs = parse_params(out_params, "out_params", indexed=True)
        check_names(inputs, outputs, name)
        check_text("operation", operation)
        check_text("preamble", preamble)
        check_options(options)
        indices = read_indices(inputs, outputs)
        outputs = read_reductions(outputs, reduce, features)
        self.name = name
        self.in_params = in_params
        self.out_params = out_params
        self.operation = operation
        self._texts: dict[str, Any] = {
            "reduce": reduce if isinstance(reduce, str) else dict(reduce),
            "features": features,
            "preamble": preamble,
            "options": tuple(options),
        }
        self.inputs = inputs
        self.outputs = outputs
        self.indices = indices
        snippet = Snippet(operation, "operation", without_wide_typedefs(preamble))
        program = Program(name, inputs, outputs, snippet, indices=indices)
        roles = [(p.index, p.reduce, p.features) for p in (*inputs, *outputs)]
        headers = included_headers("\n".join((preamble, operation)), options)
        if not headers:  # which may define macros
            macros = defined_macros((preamble, operation), shared_options(options))
            check_assigned(operation, outputs, macros)
        source = repr((program, indices, roles, tuple(options), headers))
        self._kernel = _make_kernel(program, hashed(name, source), tuple(options))
        self._call = self._kernel.call
        self._op = getattr(torch.ops.torch_ops_jit, self._kernel.op_name).default

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _is_compiling():
            try:
                results = self._call(args, kwargs)
            except TypeError:
                if not any(map(is_proxy, (*args, *kwargs.values()))):
                    raise
                results = NotImplemented
            if results is not NotImplemented:
                return results
        return self._by_op(args, **kwargs)

    def _by_op(
        self,
        args: tuple[Any, ...],
        *,
        plan: IndexPlan | None = None,
        sizes: Mapping[str, int] | None = None,
        batch_dims: int | None = None,
        deterministic: bool | None = None,
        **indices: Any,
    ) -> Any:
        """The call that torch.compile traces, and subclasses of Tensor see: its registered op."""
        if len(args) != len(self.inputs):
            raise TypeError(
                f"{self.name}: the number of arguments, besides the indices "
                f"{', '.join(self.indices)} by name, must be {len(self.inputs)}, but it is "
                f"{len(args)}."
            )
        for given in indices:
            if given not in self.indices:
                raise TypeError(
                    f"{self.name} takes the indices {', '.join(self.indices)}, and plan, sizes, "
                    f"batch_dims, deterministic by name, but got {given}."
                )
        tensors, numbers, positions = split_arguments(self.name, self.inputs, args)
        if plan is not None:
            if indices:
                raise TypeError(
                    f"{self.name}: the indices are given twice, by plan= and by their names."
                )
            parts = plan.parts_for(self.indices, self.name)
            if batch_dims not in (None, plan.batch_dims):
                raise ValueError(
                    f"{self.name}: the plan was made for batch_dims={plan.batch_dims}, but "
                    f"batch_dims={batch_dims} was given. Leave it out: the plan has it."
                )
            batch_dims = plan.batch_dims
        else:
            parts = self._parts(indices)
            for value in indices.values():
                if isinstance(value, GatherPlan):
                    batch_dims = value.batch_dims
        own, plans, longest, counts = parts
        for name, size in (sizes or {}).items():
            if name not in self.indices:
                raise ValueError(
                    f"{self.name}: sizes names {name}, but the indices are "
                    f"{', '.join(self.indices)}."
                )
            place = self.indices.index(name)
            if counts[place] not in (-1, size):
                raise ValueError(
                    f"{self.name}: the number of rows that {name} counts is {counts[place]} by the "
                    f"plan, but {size} by sizes=."
                )
            counts[place] = size
        results = self._op(
            tensors, numbers, positions, own, plans, longest, counts, batch_dims or 0,
            deterministic,
        )  # fmt: skip
        if len(self.outputs) == 1:  # proxies have no length
            return results[0]
        return tuple(results[number] for number in range(len(self.outputs)))

    def _parts(
        self, given: Mapping[str, Any]
    ) -> tuple[list[Tensor], list[Tensor], list[int], list[int]]:
        """Indices, plans, the most entries of a row, and sizes, as the registered op gets them."""
        own: list[Tensor] = []
        counts: list[int] = []
        plans: list[Tensor] = []
        any_plan = any(isinstance(value, GatherPlan) for value in given.values())
        for name in self.indices:
            if name not in given:
                raise TypeError(
                    f"{self.name}: the index {name} is missing. Pass {name}=..., or a plan that "
                    "has it."
                )
            value = given[name]
            if isinstance(value, GatherPlan):
                rows = value.rows
                bounds = torch.arange(
                    value.dim_size * value.index.shape[: value.batch_dims].numel() + 1,
                    dtype=rows.dtype,
                    device=rows.device,
                )
                offsets = torch.searchsorted(rows, bounds, out_int32=rows.dtype == torch.int32)
                own.append(value.index)
                counts.append(value.dim_size)
                plans += [value.order, offsets, *[rows.new_empty(0)] * len(self.indices)]
            else:
                own.append(value)
                counts.append(-1)
                if any_plan:
                    none = value.new_empty(0, dtype=torch.int32)
                    plans += [none] * (2 + len(self.indices))
        return own, plans, [-1] * len(own), counts

    def __reduce__(self) -> tuple[Any, ...]:
        again = functools.partial(IndexedKernel, **self._texts)
        return again, (self.in_params, self.out_params, self.operation, self.name)

    def __repr__(self) -> str:
        return f"IndexedKernel({self.in_params!r}, {self.out_params!r}, name={self.name!r})"


def _make_kernel(program: Program, op_name: str, options: tuple[str, ...]) -> Any:
    """The C++ side of a program, registered as ``torch_ops_jit::<op_name>``."""
    snippet = program.snippet
    macros = defined_macros(snippet.texts, shared_options(options))

    def role(param: Param) -> tuple[int, str, tuple[int, ...]]:
        index = program.indices.index(param.index) if param.index else -1
        return index, param.reduce, param.features

    return _ext.Indexed(
        **signature(
            program.name,
            op_name,
            program.inputs,
            program.outputs,
            (*snippet.texts, *options),
        ),
        in_roles=[role(param) for param in program.inputs],
        out_roles=[role(param) for param in program.outputs],
        indices=list(program.indices),
        uses_index=may_mean(snippet.operation, {"i"}, macros),
        uses_size=may_mean(snippet.operation, {"_ind"}, macros),
        compile=untraced(functools.partial(_compile, program, options)),
        derive=derives(op_name, functools.partial(_derive, program, options)),
        gather_plan=GatherPlan,
    )


def _what(program: Program) -> str:
    return f'IndexedKernel "{program.name}"'


def _compile(
    program: Program, options: tuple[str, ...], device: int | None, *facts: Any
) -> tuple[int, ...]:
    """Called from C++ for a new form of pass.

    Returns:
        Its two functions, the entries in flight, the bytes of a part of a row, and on CUDA the
        threads of a block, the lanes of a row, and the entries beyond which a row is cut.
    """
    form = PassForm(*facts)
    size = partial_bytes(form)
    load = functools.partial(
        load_functions, _what(program), program, options, device, has_backward=False
    )
    if device is None:
        (run,) = load(host_source(program, form), "run")
        return run, 0, 1, size, 1, 1, 0
    numbers = tuning(arch_of(device))
    source, unroll = cuda_source(program, form, numbers)
    names = ("run",) if form.walk == "e" else ("run", "join")
    run, *join = load(source, *names)
    return run, *(join or [0]), unroll, size, numbers.threads, numbers.group, numbers.tile


def _derive(
    program: Program,
    options: tuple[str, ...],
    op_name: str,
    kind: str,
    wanted: list[bool],
    given: list[bool],
) -> Any:
    """Called from C++ for a new derivative, with the name of its op."""
    what = _what(program)
    for param, is_wanted in zip(program.inputs, wanted, strict=True):
        if is_wanted and param.raw:
            raise RuntimeError(
                f"{what} has no gradient with respect to its raw parameter {param.name}: what an "
                f"entry reads of it is not known. Detach {param.name}, or read it by an index."
            )
    check_preamble(what, program.snippet.preamble)
    if kind == "vjp":
        made = program.vjp(wanted, [False] * len(wanted), given)
    else:
        made = program.jvp(wanted)
    return _make_kernel(made, op_name, options)
