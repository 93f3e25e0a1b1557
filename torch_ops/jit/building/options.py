"""What a compiler reads besides the source because its options say so."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from torch_ops.jit.building.includes import UnknownIncludeError, contents_of

# Those of g++ and clang++ in one word take their value in the same one, without a sign between.
_JOINED = ("-I", "-isystem", "-iquote", "-idirafter", "-include", "-imacros", "-L", "-l")
_WITH_FOLDER = (
    *("-I", "--include-path", "--include-directory", "-isystem", "-iquote"),
    *("-idirafter", "--include-directory-after"),
)
_WITH_HEADER = ("-include", "--include", "--pre-include", "-imacros", "--imacros")
_WITH_LIBRARY_FOLDER = ("-L", "--library-directory")
_WITH_LIBRARY = ("-l", "--library")
# What follows is an option of the preprocessor, or of the compiler behind the driver.
_PASS_ON = ("-Xpreprocessor", "-Xclang")


class ReadOptions(NamedTuple):
    """What options name.

    Attributes:
        headers: Headers that are included before the source.
        folders: Folders in which headers are searched for.
        files: Other files, such as objects, archives and profiles, with hashes of their contents.
        words: The options, also those that stand in files (``@file``).
    """

    headers: list[str]
    folders: list[str]
    files: list[str]
    words: list[str]


def read_options(options: Sequence[str]) -> ReadOptions:
    """Finds what options name: NVRTC's, g++'s, clang++'s.

    Raises:
        UnknownIncludeError: A file of options cannot be taken apart.
    """
    words = _words(options)
    libraries = values_of(words, _WITH_LIBRARY)
    paths = [part for word in words for part in (word, *re.split("[=,]", word)[1:])]
    for folder in values_of(words, _WITH_LIBRARY_FOLDER):
        for name in libraries:
            for file in (f"lib{name}.a", f"lib{name}.so", name.removeprefix(":")):
                paths.append(os.path.join(folder, file))
    files = [
        f"{path}: {hashlib.sha256(contents_of(path)).hexdigest()}"
        for path in dict.fromkeys(paths)
        if os.path.isfile(path)
    ]
    headers, folders = (values_of(words, names) for names in (_WITH_HEADER, _WITH_FOLDER))
    return ReadOptions(headers, folders, files, words)


def values_of(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """What follows options of these names: ``-I x``, ``-Ix``, ``--include-path=x``."""
    return split_options(options, names)[0]


def split_options(options: Sequence[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of options of these names, and the other options."""
    found, others = [], []
    following = False
    for option in options:
        if following:
            found.append(option)
            following = False
        elif option in names:
            following = True
        else:
            for name in names:
                if option.startswith((name + "=", name + " ")) or (
                    name in _JOINED and option.startswith(name)
                ):
                    found.append(option[len(name) :].lstrip("= "))
                    break
            else:
                others.append(option)
    return found, others


def _words(options: Sequence[str], within: tuple[str, ...] = ()) -> list[str]:
    """The options, with those that stand in files and those that are handed on."""
    words = []
    for option in options:
        path = option[1:]
        if option.startswith("@") and os.path.isfile(path) and path not in within:
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    inner = shlex.split(file.read())
            except (OSError, ValueError):
                raise UnknownIncludeError(option) from None
            words += [option, *_words(inner, (*within, path))]
        elif option.startswith("-Wp,"):
            words += option.split(",")[1:]
        elif option not in _PASS_ON:
            words.append(option)
    return words
