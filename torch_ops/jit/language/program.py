"""What an elementwise kernel computes for one element: the user's snippet, or a derivative of it.

A derivative is a program too, so derivatives of derivatives need nothing of their own. Its text
holds the text of the program that it is the derivative of, over dual numbers (headers/dual/dual.h).

Types of the text have a level: the snippet itself is at level 0, the derivative around it at level
1, and so on. What is float at the outermost level is ``Dual<float, n>`` at the one below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from torch_ops.jit.building.source import UserText
from torch_ops.jit.language.params import Param
from torch_ops.jit.language.ternary import declared_doubles, pick_in_branches

Pieces = list["str | UserText"]

C_TYPES = {
    torch.bool: "bool",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
    # The types in which a snippet computes on 16-bit floats.
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "torch_ops::complex<float>",
    torch.complex128: "torch_ops::complex<double>",
}


def is_differentiable(dtype: torch.dtype) -> bool:
    """Does a dual number take the place of values of the dtype?"""
    return dtype.is_floating_point


@dataclass(frozen=True)
class Types:
    """The dtypes that the types of one call stand for."""

    by_type: Mapping[torch.dtype | str, torch.dtype]

    @staticmethod
    def of(params: Sequence[Param], computed: Sequence[torch.dtype]) -> Types:
        """By what each parameter is computed in. In code a wide one differs in nothing."""
        return Types({param.type: dtype for param, dtype in zip(params, computed, strict=True)})

    def dtype(self, param: Param) -> torch.dtype:
        """What a parameter is computed in; float32 and the 16-bit types are one here."""
        return self.by_type[param.type] if isinstance(param.type, str) else param.type

    def name(self, param: Param, level: int) -> str:
        """The C++ type of a parameter's variable."""
        dtype = self.dtype(param)
        c_type = C_TYPES[dtype]
        return f"torch_ops_{c_type}_{level}" if is_differentiable(dtype) else c_type


