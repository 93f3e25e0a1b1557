"""The text that a compiler gets: strings of ours and of the user, and where each line came from."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# What compilers see as the file of the lines that are ours.
OURS = "torch_ops"


class UserText(NamedTuple):
    """A string that the user wrote, and what it is to them: ``"operation"``, ``"preamble"``.

    Attributes:
        name: What it is.
        text: What is compiled, line by line what was written.
        written: What was written, where that differs.
    """

    name: str
    text: str
    written: str | None = None


@dataclass(frozen=True)
class Source:
    """Pieces of source text in order, each ours (a str) or the user's.

    ``#line`` directives keep the two apart: an error in a user's string is reported by the
    compiler under that string's name, with the line within it.
    """

    pieces: tuple[str | UserText, ...]

    @staticmethod
    def of(*pieces: str | UserText) -> Source:
        """Joins pieces; each begins on a line of its own."""
        return Source(pieces)

    @property
    def text(self) -> str:
        """What the compiler gets."""
        lines = []
        for piece in self.pieces:
            name, text = (piece.name, piece.text) if isinstance(piece, UserText) else (OURS, piece)
            lines.append(f'#line 1 "{name}"\n{text}\n')
        return "".join(lines)

    def user_texts(self) -> dict[str, str]:
        """The user's strings by name."""
        return {
            piece.name: piece.text if piece.written is None else piece.written
            for piece in self.pieces
            if isinstance(piece, UserText)
        }


_INCLUDE = re.compile(
    rb'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:<([^>\n]+)>|"([^"\n]+)"|(\S+))', re.MULTILINE
)
_CONTINUED = re.compile(rb"\\\r?\n")


class UnknownIncludeError(Exception):
    """An include whose file a macro names: which one it is only the compiler knows."""


def header_fingerprints(
    text: str, folders: Sequence[str], libraries: Sequence[str] = (), before: Sequence[str] = ()
) -> list[str]:
    """What tells the headers that a source includes, directly or not, from other versions of them.

    Headers in ``folders`` count by their contents, followed into what they include. Those of the
    compiler's own libraries change with its version alone: there size and time stand for up to
    1.6 MB of text. Conditions are not looked at, so a header behind an ``#if`` that is false counts
    too. What is in none of the folders is left to the compiler.

    Args:
        text: The source.
        folders: The user's folders, in the order of the search. A quoted include in a header is
            searched for beside that header first.
        libraries: Folders that are searched after these.
        before: Headers that options put before the source.

    Raises:
        UnknownIncludeError: A macro stands where a file's name should.
    """
    fingerprints: dict[str, str] = {}
    # A name, and the folder of the header that it stands in quotes in.
    pending: list[tuple[str, str | None]] = [(name, os.getcwd()) for name in before]
    pending += _includes_in(text.encode(errors="surrogateescape"), None)
    while pending:
        name, own = pending.pop()
        path = _find([*([own] if own is not None else []), *folders], name)
        if path is not None:
            if path not in fingerprints:
                with open(path, "rb") as file:
                    contents = file.read()
                fingerprints[path] = hashlib.sha256(contents).hexdigest()
                pending += _includes_in(contents, os.path.dirname(path))
        elif (path := _find(libraries, name)) is not None:
            status = os.stat(path)
            fingerprints[path] = f"{status.st_size} {status.st_mtime_ns}"
    # Where a header lies does not matter, what it is included as stands in the texts.
    return sorted(fingerprints.values())


def _includes_in(contents: bytes, own: str | None) -> list[tuple[str, str | None]]:
    if b"include" not in contents:
        return []
    found = []
    for match in _INCLUDE.finditer(_CONTINUED.sub(b"", contents)):
        angled, quoted, other = match.groups()
        if other is not None:
            raise UnknownIncludeError(other.decode(errors="replace"))
        found.append((os.fsdecode(angled or quoted), own if quoted else None))
    return found


def _find(folders: Iterable[str], name: str) -> str | None:
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return os.path.realpath(path)
    return None
