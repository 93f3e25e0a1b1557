"""A cache without a folder to keep kernels in, and what lies in one that is no entry."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jit_tools import forget, run_python

from torch_ops import jit
from torch_ops.jit import ElementwiseKernel
from torch_ops.jit.building.cache import Artefact, get_or_compile, make_key, recall, remember


def compiled(data: bytes = b"code") -> Callable[[], Artefact]:
    return lambda: Artefact(data)


def never() -> Artefact:
    pytest.fail("it was compiled again")


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The name of a folder that is not there."""
    path = tmp_path / "user" / "kernels"
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", str(path))
    forget()
    return path


def test_folder_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", "~/kernels")
    assert jit.cache_info().path == tmp_path / "kernels"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_folder_that_cannot_be_made(
    absent: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mkdir", refuse)
    key = make_key("unkept", str(code))
    with pytest.warns(RuntimeWarning, match=f"not be kept in {absent}: {os.strerror(code)}"):
        assert get_or_compile(key, compiled()).data == b"code"
    assert get_or_compile(key, never).data == b"code"
    remember(key, {"known": 1})
    assert recall(key) is None
    info = jit.cache_info()
    assert (info.entries, info.bytes, info.path) == (0, 0, absent)
    jit.clear_cache()
    assert jit.cache_info().hits == 0
    assert not absent.parent.exists()


def test_kernel_runs_where_no_folder_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc takes no folders, whoever asks."""
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", "/proc/torch_ops/kernels")
    forget()
    kernel = ElementwiseKernel("T x", "T y", "y = x + 41.5", "no_folder")
    with pytest.warns(RuntimeWarning, match="could not be kept in /proc/torch_ops/kernels"):
        assert kernel(torch.ones(1)).item() == 42.5


def test_user_who_may_not_look_into_the_home_folder(tmp_path: Path) -> None:
    """As in a container whose HOME is root's."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0)
    code = """
import os, sys, warnings
from torch_ops import jit
from torch_ops.jit.building import cache
if os.geteuid() == 0:
    os.seteuid(65534)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    print(cache.get_or_compile(cache.make_key("x"), lambda: cache.Artefact(b"code")).data)
print(len(warned), "Permission denied" in str(warned[0].message), jit.cache_info().entries)
"""
    try:
        shown = run_python(code, TORCH_OPS_CACHE_DIR=str(home / "kernels"))
    finally:
        home.chmod(0o700)
    assert shown == "b'code'\n1 True 0\n"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_folder_without_locks(absent: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """It warns once; of threads one compiles, and what it made is kept."""

    def refuse(*args: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(RuntimeWarning) as warned:
        calls = compile_in_threads(make_key("no locks"))
    assert calls == len(warned) == 1
    assert f"{absent} cannot be locked: {os.strerror(code)}" in str(warned[0].message)
    assert get_or_compile(make_key("another"), compiled()).data == b"code"
    forget()
    assert get_or_compile(make_key("no locks"), never).data == b"code"
    with pytest.raises(ZeroDivisionError) as raised:
        get_or_compile(make_key("wrong"), lambda: Artefact(bytes(1 // 0)))
    assert raised.value.__context__ is None


def compile_in_threads(key: str) -> int:
    """How often a kernel is compiled that four threads want at once."""
    calls = []

    def compile_slowly() -> Artefact:
        calls.append(1)
        time.sleep(0.2)
        return Artefact(b"code")

    threads = [
        threading.Thread(target=get_or_compile, args=(key, compile_slowly)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(calls)


@pytest.mark.filterwarnings("ignore:.*could not be kept:RuntimeWarning")
def test_threads_compile_once_without_a_folder(
    absent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", "/proc/torch_ops")
    assert compile_in_threads(make_key("threads without a folder")) == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_no_entry(absent: Path, make: Callable[[Path], None]) -> None:
    jit.cache_info()  # makes the folder
    key = make_key("no file")
    make(absent / f"{key}.kernel")
    before = len(os.listdir("/proc/self/fd"))
    if make is os.mkdir:
        with pytest.warns(RuntimeWarning, match="could not be kept"):
            assert get_or_compile(key, compiled()).data == b"code"
    else:  # which is replaced
        assert get_or_compile(key, compiled()).data == b"code"
        forget()
        assert get_or_compile(key, never).data == b"code"
    assert len(os.listdir("/proc/self/fd")) == before
