"""Many threads call libtorch_ops_c at once: each is told of its own errors, and of no other's."""

from __future__ import annotations

import ctypes
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from c_calls import MEMORIES
from c_interface import DEVICE, LIBRARY, VALUES, status_name

ROWS, ENTRIES, INNER, BORDER = 100, 3000, 4, 64
THREADS = 16


class Caller:
    """The arrays of one thread after another, and random calls on them.

    Outputs lie within a border. Sums are of small integers: exact in any order.
    """

    def __init__(self, number: int, memory: int) -> None:
        self.number, self.memory = number, memory
        self.random = random.Random(number)
        generator = torch.Generator().manual_seed(number)
        table = torch.randint(-8, 8, (ROWS, INNER), generator=generator).float()
        index = torch.randint(0, ROWS, (ENTRIES,), generator=generator)
        picked = table[index]
        sums = torch.zeros_like(table).index_add_(0, index, picked)
        self.device = "cuda" if memory == DEVICE else "cpu"
        self.table, self.index, self.picked, self.sums = (
            tensor.to(self.device) for tensor in (table, index, picked, sums)
        )
        self.bad_index = self.index.clone()
        self.position = 0
        size = ENTRIES * INNER + 2 * BORDER
        self.whole = torch.full((size,), 7.0, device=self.device)
        self.stream = torch.cuda.Stream() if memory == DEVICE else None
        if self.stream is not None:
            torch.cuda.synchronize()

    def spoil(self) -> int:
        """An entry of the bad index is out of range, with a value that tells whose it is."""
        self.bad_index[self.position] = self.index[self.position]
        self.position = self.random.randrange(ENTRIES)
        value = ROWS * (1 + self.number) + self.random.randrange(ROWS)
        self.bad_index[self.position] = self.random.choice([value, -value])
        return int(self.bad_index[self.position])

    def call(self, index: torch.Tensor, adds: bool, milliseconds: ctypes.c_float | None) -> str:
        wanted = self.sums if adds else self.picked
        self.output = self.whole[BORDER : BORDER + wanted.numel()].view_as(wanted)
        first = self.picked if adds else self.table
        status = (LIBRARY.scatter_add if adds else LIBRARY.batch_gather)(
            *(tensor.data_ptr() for tensor in (first, index, self.output)),
            *(1, ROWS, ENTRIES, INNER, VALUES["FLOAT32"], VALUES["INDEX_INT64"], self.memory),
            self.stream and self.stream.cuda_stream,
            *((None, 0) if adds else ()),
            milliseconds,
        )
        return status_name(status)

    def check_errors(self) -> str:
        return status_name(LIBRARY.check_errors(self.stream and self.stream.cuda_stream))

    def told(self, value: int) -> bool:
        return f"index[{self.position}] is {value}, out of range" in LIBRARY.error()

    def one_call(self) -> None:
        bad, adds = self.random.random() < 0.5, self.random.random() < 0.5
        milliseconds = self.random.choice([None, ctypes.c_float()])
        value = self.spoil() if bad else 0
        waits = self.memory != DEVICE or milliseconds is not None
        status = self.call(self.bad_index if bad else self.index, adds, milliseconds)
        assert status == ("INDEX_OUT_OF_RANGE" if bad and waits else "SUCCESS"), LIBRARY.error()
        assert not (bad and waits) or self.told(value), LIBRARY.error()
        status = self.check_errors()
        late = bad and not waits
        assert status == ("INDEX_OUT_OF_RANGE" if late else "SUCCESS"), LIBRARY.error()
        assert not late or self.told(value), LIBRARY.error()
        if not bad:
            assert torch.equal(self.output, self.sums if adds else self.picked)
        assert (self.whole[:BORDER] == 7).all()
        assert (self.whole[BORDER + self.output.numel() :] == 7).all()
        self.whole.fill_(7)

    def some_calls(self) -> None:
        """As a thread of its own, which may end with an error that nobody asked for."""
        with torch.cuda.stream(self.stream):  # None: no stream is set
            for _ in range(self.random.randrange(1, 20)):
                self.one_call()
            if self.random.random() < 0.5:
                self.spoil()
                self.call(self.bad_index, False, None)
                self.whole.fill_(7)


@pytest.mark.parametrize("memory", MEMORIES)
def test_good_and_bad_calls(memory: str, request: pytest.FixtureRequest) -> None:
    """For some seconds; for a minute under --slow=all."""
    seconds = 60 if request.config.getoption("--slow") == "all" else 3
    end = time.monotonic() + seconds

    def work(number: int) -> int:
        caller, threads = Caller(number, MEMORIES[memory]), 0
        while time.monotonic() < end:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(caller.some_calls).result()
            threads += 1
        if caller.stream is not None:
            caller.stream.synchronize()  # its arrays are freed now
        return threads

    with ThreadPoolExecutor(THREADS) as pool:
        assert min(pool.map(work, range(THREADS))) > 0
