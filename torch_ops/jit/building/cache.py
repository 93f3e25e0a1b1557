"""What was compiled, kept in memory and on disk.

An entry is one file, named by its key: a header with a SHA-256 of the rest, JSON, the artefact's
bytes. Entries are written to a file of another name and then renamed, so a reader sees a whole one
or none. Who compiles holds a lock on a file of the folder, so that of all processes and threads one
compiles and the others read what it wrote. Locks are the kernel's (flock): they end with their
process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

DEFAULT_LIMIT = 2**30
FOLDER_VARIABLE = "TORCH_OPS_CACHE_DIR"
LIMIT_VARIABLE = "TORCH_OPS_CACHE_LIMIT"

_MAGIC = b"torch_ops.jit 1\n"
_HEADER = len(_MAGIC) + 32 + 4
_ENTRY = ".kernel"
_NOTE = ".note"  # what is remembered, but no kernel
_PARTIAL = ".part"
_ABANDONED = 600.0  # seconds after which a partial file belongs to no writer any more
_IN_MEMORY = 1024  # entries; the kernels in use hold their own


@dataclass(frozen=True)
class Artefact:
    """What a compiler made, and what is to be known of it (JSON)."""

    data: bytes
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheInfo:
    """What :func:`cache_info` returns; counts are of this process.

    Attributes:
        hits: Look-ups that found their kernel, in memory or on disk.
        misses: Look-ups that did not.
        compiles: Compilations that succeeded. Fewer than misses where another process or thread
            compiled the same kernel at the same time, or a compilation failed.
        entries: Kernels on disk.
        bytes: What they and notes on CUDA's headers take on disk.
        path: The folder.
        limit: How many bytes the folder may hold.
    """

    __module__ = "torch_ops.jit"

    hits: int
    misses: int
    compiles: int
    entries: int
    bytes: int
    path: Path
    limit: int


def make_key(*parts: str | bytes) -> str:
    """Returns the SHA-256, in hexadecimal, of parts; no two lists of parts have the same text."""
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


# ---- the folder ---------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The folder of the environment; nothing is looked at or made."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(os.path.expanduser(named)).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "torch_ops"
    try:
        return Path.home() / ".cache" / "torch_ops"
    except RuntimeError as error:
        raise RuntimeError(
            "torch_ops.jit: this user has no home folder for the cache of compiled kernels: set "
            f"{FOLDER_VARIABLE}."
        ) from error


def cache_limit() -> int:
    """The limit of the environment, in bytes."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_LIMIT
    if not text.strip().isdecimal():
        raise RuntimeError(
            f"torch_ops.jit: {LIMIT_VARIABLE} must be a number of bytes, but it is {text!r}."
        )
    return int(text)


def _refuse(path: Path, reason: str) -> RuntimeError:
    return RuntimeError(
        f"torch_ops.jit: the cache folder {path} is refused: {reason}. Code is loaded from it, so "
        "it must be a folder that nobody else can write to. Mend it, or name another in "
        f"{FOLDER_VARIABLE}."
    )


class _NoFolderError(Exception):
    """There is no folder and none can be made, as on a read-only disk."""


def _make_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


