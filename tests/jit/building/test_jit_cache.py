"""The cache of compiled kernels: who may use its folder, and what becomes of broken entries."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jit_tools import forget, in_processes

from torch_ops import jit
from torch_ops.jit.building import cache
from torch_ops.jit.building.cache import Artefact, get_or_compile, make_key


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, empty."""
    path = tmp_path / "kernels"
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", str(path))
    monkeypatch.delenv("TORCH_OPS_CACHE_LIMIT", raising=False)
    jit.clear_cache()
    return path


class Compiler:
    """Makes an artefact and counts how often."""

    def __init__(self, data: bytes = b"code", **facts: Any) -> None:
        self.artefact = Artefact(data, facts)
        self.calls = 0

    def __call__(self) -> Artefact:
        self.calls += 1
        return self.artefact


def never() -> Artefact:
    pytest.fail("it was compiled again")


def entry_of(folder: Path, key: str) -> Path:
    return folder / f"{key}.kernel"


def counts() -> tuple[int, int, int, int]:
    info = jit.cache_info()
    return info.hits, info.misses, info.compiles, info.entries


# ---- what is kept


def test_parts_of_a_key_are_kept_apart() -> None:
    keys = [make_key(), make_key(""), make_key("ab", "c"), make_key("a", "bc"), make_key("abc")]
    assert len(set(keys)) == len(keys)
    assert make_key("ab", "c") == make_key(b"ab", "c")
    assert all(len(key) == 64 for key in keys)


def test_compiled_once_then_in_memory_then_on_disk(folder: Path) -> None:
    compiler = Compiler(bytes(range(256)), names={"relu": "_Z4relu"}, log="ä\n")
    key = make_key("kept")
    assert counts() == (0, 0, 0, 0)
    assert get_or_compile(key, compiler) == compiler.artefact
    assert counts() == (0, 1, 1, 1)
    assert get_or_compile(key, never) == compiler.artefact
    assert counts() == (1, 1, 1, 1)
    forget()
    assert get_or_compile(key, never) == compiler.artefact
    assert counts() == (2, 1, 1, 1)
    assert compiler.calls == 1
    info = jit.cache_info()
    assert info.path == folder
    assert info.bytes == entry_of(folder, key).stat().st_size > 256
    assert info.limit == 2**30


def test_without_a_key_nothing_is_kept(folder: Path) -> None:
    compiler = Compiler()
    for _ in range(2):
        get_or_compile(None, compiler)
    assert counts() == (0, 2, 2, 0)


def test_clear_cache(folder: Path) -> None:
    key = make_key("cleared")
    get_or_compile(key, Compiler())
    (folder / f"{key}.1.2.part").write_bytes(b"of a killed process")
    jit.clear_cache()
    assert counts() == (0, 0, 0, 0)
    assert {path.suffix for path in folder.iterdir()} <= {".lock"}
    compiler = Compiler()
    get_or_compile(key, compiler)
    assert compiler.calls == 1


def test_what_fails_to_compile_is_tried_again(folder: Path) -> None:
    def fail() -> Artefact:
        raise ZeroDivisionError

    key = make_key("fails")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            get_or_compile(key, fail)
    assert counts() == (0, 2, 0, 0)
    assert get_or_compile(key, Compiler()).data == b"code"


def test_memory_holds_the_last_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_IN_MEMORY", 2)
    first, second, third = (make_key(str(n)) for n in range(3))
    for key in (first, second, first, third):
        get_or_compile(key, Compiler())
    assert list(cache._memory.entries) == [first, third]


# ---- the folder


def test_folder_is_made_for_its_user_alone(folder: Path) -> None:
    jit.cache_info()
    assert folder.stat().st_mode & 0o777 == 0o700
    get_or_compile(make_key("x"), Compiler())
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_OPS_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert jit.cache_info().path == tmp_path / "cache" / "torch_ops"
    assert (tmp_path / "cache" / "torch_ops").is_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert jit.cache_info().path == tmp_path / "home" / ".cache" / "torch_ops"


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_OPS_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(RuntimeError, match=r"no home folder.*set TORCH_OPS_CACHE_DIR"):
        jit.cache_info()


