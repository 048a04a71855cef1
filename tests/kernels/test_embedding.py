"""Embedding rows against the formats' definitions, for every format."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal

import numpy as np
import pytest
import tiny
from call import rows, run

from cpuinfer.formats import quants
from cpuinfer.kernels import jit

FORMATS = [fmt for fmt in quants.all().values() if fmt.has_kernel]
TOKENS = np.array([4, 0, 6, 4, 5], np.int32)
N_ROWS = 7


@pytest.fixture(scope="module", autouse=True)
def compiled():
    jit.build([("embedding", fmt.name) for fmt in FORMATS])


def column_counts(fmt) -> list[int]:
    """Whole units; a row that ends within a unit, where the format has such rows."""
    if fmt.weights == 1:
        return [64, 37, 5]
    return [2 * fmt.unit_weights, 3 * fmt.weights]


def table_of(fmt, columns: int) -> np.ndarray:
    if fmt.weights == 1:
        wide = tiny.random_rows(fmt.name, N_ROWS, 64, np.random.default_rng(0))
        return np.ascontiguousarray(wide[:, : columns * fmt.block_bytes])
    return tiny.random_rows(fmt.name, N_ROWS, columns, np.random.default_rng(0))


def embed(fmt, table: np.ndarray, columns: int, scale: float = 1.0, ranks: int = 1) -> np.ndarray:
    y = rows(np.full((len(TOKENS), columns), np.nan, np.float32))
    fields = {"weights": table, "row_bytes": table.shape[1], "columns": columns, "y": y, "y_stride": y.shape[1], "scale": scale}
    run(("embedding", fmt.name), fields, {"n_tokens": len(TOKENS), "tokens": TOKENS}, ranks)
    return y


each_row = pytest.mark.parametrize("fmt, columns", [(f, c) for f in FORMATS for c in column_counts(f)], ids=str)


@each_row
@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_equal_the_definition_and_their_padding_is_zero(fmt, columns, ranks):
    table = table_of(fmt, columns)
    expected = rows(fmt.dequantize(table[TOKENS]))
    assert expected.any()
    np.testing.assert_allclose(embed(fmt, table, columns, 1.0, ranks), expected, rtol=3e-7, atol=1e-9)
    np.testing.assert_allclose(embed(fmt, table, columns, 7.3, ranks), expected * np.float32(7.3), rtol=3e-7, atol=1e-8)


class Fence:
    """A table at the very end of readable memory."""

    def __init__(self, table: np.ndarray):
        page = mmap.PAGESIZE
        length = -(-table.nbytes // page) * page
        self.memory = mmap.mmap(-1, length + page)
        everything = np.frombuffer(self.memory, np.uint8)
        self.table = everything[length - table.nbytes : length].reshape(table.shape)
        self.table[:] = table
        mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert mprotect(everything.ctypes.data + length, page, 0) == 0


def survives(function, *arguments) -> bool:
    """Whether a forked child can call the function."""
    child = os.fork()
    if child == 0:
        for number in (signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)  # pytest's fault handler would print a traceback
        try:
            function(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@each_row
def test_the_last_row_is_not_read_past_its_end(fmt, columns):
    """Behind the last tensor of a file lies memory that faults."""
    assert survives(embed, fmt, Fence(table_of(fmt, columns)).table, columns)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_fence_works():
    table = Fence(np.zeros((1, 64), np.uint8)).table
    assert survives(ctypes.string_at, table.ctypes.data, 64) and not survives(ctypes.string_at, table.ctypes.data, 65)
