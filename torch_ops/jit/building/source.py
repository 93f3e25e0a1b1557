"""The text that a compiler gets: strings of ours and of the user, and where each line came from."""

from __future__ import annotations

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
        end: What of ours ends it. Compilers report an unfinished text there.
    """

    name: str
    text: str
    written: str | None = None
    end: str = ""


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
            if isinstance(piece, UserText) and piece.end:
                last = text.count("\n") + 1
                lines.append(f'#line {last} "{name}"\n{piece.end}\n')
        return "".join(lines)

    def user_texts(self) -> dict[str, str]:
        """The user's strings by name."""
        return {
            piece.name: piece.text if piece.written is None else piece.written
            for piece in self.pieces
            if isinstance(piece, UserText)
        }