def make_group_writable(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


def make_world_writable(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o707)


def make_symlink(folder: Path) -> None:
    target = folder.parent / "target"
    target.mkdir(mode=0o700)
    folder.symlink_to(target)


def make_dangling_symlink(folder: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


def make_file(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_group_writable, r"may write to it \(mode 770\)"),
        (make_world_writable, r"may write to it \(mode 707\)"),
        (make_symlink, "it is a symbolic link"),
        (make_dangling_symlink, "it is a symbolic link"),
        (make_file, "it is not a folder"),
    ],
)
def test_folder_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    reason: str,
) -> None:
    path = tmp_path / "refused"
    make(path)
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", str(path))
    match = rf"cache folder {path} is refused: .*{reason}.*TORCH_OPS_CACHE_DIR"
    for use in (jit.cache_info, jit.clear_cache, lambda: get_or_compile(make_key("r"), never)):
        with pytest.raises(RuntimeError, match=match):
            use()


def test_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jit.cache_info()
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
        match = "it belongs to user 12345, not to 0"
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
        match = f"it belongs to user {other - 1}, not to {other}"
    with pytest.raises(RuntimeError, match=match):
        jit.cache_info()


def test_folder_is_made_again(folder: Path) -> None:
    key = make_key("again")
    get_or_compile(key, Compiler())
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    forget()
    compiler = Compiler()
    get_or_compile(key, compiler)
    assert compiler.calls == 1 and entry_of(folder, key).is_file()


# ---- entries that are not what was written


def truncate(entry: Path) -> None:
    content = entry.read_bytes()
    entry.write_bytes(content[: random.Random(7).randrange(len(content))])


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


def lengthen(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes() + b"\0")


def of_another_key(entry: Path) -> None:
    other = make_key("another")
    get_or_compile(other, Compiler(b"another's code"))
    entry.write_bytes((entry.parent / f"{other}.kernel").read_bytes())


def behind_a_link(entry: Path) -> None:
    elsewhere = entry.parent.parent / "elsewhere"
    entry.rename(elsewhere)
    entry.symlink_to(elsewhere)


@pytest.mark.parametrize("damage", [truncate, empty, lengthen, of_another_key, behind_a_link])
def test_damaged_entry_is_compiled_again(folder: Path, damage: Callable[[Path], None]) -> None:
    key = make_key("damaged")
    get_or_compile(key, Compiler(b"x" * 1000))
    damage(entry_of(folder, key))
    forget()
    compiler = Compiler(b"y" * 1000)
    assert get_or_compile(key, compiler).data == b"y" * 1000
    assert compiler.calls == 1
    forget()  # and it is whole again
    assert get_or_compile(key, never).data == b"y" * 1000


def test_any_flipped_bit_is_noticed(folder: Path) -> None:
    key = make_key("flipped")
    get_or_compile(key, Compiler(b"x" * 64, names={}))
    entry = entry_of(folder, key)
    whole = entry.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        assert cache._unpack(key, bytes(flipped)) is None, position
    entry.write_bytes(bytes(flipped))
    forget()
    compiler = Compiler()
    get_or_compile(key, compiler)
    assert compiler.calls == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_entry_of_another_user_is_compiled_again(folder: Path) -> None:
    key = make_key("owner")
    get_or_compile(key, Compiler())
    os.chown(entry_of(folder, key), 12345, -1)
    forget()
    compiler = Compiler()
    get_or_compile(key, compiler)
    assert compiler.calls == 1
    assert entry_of(folder, key).stat().st_uid == 0


