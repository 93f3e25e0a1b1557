"""What all tests share: devices, which of the slow tests run, memory that is never zero by luck."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("op_checks", "support")

from support.outcomes import Outcomes, mark_cells  # noqa: E402

import torch_ops  # noqa: E402

# It loads a profile of hypothesis; so it must be imported before ours is loaded, not by a test.
with contextlib.suppress(ImportError):  # without expecttest
    import torch.testing._internal.common_utils

# Property tests: the same examples on each run; --hypothesis-profile=many for a long one.
for _profile, _examples in (("usual", 200), ("many", 5000)):
    settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,  # the first call of an op takes longer
        derandomize=_profile == "usual",
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],  # `device` is a constant
    )
settings.load_profile("usual")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        choices=["none", "sample", "all"],
        default="none",
        help="which tests marked slow run; sample: an eighth of the cases of each test that has "
        "several, all slow (default: none)",
    )
    parser.addoption(
        "--support",
        type=Path,
        metavar="FILE",
        help="keep the outcomes of test_support.py in FILE, for tools/support_table.py",
    )
    if importlib.util.find_spec("pytest_timeout") is None:
        # pyproject.toml sets it; without the plugin it is to be a setting without effect, no error.
        parser.addini("timeout", "seconds a test may take, where pytest-timeout is installed")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout: without effect, pytest-timeout is missing")
    if hasattr(config, "workerinput"):
        return
    # pytest-xdist would put the files with the fewest tests last. Among them are the longest, for
    # which all other processes would then wait.
    config.option.loadscopereorder = False
    if config.getoption("--support"):
        config.pluginmanager.register(Outcomes(config.getoption("--support")))
    # Of this run alone, and of all its processes. Inductor finds what it has compiled before by
    # what calls which op, not by what an op does. Of torch_ops.jit, tests neither find what their
    # user has compiled nor remove it.
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TORCH_OPS_CACHE_DIR"):
        folder = tempfile.TemporaryDirectory(prefix="compiled-", ignore_cleanup_errors=True)
        os.environ[variable] = folder.name
        config.add_cleanup(folder.cleanup)
    # Else each process in which Inductor compiles starts Python six times, to try the instructions
    # that this CPU says it has.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_cells(items)
    wanted = config.getoption("--slow")
    if wanted == "all":
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    in_every_run: set[str] = set()  # by some of their cases
    for item in items:
        test = item.nodeid.partition("[")[0]
        if item.get_closest_marker("slow"):
            cases[test].append(item)
        else:
            in_every_run.add(test)
    left_out: set[pytest.Item] = set()
    for test, variants in cases.items():
        left_out.update(variants)
        if wanted == "sample" and len(variants) > 1 and test not in in_every_run:
            # Always the same, so that a failure comes again; by the name, so that not every test
            # keeps its first, which tends to be the easiest.
            variants.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
            left_out.difference_update(variants[: (len(variants) + 7) // 8])
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=items.index))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Garbage collections need not look again at all that imports and the collection have made."""
    gc.collect()
    gc.freeze()
    # Nor as often at all that a compilation holds.
    gc.set_threshold(10_000, 10, 50)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device there is."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test draws the same random numbers whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def poison_cpu_memory() -> None:
    """Makes malloc fill what it hands out, so that an output that nobody wrote shows.

    The bytes are 0xFE: a huge negative number, or NaN in float16. torch has a switch of its own
    for this, which acts only with torch.use_deterministic_algorithms(True), and that would have
    every test take the deterministic one of two ways through an op.
    """
    m_perturb = -6  # malloc.h; free() fills with the argument, malloc() with its complement
    ctypes.CDLL(None).mallopt(m_perturb, 0x01)


@pytest.fixture(autouse=True)
def poison_cuda_memory() -> None:
    """The same for CUDA: leaves NaN in the blocks that torch's allocator hands out next."""
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        return  # under compute-sanitizer: its initcheck finds what was not written
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        # One block for each of the allocator's pools, which are for up to 1 MiB and for more.
        for size in (2**18, 2**24):
            torch.full((size,), torch.nan, device="cuda")


@pytest.fixture(autouse=True)
def no_error_is_left() -> Iterator[None]:
    """A bad index that a GPU found, unexpected, fails the test that made it and not the next."""
    yield
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch_ops.check_errors()


@pytest.fixture
def sync_mode() -> Iterator[None]:
    torch_ops.set_error_mode("sync")
    yield
    torch_ops.set_error_mode("async")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs checks for each op that the module describes and that they are for, in each dtype."""
    check = metafunc.function.__name__.removeprefix("test_")
    if "layer" in metafunc.fixturenames:
        layers = [layer for layer in metafunc.module.LAYERS if check not in layer.exempt]
        metafunc.parametrize("layer", layers, ids=str)
    if "op" not in metafunc.fixturenames:
        return
    ops = [op for op in metafunc.module.OPS if check not in op.exempt]
    if "dtype" in metafunc.fixturenames:
        cases = [
            pytest.param(op, dtype, id=f"{op}-{str(dtype).removeprefix('torch.')}")
            for op in ops
            for dtype in op.dtypes
        ]
        metafunc.parametrize(("op", "dtype"), cases)
    else:
        metafunc.parametrize("op", ops, ids=str)
