"""The language that parameters are declared in: ``"T x, raw float32 w"``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torch_ops.jit.building.options import values_of

# The names that a declared type may have; NumPy's, and bfloat16.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}

# What types of other tools are here.
_OF_C = {"float": "float32", "double": "float64", "half": "float16", "int": "int32"}

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
# Of the variables of generated code.
OUR_PREFIX = "torch_ops_"
_STANDARDS = ("c++14", "c++17", "c++20")  # that generated text and NVRTC take

_RESERVED = {"i", "_ind"}
# Of C++: keywords, other spellings of operators, and macros of <cmath> and <cstddef>.
_OF_CPP = re.compile(
    r"""(?:
    alignas | alignof | and | and_eq | asm | auto | bitand | bitor | bool | break | case |
    catch | char | char8_t | char16_t | char32_t | class | co_await | co_return | co_yield |
    compl | concept | const | const_cast | consteval | constexpr | constinit | continue |
    decltype | default | delete | do | double | dynamic_cast | else | enum | explicit | export
    | extern | false | float | for | friend | goto | if | inline | int | long | mutable |
    namespace | new | noexcept | not | not_eq | nullptr | operator | or | or_eq | private |
    protected | public | register | reinterpret_cast | requires | return | short | signed |
    sizeof | static | static_assert | static_cast | struct | switch | template | this |
    thread_local | throw | true | try | typedef | typeid | typename | union | unsigned | using
    | virtual | void | volatile | wchar_t | while | xor | xor_eq | NULL | NAN | INFINITY |
    ptrdiff_t | EXIT_\w+ | RAND_MAX | FP_\w+ | __\w+__ | _[A-Z]\w* |
    HUGE_VAL | HUGE_VALF | M_E | M_LOG2E | M_LOG10E | M_LN2 | M_LN10 | M_PI | M_PI_2 | M_PI_4
    | M_1_PI | M_2_PI | M_2_SQRTPI | M_SQRT2 | M_SQRT1_2
    )\Z""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Param:
    """One parameter as it was declared.

    Attributes:
        name: The variable of the snippet.
        type: A dtype, or the letter of a placeholder.
        raw: The snippet indexes it.
        wide: float32 where the type comes out as float16 or bfloat16.
        like: Of a raw output that the call makes: the input whose shape it has. -1: none. Of an
            indexed kernel's derivative, of every output.
        index: Of an indexed kernel: the index that it is read by, or reduced to.
        reduce: How an output with an index is reduced: ``"sum"``, ``"mean"``, ``"amax"``,
            ``"amin"``.
        features: The axes of the features that an output without an index is summed over.
    """

    name: str
    type: torch.dtype | str
    raw: bool = False
    wide: bool = False
    like: int = -1
    # Not in what it prints as, which tells kernels without indices apart.
    index: str = field(default="", repr=False)
    reduce: str = field(default="", repr=False)
    features: tuple[int, ...] = field(default=(), repr=False)

    @property
    def is_best(self) -> bool:
        """An output that is one of the values of a row's entries."""
        return self.reduce in ("amax", "amin")

    def facts(self) -> tuple[str, torch.dtype | str, bool, bool, int]:
        """As the C++ side takes it."""
        return (self.name, self.type, self.raw, self.wide, self.like)


def parse_params(text: str, what: str, *, indexed: bool = False) -> tuple[Param, ...]:
    """Reads ``"T x, raw float32 w"``.

    Args:
        text: The declarations.
        what: ``"in_params"`` or ``"out_params"``, for errors.
        indexed: A name may be followed by that of an index, ``"T x[src]"``.

    Raises:
        TypeError: ``text`` is no string, or names a type that there is not.
        ValueError: A declaration is no type and name, or two have one name.
    """
    if not isinstance(text, str):
        raise TypeError(
            f'{what} must be a string such as "T x, T y", but it is {type(text).__name__}.'
        )
    params: list[Param] = []
    for part in text.split(",") if text.strip() else []:
        declared, index = _split_index(part, what) if indexed else (part, "")
        words = declared.split()
        raw = len(words) == 3 and words[0] == "raw"
        if "*" in declared:
            raise ValueError(
                f"{what}: {part.strip()!r} must be without *. A parameter is one element of a "
                'tensor, as in "float32 x", or an array that the snippet indexes, "raw float32 x".'
            )
        if len(words) != 2 and not raw:
            raise ValueError(
                f'{what}: {part.strip()!r} must be a type and a name, such as "T x", or "raw T x".'
            )
        if raw and index:
            raise ValueError(
                f"{what}: {part.strip()!r} is raw, so the snippet indexes it: leave out raw, or "
                f"[{index}]."
            )
        type_name, name = words[-2:]
        reserved = name in _RESERVED or _OF_CPP.match(name) or name.startswith(OUR_PREFIX)
        if reserved or not _IDENTIFIER.match(name):
            raise ValueError(
                f"{what}: {name!r} cannot be the name of a parameter: it must be an identifier, "
                "not a keyword or macro of C++, and not begin with torch_ops_; and i and _ind have "
                "a meaning of their own."
            )
        if any(name == other.name for other in params):
            raise ValueError(f"{what}: two parameters are named {name!r}.")
        params.append(Param(name, parse_type(type_name, what), raw, index=index))
    return tuple(params)