def compile_and_stop(where: str, stopped: int) -> None:
    """Compiles, stops for good in the middle, and says so through a pipe."""

    def stop(*ignored: Any, **also_ignored: Any) -> Any:
        os.write(stopped, b"x")
        time.sleep(1000)

    class HalfWriter(contextlib.nullcontext[None]):
        def __init__(self, descriptor: int, mode: str) -> None:
            super().__init__()
            self.descriptor = descriptor

        def __enter__(self) -> Any:
            return self

        def write(self, content: bytes) -> None:
            os.write(self.descriptor, content[: len(content) // 2])
            stop()

    if where == "write":
        cache.open = HalfWriter  # type: ignore[attr-defined]
    elif where == "rename":
        os.rename = stop
    get_or_compile(make_key("killed"), stop if where == "compile" else Compiler(b"x" * 100_000))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("where", ["compile", "write", "rename"])
def test_killed_process(folder: Path, where: str) -> None:
    """What kill -9 leaves behind is neither loaded nor waited for, and goes in time."""
    reads, stopped = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            compile_and_stop(where, stopped)
        finally:
            os._exit(1)
    os.close(stopped)
    assert os.read(reads, 1) == b"x"
    os.close(reads)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    key = make_key("killed")
    assert not entry_of(folder, key).exists()
    left = list(folder.glob("*.part"))
    assert len(left) == (where != "compile")
    compiler = Compiler()
    began = time.monotonic()
    assert get_or_compile(key, compiler).data == b"code"
    assert time.monotonic() - began < 10
    assert compiler.calls == 1
    forget()
    assert get_or_compile(key, never).data == b"code"
    for path in left:
        os.utime(path, (0, 0))
    get_or_compile(make_key("next"), Compiler())
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The kernel runs all the same, in this process."""
    jit.cache_info()
    really_open = os.open

    def no_space(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code))
        return really_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", no_space)
    compiler = Compiler()
    with pytest.warns(RuntimeWarning, match=f"could not be kept in {folder}: {os.strerror(code)}"):
        assert get_or_compile(make_key("full"), compiler).data == b"code"
    assert get_or_compile(make_key("full"), never).data == b"code"


# ---- the limit


def test_oldest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [make_key(str(n)) for n in range(5)]
    for age, key in zip((3, 5, 1, 4), keys, strict=False):
        get_or_compile(key, Compiler(b"x" * 1000))
        at = time.time() - 100 * age
        os.utime(entry_of(folder, key), (at, at))
    size = entry_of(folder, keys[0]).stat().st_size
    monkeypatch.setenv("TORCH_OPS_CACHE_LIMIT", str(3 * size + size // 2))
    get_or_compile(keys[4], Compiler(b"x" * 1000))
    kept = [n for n, key in enumerate(keys) if entry_of(folder, key).exists()]
    assert kept == [0, 2, 4]
    info = jit.cache_info()
    assert info.entries == 3 and info.bytes == 3 * size <= info.limit


def test_entry_larger_than_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get_or_compile(make_key("small"), Compiler())
    monkeypatch.setenv("TORCH_OPS_CACHE_LIMIT", "500")
    compiler = Compiler(b"x" * 1000)
    for _ in range(2):
        get_or_compile(make_key("large"), compiler)
    assert compiler.calls == 1  # kept in memory
    assert counts()[3] == 1  # and the small one was not removed for it


@pytest.mark.parametrize("limit", ["1 GB", "-1", "1e9"])
def test_limit_is_no_number(folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv("TORCH_OPS_CACHE_LIMIT", limit)
    with pytest.raises(RuntimeError, match=f"TORCH_OPS_CACHE_LIMIT must be .* but it is '{limit}'"):
        jit.cache_info()


# ---- many at once


def compile_slowly(log: str) -> Artefact:
    """Writes down that it was called; each call's result is another."""
    with open(log, "a") as file:
        file.write("x")
    time.sleep(0.3)
    return Artefact(os.urandom(100_000))


def look_up(key: str, log: str) -> bytes:
    return get_or_compile(key, lambda: compile_slowly(log)).data


@pytest.mark.parametrize(("method", "count"), [("fork", 16), ("spawn", 2)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_compile_once(folder: Path, tmp_path: Path, method: str, count: int) -> None:
    log = tmp_path / "calls"
    found = in_processes(method, count, look_up, make_key("once"), str(log))
    assert len(found) == count
    assert len(set(found)) == 1
    assert log.read_text() == "x"


def test_threads_compile_once(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(look_up(make_key("once"), str(log))))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert log.read_text() == "x"
    assert counts()[2] == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_a_thread_compiles(folder: Path) -> None:
    """The child inherits neither the thread nor its locks."""
    compiling, forked = threading.Event(), threading.Event()

    def compile() -> Artefact:
        compiling.set()
        assert forked.wait(60)
        return Artefact(b"of the thread")

    key = make_key("forked")
    thread = threading.Thread(target=lambda: get_or_compile(key, compile))
    thread.start()
    assert compiling.wait(60)
    child = os.fork()
    if child == 0:
        try:
            other = get_or_compile(make_key("of the child"), lambda: Artefact(b"child")).data
            same = get_or_compile(key, lambda: Artefact(b"child")).data
            os._exit(0 if (other, same) == (b"child", b"of the thread") else 1)
        except BaseException:
            os._exit(2)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def replace_often(key: str, seconds: float) -> int:
    """Writes the entry over and over, and reads it: each read is whole, or nothing."""
    end = time.monotonic() + seconds
    rounds = 0
    with cache._open_folder() as folder:
        while time.monotonic() < end:
            cache._write(folder, key, Artefact(os.urandom(1) * 300_000))
            with open(f"{os.environ['TORCH_OPS_CACHE_DIR']}/{key}.kernel", "rb") as file:
                found = cache._unpack(key, file.read())
            assert found is not None
            assert len(set(found.data)) == 1
            rounds += 1
    return rounds


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_reader_sees_half_an_entry(folder: Path) -> None:
    rounds = in_processes("fork", 4, replace_often, make_key("often"), 1.0)
    assert all(count > 1 for count in rounds)