@dataclass(frozen=True)
class Snippet:
    """What the user wrote.

    Attributes:
        operation: For each element.
        title: The name of the string: ``"operation"``, or ``"backward"``.
        preamble: At the top of the file.
        loop_prep: Before a thread's elements.
        after_loop: Behind them.
        scratch: Variables that the operation may write and nobody reads.
    """

    operation: str
    title: str = "operation"
    preamble: str = ""
    loop_prep: str = ""
    after_loop: str = ""
    scratch: tuple[Param, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return self.preamble, self.loop_prep, self.operation, self.after_loop


@dataclass(frozen=True)
class Program:
    """A kernel's parameters and what it does with an element.

    Attributes:
        name: As the user knows the kernel.
        inputs: The input parameters.
        outputs: The output parameters.
        snippet: Of the user, at level 0.
        parent: What this is the derivative of. None: the snippet itself.
        kind: ``"vjp"`` (gradients) or ``"jvp"`` (tangents) of ``parent``.
        wanted: With respect to which of the parent's inputs.
        given: Of a vjp, which of the parent's outputs have a gradient; empty: all.
        indices: Of an indexed kernel: the names of its indices.
    """

    name: str
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    snippet: Snippet
    parent: Program | None = None
    kind: str = ""
    wanted: tuple[bool, ...] = field(default=())
    given: tuple[bool, ...] = field(default=())
    indices: tuple[str, ...] = field(default=(), repr=False)

    @property
    def depth(self) -> int:
        """How many derivatives lie between this and the snippet."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def tangents(self) -> int:
        """How many derivatives the dual numbers of the level below carry."""
        return 1 if self.kind == "jvp" else sum(self.wanted)

    def vjp(
        self, wanted: Sequence[bool], wide: Sequence[bool], given: Sequence[bool] = ()
    ) -> Program:
        """The program of the gradients with respect to the inputs ``wanted``.

        An output that is not ``given`` has no gradient: a factor of 0 would make NaN of its
        infinite slopes. Where the outputs are reduced to the largest or smallest, it takes which
        entries those are as inputs after the outputs' gradients.
        """
        new_name = self._new_names()
        grads = tuple(
            Param(new_name("grad_" + out.name), out.type, wide=out.wide, index=out.index)
            for out in self.outputs
        )
        winners = self._winners(new_name)
        first = len(grads) + len(winners) if self.indices else -1
        outputs = tuple(
            Param(
                new_name("grad_" + param.name),
                param.type,
                wide=is_wide or param.wide,
                like=first + number if self.indices else -1,
                index=param.index,
                reduce="sum" if param.index else "",
            )
            for number, (param, is_wanted, is_wide) in enumerate(
                zip(self.inputs, wanted, wide, strict=True)
            )
            if is_wanted
        )
        inputs = (*grads, *winners, *(replace(param, like=-1) for param in self.inputs))
        return replace(
            self,
            inputs=inputs,
            outputs=outputs,
            parent=self,
            kind="vjp",
            wanted=tuple(wanted),
            given=tuple(given),
        )

    def jvp(self, wanted: Sequence[bool]) -> Program:
        """The program of the outputs' tangents, from tangents of the inputs ``wanted``.

        It takes what :meth:`vjp` takes of entries after the tangents.
        """
        new_name = self._new_names()
        tangents = tuple(
            Param(new_name("tangent_" + param.name), param.type, wide=param.wide, index=param.index)
            for param, is_wanted in zip(self.inputs, wanted, strict=True)
            if is_wanted
        )
        outputs = tuple(
            replace(
                out,
                name=new_name("tangent_" + out.name),
                reduce="sum" if out.is_best else out.reduce,
            )
            for out in self.outputs
        )
        return replace(
            self,
            inputs=(*self.inputs, *tangents, *self._winners(new_name)),
            outputs=outputs,
            parent=self,
            kind="jvp",
            wanted=tuple(wanted),
        )

    def _winners(self, new_name: Callable[[str], str]) -> tuple[Param, ...]:
        return tuple(
            Param(new_name("winner_" + out.name), torch.int64, index=out.index)
            for out in self.outputs
            if out.is_best
        )

    def _new_names(self) -> Callable[[str], str]:
        """Makes names that no parameter has, nor any that it made before."""
        taken = {param.name for param in (*self.inputs, *self.outputs)}

        def new_name(name: str) -> str:
            while name in taken:
                name += "_"
            taken.add(name)
            return name

        return new_name

    # ---- text

    def type_aliases(self, types: Types) -> str:
        """Declares the types of all levels, and the placeholders as those of level 0."""
        lines = []
        for c_type in ("float", "double"):
            lines.append(f"using torch_ops_{c_type}_{self.depth} = {c_type};")
            program: Program | None = self
            while program is not None and program.parent is not None:
                level = program.depth
                lines.append(
                    f"using torch_ops_{c_type}_{level - 1} = "
                    f"torch_ops::Dual<torch_ops_{c_type}_{level}, {program.tangents}>;"
                )
                program = program.parent
        for placeholder in types.by_type:
            if isinstance(placeholder, str):
                lines.append(f"using {placeholder} = {types.name(Param('', placeholder), 0)};")
        return "\n".join(lines)

    def preamble(self) -> UserText:
        """The user's functions, which a derivative may call on dual numbers."""
        return _over_duals("preamble", self.snippet.preamble, self.depth)

    def loop_prep(self) -> UserText:
        """What the user does before a thread's elements; empty: nothing."""
        return _over_duals("loop_prep", self.snippet.loop_prep, self.depth, self._doubles())

    def after_loop(self) -> UserText:
        """What the user does after a thread's elements; empty: nothing."""
        return _over_duals("after_loop", self.snippet.after_loop, self.depth, self._doubles())

    def _doubles(self) -> list[str]:
        """Names that may be doubles beside dual numbers over float."""
        raws = [param.name for param in (*self.inputs, *self.outputs) if param.raw]
        return raws + declared_doubles(self.snippet.loop_prep)

    def element(self, types: Types, depth: int | None = None) -> Pieces:
        """Computes the outputs' variables from the inputs', all of this program's level.

        ``depth`` is that of the program that this is a part of: its own unless given.
        """
        depth = self.depth if depth is None else depth
        if self.parent is None:
            scratch = "".join(
                f"{types.name(param, 0)} {param.name}{{}};\n" for param in self.snippet.scratch
            )
            # A function and a loop of its own, so that return, break and continue end the element.
            return [
                "[&]() TORCH_OPS_INLINE -> void { do {\n" + scratch,
                _over_duals(
                    self.snippet.title, self.snippet.operation, depth, self._doubles()
                )._replace(end="; } while (false); }();"),
            ]
        parent, level = self.parent, self.depth
        values = [param for param in parent.inputs if not param.raw]
        inner = [f"const {types.name(param, level - 1)}& {param.name}" for param in values]
        inner += [f"{types.name(param, level - 1)}& {param.name}" for param in parent.outputs]
        given = [
            (f"@{param.name}_{level}" if self._is_dual(param, types) else param.name)
            for param in values
        ]
        given += [f"@{param.name}_{level}" for param in parent.outputs]
        return [
            "[&]() TORCH_OPS_INLINE {\n"
            + self._seeds(parent, types)
            + f"[&]({', '.join(inner)}) TORCH_OPS_INLINE {{\n",
            *parent.element(types, depth),
            f"}}({', '.join(given)});\n" + self._results(parent, types) + "}();",
        ]

    @staticmethod
    def _is_dual(param: Param, types: Types) -> bool:
        return is_differentiable(types.dtype(param))

    def _seeds(self, parent: Program, types: Types) -> str:
        """The parent's inputs as dual numbers, and its outputs."""
        lines = []
        number = 0
        tangents = iter(self.inputs[len(parent.inputs) :])
        for param, wanted in zip(parent.inputs, self.wanted, strict=True):
            tangent = next(tangents) if wanted and self.kind == "jvp" else None
            if not param.raw and self._is_dual(param, types):
                dual = types.name(param, self.depth - 1)
                if tangent is not None:
                    value = f"{dual}({param.name}, {{{{{tangent.name}}}}})"
                else:
                    seed = number if wanted else -1
                    value = f"torch_ops::variable<{self.tangents}>({param.name}, {seed})"
                lines.append(f"const {dual} @{param.name}_{self.depth} = {value};")
            number += wanted
        for out in parent.outputs:
            lines.append(f"{types.name(out, self.depth - 1)} @{out.name}_{self.depth}{{}};")
        return "\n".join(lines) + "\n"

    def _results(self, parent: Program, types: Types) -> str:
        duals = [out for out in parent.outputs if self._is_dual(out, types)]
        best = [out.name for out in parent.outputs if out.is_best]
        first = len(parent.outputs) if self.kind == "vjp" else len(self.inputs) - len(best)
        winners = dict(zip(best, self.inputs[first:], strict=False))

        def selected(out: Param, value: str) -> str:
            winner = winners.get(out.name)
            return value if winner is None else f"torch_ops::selected(i == {winner.name}, {value})"

        lines = []
        if self.kind == "jvp":
            for own, out in zip(self.outputs, parent.outputs, strict=True):
                tangent = f"torch_ops::tangent_of(@{out.name}_{self.depth}, 0)"
                value = selected(out, tangent) if out in duals else "0"
                lines.append(f"{own.name} = {value};")
            return "\n".join(lines) + "\n"
        grads = {
            out.name: selected(out, grad.name)
            for out, grad in zip(parent.outputs, self.inputs, strict=False)
        }
        given = self.given or [True] * len(parent.outputs)
        summed = [out for out, has in zip(parent.outputs, given, strict=True) if has]
        for number, own in enumerate(self.outputs):
            terms = [
                f"torch_ops::scaled(torch_ops::tangent_of(@{out.name}_{self.depth}, {number}), "
                f"{grads[out.name]})"
                for out in summed
                if out in duals
            ]
            name = types.name(own, self.depth)
            lines.append(f"{own.name} = static_cast<{name}>({' + '.join(terms) or '0'});")
        return "\n".join(lines) + "\n"


def _over_duals(name: str, text: str, depth: int, raws: Sequence[str] = ()) -> UserText:
    return UserText(name, pick_in_branches(text, raws) if depth else text, text)


# ---- what a snippet does, as far as its text tells ----------------------------------------------

# A number first: its ' separates digits, and begins no character.
_COMMENT = re.compile(
    r"(?P<number>(?<![\w.])\.?\d(?:'\w|[\w.])*)"
    r"|//(?:[^\n\\]|\\.)*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'",
    re.DOTALL,
)


def without_comments(text: str) -> str:
    """The text with comments and strings blanked, line by line as it was."""
    return _COMMENT.sub(lambda at: at["number"] or re.sub(r"[^\n]", " ", at[0]), text)


def mentions(text: str, name: str) -> bool:
    """Does an identifier occur in the text?"""
    return re.search(rf"(?<![\w.]){re.escape(name)}\b", without_comments(text)) is not None


def surely_assigns(text: str, name: str, macros: Mapping[str, str] | None = None) -> bool:
    """Is a variable assigned before it is read, whatever the values? False where it is not plain.

    A variable for which it is false starts as what its tensor holds.

    Args:
        text: The snippet.
        name: The variable.
        macros: Of :func:`defined_macros`.
    """
    text = without_comments(text)
    found = re.search(rf"(?<![\w.]){re.escape(name)}\b", text)
    if found is None:
        return False
    before, behind = text[: found.start()], text[found.end() :]
    statement = re.match(r"\s*=(?!=)([^;]*)", behind)
    return (
        statement is not None
        and re.search(r"(?:^|[;}])\s*\Z", before) is not None
        and before.count("{") == before.count("}")
        and before.count("(") == before.count(")")
        and _CONDITION.search(before) is None
        and not may_mean(before + statement[1], {name, *_LEAVES}, macros or {})
    )


def check_assigned(
    text: str, outputs: Iterable[Param], macros: Mapping[str, str], title: str = "operation"
) -> None:
    """Refuses a text that surely assigns an output nowhere. Raw ones may be written elsewhere.

    An output may be assigned by a macro, through a pointer or a reference, or by a function that it
    is an argument of.

    Raises:
        ValueError: There is such an output.
    """
    text = without_comments(re.sub(r"\\\r?\n", " ", text))
    for param in outputs:
        name = rf"(?<![\w.]){re.escape(param.name)}\b"
        written = (
            rf"{name}(?:[^;{{}}]*\))?\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)",  # also (c ? y : z) = x
            rf"{name}\s*(?:\+\+|--|\.|\[)|(?:\+\+|--|&|&\s*\))\s*{name}",
            rf"[({{,]\s*{name}\s*[,}})]",
            rf"&\s*\w+\s*=[^;]*{name}",
        )
        if (
            not param.raw
            and not re.search("|".join(written), text)
            and not may_mean(re.sub(name, " ", text), {param.name}, macros)
        ):
            raise ValueError(
                f"{title} assigns the output {param.name} nowhere. Write {param.name} = ..."
            )


_CONDITION = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:if|el|end)", re.MULTILINE)
_LEAVES = ("return", "break", "continue", "goto")
_MACRO = re.compile(r"[A-Z][A-Z0-9_]+")
_CONSTANT = re.compile(r"M_\w+|INFINITY|NAN|HUGE_VALF?|\w+_(?:MAX|MIN|EPSILON)")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)]*\))?(.*)", re.MULTILINE)


def defined_macros(texts: Iterable[str], options: Iterable[str] = ()) -> dict[str, str]:
    """What texts and options (``-DNAME=body``) define; a body is all that a name may stand for."""
    found = [pair for text in texts for pair in _DEFINE.findall(re.sub(r"\\\r?\n", " ", text))]
    found += [
        re.split(r"[=(]", option[2:], maxsplit=1) for option in options if option.startswith("-D")
    ]
    macros: dict[str, str] = {}
    for name, *body in found:
        macros[name] = " ".join([macros.get(name, ""), *body])
    return macros


def may_mean(text: str, words: set[str], macros: Mapping[str, str]) -> bool:
    """May a text have one of the words, or braces or ## in a macro, once those are expanded?"""
    pending, seen = [text], set()
    while pending:
        for word in re.findall(r"(?<![\w.])[A-Za-z_]\w*", without_comments(pending.pop())):
            if word in words:
                return True
            if word in macros and word not in seen:
                if re.search(r"[{}]|##", macros[word]):
                    return True
                pending.append(macros[word])
            elif word not in seen and _MACRO.fullmatch(word) and not _CONSTANT.fullmatch(word):
                return True
            seen.add(word)
    return False
