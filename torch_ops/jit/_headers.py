"""What tells the headers that a source includes from other versions of them: their contents."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch_ops.jit._cache import make_key, recall, remember

_INCLUDE = re.compile(
    rb"^[ \t]*(?:#|%:)[ \t]*(?:"
    rb'(?:include(?:_next)?|import)[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")'
    rb"|include(?:_next)?\b[ \t]*(\S+))",
    re.MULTILINE,
)
# A comment; or what may hold its signs, which stays: a name in <> and a text. One that nothing ends
# goes to the end, so that nobody looks for its end again.
_COMMENT = re.compile(
    rb"//[^\n]*|/\*.*?(?:\*/|\Z)"
    rb'|((?:include(?:_next)?|import)[ \t]*<[^>\n]*>|"(?:\\.|[^"\\\n])*")',
    re.DOTALL,
)
_CONTINUED = re.compile(rb"\\\r?\n")


class UnknownIncludeError(Exception):
    """An include whose file a macro names: which one it is only the compiler knows."""


def header_fingerprints(
    text: str, folders: Sequence[str], libraries: Sequence[str] = (), before: Sequence[str] = ()
) -> list[str]:
    """The contents of the headers that a source includes, directly or not, as hashes.

    Conditions are not looked at, so a header behind an ``#if`` that is false counts too. What is in
    none of the folders is left to the compiler, and so is an include that a macro names in a header
    of the compiler's own.

    Args:
        text: The source.
        folders: The user's folders, in the order of the search. A quoted include in a header is
            searched for beside that header first.
        libraries: Folders of the compiler's own, which are searched after these.
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
                contents = _contents(path)
                fingerprints[path] = hashlib.sha256(contents).hexdigest()
                pending += _includes_in(contents, os.path.dirname(path))
        elif (path := _find(libraries, name)) is not None and path not in fingerprints:
            fingerprints[path] = _library_fingerprint(path, libraries)
    # Where a header lies does not matter, what it is included as stands in the texts.
    return sorted(fingerprints.values())


# ---- the compiler's own -------------------------------------------------------------------------


class _Known(NamedTuple):
    """The contents of a header and all that it includes, and the files when they were read.

    Those that were looked for and not there are among them.
    """

    files: list[list[str | int]]
    fingerprint: str


def _library_fingerprint(path: str, libraries: Sequence[str]) -> str:
    """Of a header and all that it includes.

    These may be hundreds of files, more than can be read when a kernel is loaded from the cache. So
    what they hold is remembered in its folder, beside what the file system says of each, down to
    the time of the inode's last change, which nobody can set: none is read again until one of them
    was written to, replaced or moved.
    """
    key = make_key("headers", path, *libraries)
    facts = recall(key)
    if facts is not None:
        known = _Known(**facts)
        if all(_status(str(file[0])) == file for file in known.files):
            return known.fingerprint
    known = _read_library(path, libraries)
    remember(key, known._asdict())
    return known.fingerprint


def _read_library(path: str, libraries: Sequence[str]) -> _Known:
    hashes: list[str] = []
    # Looked at before it is read: what changes meanwhile is read again the next time.
    files = {path: _status(path)}
    pending = [path]
    while pending:
        path = pending.pop()
        contents = _contents(path)
        hashes.append(hashlib.sha256(contents).hexdigest())
        for name, own in _includes_in(contents, os.path.dirname(path), skip_unknown=True):
            for folder in [*([own] if own is not None else []), *libraries]:
                inner = os.path.normpath(os.path.join(folder, name))
                is_new = inner not in files
                if is_new:
                    files[inner] = _status(inner)
                if os.path.isfile(inner):
                    pending += [inner] * is_new
                    break
    return _Known(list(files.values()), make_key(*sorted(hashes)))


def _status(path: str) -> list[str | int]:
    try:
        status = os.stat(path)
    except OSError:
        return [path]
    return [path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


# ---- text ---------------------------------------------------------------------------------------


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _includes_in(
    contents: bytes, own: str | None, skip_unknown: bool = False
) -> list[tuple[str, str | None]]:
    contents = _CONTINUED.sub(b"", contents)
    if b"include" not in contents and b"import" not in contents:
        return []
    contents = _COMMENT.sub(lambda comment: comment[1] or b" ", contents)
    found = []
    for match in _INCLUDE.finditer(contents):
        angled, quoted, other = match.groups()
        if other is None:
            found.append((os.fsdecode(angled or quoted), own if quoted else None))
        elif not skip_unknown:
            raise UnknownIncludeError(other.decode(errors="replace"))
    return found


def _find(folders: Iterable[str], name: str) -> str | None:
    # An absolute name is that of a file wherever the search would look, also nowhere.
    for folder in [""] if os.path.isabs(name) else folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return os.path.realpath(path)
    return None