def _split_index(part: str, what: str) -> tuple[str, str]:
    """``"T x[src]"`` as ``"T x"`` and ``"src"``."""
    found = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\]\s*", part)
    if found is None:
        if "[" in part or "]" in part:
            raise ValueError(
                f'{what}: {part.strip()!r} must be a type and a name, such as "T x", with one '
                'index in brackets at most: "T x[src]".'
            )
        return part, ""
    name = found[2].strip()
    if not _IDENTIFIER.match(name) or name.startswith(OUR_PREFIX):
        raise ValueError(
            f"{what}: {name!r} cannot be the name of an index: it must be an identifier, as the "
            "call takes it as a keyword argument, and none of torch_ops_."
        )
    return found[1], name


def parse_type(name: str, what: str) -> torch.dtype | str:
    """A dtype's name, or a letter that stands for one."""
    if name in DTYPES:
        return DTYPES[name]
    if len(name) == 1 and name.isalpha() and name.isascii() and name not in _RESERVED:
        return name
    meant = _OF_C.get(name, re.sub(r".*\.|_t$", "", name))
    instead = f" Write {meant}." if meant in DTYPES else ""
    raise TypeError(
        f"{what}: there is no type {name!r}.{instead} A type is one letter but i, which stands for "
        f"whatever dtype the arguments have, or one of {', '.join(DTYPES)}."
    )


def check_text(what: str, text: object) -> None:
    """Refuses what no source can be made of.

    Raises:
        TypeError: It is no string.
        ValueError: It has half of a surrogate pair, which no encoding has.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a string, but it is {type(text).__name__}.")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be text, but character {error.start} is half of a surrogate pair: "
            f"{text[error.start]!r}."
        ) from None


_LONG_LONG = r"long\s+long(?:\s+int)?"
_WIDE_TYPEDEF = re.compile(
    rf"\btypedef\s+(?:unsigned\s+{_LONG_LONG}\s+uint64_t|(?:signed\s+)?{_LONG_LONG}\s+int64_t)\s*;"
    rf"|\busing\s+(?:uint64_t\s*=\s*unsigned|int64_t\s*=(?:\s*signed)?)\s+{_LONG_LONG}\s*;"
)


def without_wide_typedefs(preamble: str) -> str:
    """Blanks out ``typedef unsigned long long uint64_t;`` and the like outside all braces.

    Generated text has these names: for NVRTC as such types, for the CPU as those of <cstdint>,
    which are ``long`` there, so that the declaration would be another one of the same name.
    """

    def blank(found: re.Match[str]) -> str:
        before = preamble[: found.start()]
        is_outside = before.count("{") == before.count("}")
        return re.sub(r"\S", " ", found[0]) if is_outside else found[0]

    return _WIDE_TYPEDEF.sub(blank, preamble)


def check_options(options: object) -> None:
    """Refuses options of a compiler that are no sequence of strings."""
    if (
        isinstance(options, str)
        or not isinstance(options, Sequence)
        or not all(isinstance(option, str) for option in options)
    ):
        raise TypeError(f"options must be a tuple of strings, but it is {options!r}.")
    check_text("options", "".join(options))
    check_standard(options)


def check_standard(options: Sequence[str]) -> None:
    """Refuses options that ask for a C++ in which generated text cannot be written."""
    for standard in values_of(options, ("-std", "--std")):
        if standard not in _STANDARDS:
            raise ValueError(
                f"options: -std={standard} is none that kernels are compiled by. Leave it out "
                "(C++17 is the default), or give c++14, c++17 or c++20."
            )


def check_names(inputs: tuple[Param, ...], outputs: tuple[Param, ...], name: str) -> None:
    """Refuses names that generated code could not have."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"name must be an identifier, but it is {name!r}.")
    if not outputs:
        raise ValueError("out_params must declare an output at least.")
    seen: set[str] = set()
    letters = {param.type for param in (*inputs, *outputs) if isinstance(param.type, str)}
    for param in (*inputs, *outputs):
        if param.name in seen or param.name in letters:
            raise ValueError(
                f"the parameter {param.name} has the name of another parameter or of a type."
            )
        seen.add(param.name)
