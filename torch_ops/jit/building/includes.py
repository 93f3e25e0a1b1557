"""What tells the headers that a source includes from other versions of them: their contents."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from torch_ops.jit.building.cache import make_key, recall, remember

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
    text: str,
    folders: Sequence[str],
    libraries: Sequence[str] = (),
    before: Sequence[str] = (),
    own: str | None = None,
) -> list[str]:
    """What a source includes, directly or not, in order: each name with the contents found for it.

    Conditions are not looked at, so a header inside an ``#if`` that is false counts too; and so do
    all headers of one name, for a compiler searches some kinds of folders before others, and
    ``#include_next`` goes on to the next one. What is in none of the folders is left to the
    compiler, and so is an include that a macro names in a header of the compiler's own.

    Args:
        text: The source.
        folders: The user's folders. A quoted include in a header is searched for beside that header
            too.
        libraries: Folders of the compiler's own, which are searched after these.
        before: Headers that options put before the source; the working folder has them too.
        own: Where the compiler searches for the quoted includes of the source first.

    Raises:
        UnknownIncludeError: A macro stands where a file's name should.
    """
    fingerprints: list[str] = []
    numbers: dict[str, int] = {}  # of the headers found, by path
    # A name, and the folder of the header that it stands in quotes in; the next one stands last.
    pending: list[tuple[str, str | None]] = _includes_in(
        text.encode(errors="surrogateescape"), own
    )[::-1]
    pending += [(name, os.curdir) for name in reversed(before)]
    while pending:
        name, beside = pending.pop()
        # Where a header lies does not matter, but the number of its folder in the search does.
        found: list[str] = []
        inner: list[tuple[str, str | None]] = []
        for place, path in _find([beside or "", *folders], name):
            if path in numbers:
                found.append(f"{place}: header {numbers[path]} again")
                continue
            numbers[path] = len(numbers)
            contents = contents_of(path)
            found.append(f"{place}: {hashlib.sha256(contents).hexdigest()}")
            inner += _includes_in(contents, os.path.dirname(path))
        for _, path in _find(libraries, name)[:1]:
            if path not in numbers:
                numbers[path] = len(numbers)
                found.append(_library_fingerprint(path, libraries))
        fingerprints.append(make_key(name, *found))
        pending += reversed(inner)
    return fingerprints


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
        contents = contents_of(path)
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
    return _Known(list(files.values()), make_key(*hashes))


def _status(path: str) -> list[str | int]:
    try:
        status = os.stat(path)
    except OSError:
        return [path]
    return [path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


# ---- text ---------------------------------------------------------------------------------------


def contents_of(path: str) -> bytes:
    """Of a file that may not be read nothing: no compiler reads it either."""
    with contextlib.suppress(PermissionError), open(path, "rb") as file:
        return file.read()
    return b""


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


def _find(folders: Sequence[str], name: str) -> list[tuple[int, str]]:
    """The files of a name in folders, with the numbers of these.

    The folder of a path has no links, but the file may be one: its quoted includes are searched for
    where the link is.
    """
    # An absolute name is that of a file wherever the search would look, also nowhere.
    found = []
    for place, folder in enumerate([os.sep] if os.path.isabs(name) else folders):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path):
            own, file = os.path.split(path)
            found.append((place, os.path.join(os.path.realpath(own), file)))
    return found
