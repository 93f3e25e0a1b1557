"""What an indexed kernel is asked of beyond the language of parameters: indices, reductions."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch_ops.jit.language.params import Param

REDUCTIONS = ("sum", "mean", "amax", "amin")
# Of a call's keyword arguments, and of what a snippet sees.
_TAKEN = ("i", "_ind", "out", "sizes", "plan", "batch_dims", "deterministic", "self")


def read_indices(inputs: Sequence[Param], outputs: Sequence[Param]) -> tuple[str, ...]:
    """The names of the indices, in the order in which they are declared.

    Raises:
        ValueError: There is none, one has a name that is taken, or outputs are reduced to several.
    """
    params = (*inputs, *outputs)
    names = tuple(dict.fromkeys(param.index for param in params if param.index))
    if not names:
        raise ValueError(
            'no parameter is read by an index, such as "T x[src]", and no output is reduced to '
            'one, such as "T out[dst]". Without an index use ElementwiseKernel.'
        )
    letters = {param.type for param in params if isinstance(param.type, str)}
    for name in names:
        taken = (*_TAKEN, *letters, *(param.name for param in params))
        if name in taken or keyword.iskeyword(name):
            raise ValueError(
                f"an index cannot be named {name!r}, which is the name of a parameter or a type, "
                f"a keyword of Python, or one of {', '.join(_TAKEN)}: the call takes it as a "
                "keyword argument."
            )
    reduced = dict.fromkeys(param.index for param in outputs if param.index)
    if len(reduced) > 1:
        raise ValueError(
            f"out_params: all reduced outputs must have one index, but they have "
            f"{' and '.join(reduced)}. Make a kernel for each."
        )
    for param in outputs:
        if param.raw:
            raise ValueError(
                f"out_params: {param.name} is raw, which an indexed kernel has no outputs of: "
                "entries run in no given order."
            )
    return names


def read_reductions(
    outputs: Sequence[Param], reduce: object, features: object
) -> tuple[Param, ...]:
    """The outputs with how each is reduced, or summed over features.

    Raises:
        TypeError: ``reduce`` or ``features`` is of another kind.
        ValueError: ``reduce`` names what there is not, or ``features`` an axis that does not count
            from the end, or there is no output that it is for.
    """
    reduced = [param.name for param in outputs if param.index]
    if isinstance(reduce, str):
        by_name = dict.fromkeys(reduced, reduce)
    elif isinstance(reduce, Mapping):
        by_name = dict.fromkeys(reduced, "sum") | dict(reduce)
    else:
        raise TypeError(
            "reduce must be a string or a dict from an output's name to one, but it is "
            f"{type(reduce).__name__}."
        )
    for name, how in by_name.items():
        if name not in reduced:
            raise ValueError(
                f"reduce names {name!r}, but the reduced outputs are "
                f"{', '.join(reduced) or 'none'}."
            )
        if how not in REDUCTIONS:
            raise ValueError(
                f"reduce must be one of {', '.join(REDUCTIONS)}"
                f"{f' for {name}' if isinstance(reduce, Mapping) else ''}, but it is {how!r}."
            )
    if isinstance(reduce, str) and reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, but it is {reduce!r}.")
    axes = _read_features(features)
    if axes and len(reduced) == len(outputs):
        raise ValueError(
            "features= is for outputs that have a row for each entry, but all of "
            f"{', '.join(reduced)} are reduced to rows. They keep their features."
        )
    return tuple(
        replace(param, reduce=by_name[param.name]) if param.index else replace(param, features=axes)
        for param in outputs
    )


def _read_features(features: object) -> tuple[int, ...]:
    if features is None:
        return ()
    if features == "sum":
        return (-1,)
    if isinstance(features, int) and not isinstance(features, bool):
        features = (features,)
    if not isinstance(features, tuple | list) or not all(
        isinstance(axis, int) and not isinstance(axis, bool) for axis in features
    ):
        raise TypeError(
            'features must be None, "sum" (over the last axis) or a tuple of axes, but it is '
            f"{features!r}."
        )
    if any(axis >= 0 for axis in features) or len(set(features)) < len(features):
        raise ValueError(
            "features must be axes that count from the end, each once, such as (-2, -1), but it "
            f"is {tuple(features)}."
        )
    return tuple(features)