@contextlib.contextmanager
def _open_folder() -> Iterator[int]:
    """A descriptor of the folder, made where there is none, and looked at before it is used.

    All that follows goes through the descriptor, so that what was looked at is what is used.

    Raises:
        RuntimeError: The folder is refused.
        _NoFolderError: There is none.
    """
    path = cache_folder()
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            _make_folder(path)
            descriptor = os.open(path, flags)
    except OSError as error:
        try:
            mode = path.lstat().st_mode
        except OSError:
            # Nothing is there, or nothing that this user could look at: nothing is loaded from it.
            raise _NoFolderError(str(error.strerror)) from error
        if stat.S_ISLNK(mode):
            raise _refuse(path, "it is a symbolic link") from None
        if not stat.S_ISDIR(mode):
            raise _refuse(path, "it is not a folder") from None
        raise _refuse(path, f"it cannot be opened ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise _refuse(path, f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(status.st_mode)
            raise _refuse(path, f"its group or all may write to it (mode {mode:o})")
        yield descriptor
    finally:
        os.close(descriptor)


# ---- entries ------------------------------------------------------------------------------------


def _pack(key: str, artefact: Artefact) -> bytes:
    facts = json.dumps({"key": key, **artefact.facts}).encode()
    rest = len(facts).to_bytes(4, "little") + facts + artefact.data
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def _unpack(key: str, content: bytes) -> Artefact | None:
    """The artefact, or None if this is not, byte for byte, what was written under the key."""
    if len(content) < _HEADER or not content.startswith(_MAGIC):
        return None
    rest = memoryview(content)[len(_MAGIC) + 32 :]
    if hashlib.sha256(rest).digest() != content[len(_MAGIC) : len(_MAGIC) + 32]:
        return None
    end = 4 + int.from_bytes(rest[:4], "little")
    facts = json.loads(bytes(rest[4:end]))
    if facts.pop("key") != key:
        return None
    return Artefact(bytes(rest[end:]), facts)


def _read(folder: int, key: str, suffix: str = _ENTRY) -> Artefact | None:
    try:
        # Not to be waited for, if it is a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(key + suffix, flags, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        return _unpack(key, file.read())


def _write(folder: int, key: str, artefact: Artefact, suffix: str = _ENTRY) -> None:
    content = _pack(key, artefact)
    limit = cache_limit()
    if len(content) > limit:
        return
    partial = f"{key}.{os.getpid()}.{threading.get_ident()}{_PARTIAL}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600, dir_fd=folder)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.rename(partial, key + suffix, src_dir_fd=folder, dst_dir_fd=folder)
        _remove_oldest(folder, limit)
    except OSError as error:
        # The kernel itself is there: a full disk must not stop who only wants to run it.
        _unlink(folder, partial)
        if suffix != _ENTRY:
            return  # nothing is lost
        _warn_not_kept(str(error.strerror))


def _warn_not_kept(reason: str) -> None:
    warnings.warn(
        f"torch_ops.jit: a compiled kernel could not be kept in {cache_folder()}: {reason}. It "
        "will be compiled again in the next process.",
        RuntimeWarning,
        stacklevel=2,
    )


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _files(folder: int) -> list[tuple[str, os.stat_result]]:
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # removed by another process just now
                files.append((entry.name, entry.stat(follow_symlinks=False)))
    return files


def _remove_oldest(folder: int, limit: int) -> None:
    """Brings the entries under the limit, and removes what killed writers left."""
    entries = []
    for name, status in _files(folder):
        if name.endswith((_ENTRY, _NOTE)):
            entries.append((status.st_mtime_ns, status.st_size, name))
        elif name.endswith(_PARTIAL) and time.time() - status.st_mtime > _ABANDONED:
            _unlink(folder, name)
    total = sum(size for _, size, _ in entries)
    for _, size, name in sorted(entries):
        if total <= limit:
            break
        _unlink(folder, name)
        total -= size


@contextlib.contextmanager
def _only_compiler(folder: int, key: str) -> Iterator[None]:
    """Holds the lock of a key, against all processes and threads.

    Keys share 256 lock files, which are never removed: a lock on a removed file excludes nobody.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(f"{key[:2]}.lock", flags, 0o600, dir_fd=folder)
    except OSError:
        # The file system is read-only or full: nothing will be written, so only threads wait.
        with _memory.compiling:
            yield
        return
    try:
        refused = _lock(lock)
        if refused is not None:
            with _memory.compiling:
                _warn_no_locks(cache_folder(), refused)
                yield
            return
        try:
            yield
        finally:
            # Said, not left to close: a child forked meanwhile has the descriptor too.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def _lock(descriptor: int) -> str | None:
    """Locks a file; returns the reason where its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        return str(error.strerror)
    return None


@cache
def _warn_no_locks(path: Path, reason: str) -> None:
    warnings.warn(
        f"torch_ops.jit: files in the cache folder {path} cannot be locked: {reason}. Kernels are "
        "kept there all the same, but processes that want one at the same time may each compile "
        f"it. {FOLDER_VARIABLE} names another folder.",
        RuntimeWarning,
        stacklevel=2,
    )


# ---- the cache ----------------------------------------------------------------------------------


class _Memory:
    """The entries that this process has used, and its counts."""

    def __init__(self) -> None:
        self.renew_locks()
        self.entries: OrderedDict[str, Artefact] = OrderedDict()
        self.hits = self.misses = self.compiles = 0

    def renew_locks(self) -> None:
        self.lock = threading.Lock()
        self.compiling = threading.Lock()  # where no file can be locked

    def get(self, key: str) -> Artefact | None:
        with self.lock:
            found = self.entries.get(key)
            if found is not None:
                self.entries.move_to_end(key)
                self.hits += 1
            return found

    def peek(self, key: str) -> Artefact | None:
        """Without counting."""
        with self.lock:
            return self.entries.get(key)

    def put(self, key: str, artefact: Artefact) -> None:
        with self.lock:
            self.entries[key] = artefact
            if len(self.entries) > _IN_MEMORY:
                self.entries.popitem(last=False)

    def count(self, *, hits: int = 0, misses: int = 0, compiles: int = 0) -> None:
        with self.lock:
            self.hits += hits
            self.misses += misses
            self.compiles += compiles


_memory = _Memory()
# Another thread of the parent may have held one when this process was forked.
os.register_at_fork(after_in_child=_memory.renew_locks)


def get_or_compile(key: str | None, compile: Callable[[], Artefact]) -> Artefact:
    """Returns what is kept under a key, and compiles it where nothing is.

    However many threads and processes ask for one key at once, ``compile`` is called once; the
    others wait. What it raises goes to its caller, and the next one tries again.

    Args:
        key: Of :func:`make_key`. None: of what is compiled not everything is known, so it is kept
            nowhere.
        compile: Makes the artefact.

    Raises:
        RuntimeError: The folder is refused.
    """
    if key is None:
        _memory.count(misses=1)
        return _compile(compile)
    found = _memory.get(key)
    if found is not None:
        return found
    try:
        with _open_folder() as folder:
            found = _from_folder(folder, key, compile)
    except _NoFolderError as error:
        found = _without_folder(key, compile, str(error))
    _memory.put(key, found)
    return found


def _from_folder(folder: int, key: str, compile: Callable[[], Artefact]) -> Artefact:
    found = _read(folder, key)
    if found is not None:
        _memory.count(hits=1)
        return found
    _memory.count(misses=1)
    cache_limit()  # raises before there is work that would be lost
    with _only_compiler(folder, key):
        # Another process or thread may have compiled it meanwhile.
        found = _read(folder, key) or _memory.peek(key)
        if found is None:
            found = _compile(compile)
            _memory.put(key, found)
            _write(folder, key, found)
    return found


def _without_folder(key: str, compile: Callable[[], Artefact], reason: str) -> Artefact:
    """Threads wait for each other all the same."""
    _memory.count(misses=1)
    with _memory.compiling:
        found = _memory.peek(key)
        if found is None:
            found = _compile(compile)
            _memory.put(key, found)
            _warn_not_kept(reason)
    return found


def _compile(compile: Callable[[], Artefact]) -> Artefact:
    artefact = compile()
    _memory.count(compiles=1)
    return artefact


def recall(key: str) -> dict[str, Any] | None:
    """What was remembered under a key; None where there is nothing, or nothing whole."""
    with contextlib.suppress(_NoFolderError), _open_folder() as folder:
        found = _read(folder, key, _NOTE)
        return None if found is None else found.facts
    return None


def remember(key: str, facts: dict[str, Any]) -> None:
    """Keeps facts (JSON) under a key, where that can be done."""
    with contextlib.suppress(_NoFolderError), _open_folder() as folder:
        _write(folder, key, Artefact(b"", facts), _NOTE)


def cache_info() -> CacheInfo:
    """Tells what the cache of compiled kernels did in this process, and what is on disk.

    Returns:
        A :class:`CacheInfo`, with the fields ``hits``, ``misses``, ``compiles``, ``entries``,
        ``bytes``, ``path`` and ``limit``.

    Raises:
        RuntimeError: The folder is refused: it belongs to another user, others may write to it, or
            it is a symbolic link. Or ``TORCH_OPS_CACHE_LIMIT`` is no number.

    Example:
        >>> import torch_ops.jit
        >>> info = torch_ops.jit.cache_info()
        >>> info.bytes <= info.limit
        True
    """
    files = []
    with contextlib.suppress(_NoFolderError), _open_folder() as folder:
        files = [
            (name, status.st_size)
            for name, status in _files(folder)
            if name.endswith((_ENTRY, _NOTE))
        ]
    return CacheInfo(
        hits=_memory.hits,
        misses=_memory.misses,
        compiles=_memory.compiles,
        entries=sum(name.endswith(_ENTRY) for name, _ in files),
        bytes=sum(size for _, size in files),
        path=cache_folder(),
        limit=cache_limit(),
    )


def clear_cache() -> None:
    """Removes all compiled kernels, from memory and from disk, and sets the counts to 0.

    Kernels that are loaded stay loaded and can be called. What other processes keep in memory
    stays there.

    Raises:
        RuntimeError: The folder is refused, as in :func:`cache_info`.

    Example:
        >>> import torch_ops.jit
        >>> torch_ops.jit.clear_cache()
        >>> torch_ops.jit.cache_info().entries
        0
    """
    with contextlib.suppress(_NoFolderError), _open_folder() as folder:
        for name, _ in _files(folder):
            if name.endswith((_ENTRY, _NOTE, _PARTIAL)):
                _unlink(folder, name)
    with _memory.lock:
        _memory.entries.clear()
        _memory.hits = _memory.misses = _memory.compiles = 0


for _function in (cache_info, clear_cache):
    _function.__module__ = "torch_ops.jit"
