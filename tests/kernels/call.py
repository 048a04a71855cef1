"""Calling one compiled kernel from a test: records filled by field name, ranks called in turn."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cpuinfer.kernels import jit
from cpuinfer.kernels.records import BATCH, PAGE, RECORDS, round_up

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def record(kind: str | None, fields: dict) -> np.ndarray:
    """A record of RECORDS[kind] (of a batch for None); arrays become their addresses, so the caller keeps them alive."""
    result = np.zeros(1, BATCH if kind is None else RECORDS[kind])
    for name, value in fields.items():
        result[name] = address(value) if isinstance(value, np.ndarray) else 0 if value is None else value
    return result


def run(key: tuple[str, ...], fields: dict, batch: dict, ranks: int = 1, at_once: bool = False) -> None:
    """One op: each rank's share, one after the other or on threads at once. Scratch and counter are provided, the scratch filled with what would show if it were used unset."""
    fields = dict(fields)
    names = RECORDS[key[0]].names
    scratch = np.full((ranks, 1 << 20), 0xFF, np.uint8)  # NaN in every type
    counter = np.zeros(8, np.int64)
    if "scratch" in names:
        fields |= {"scratch": scratch, "scratch_bytes": scratch.shape[1]}
    if "counter" in names:
        fields |= {"counter": counter}
    op, batch_record = record(key[0], fields), record(None, batch)
    function = KERNEL(jit.build([key])[key])
    if at_once:
        with ThreadPoolExecutor(ranks) as pool:
            list(pool.map(lambda rank: function(address(op), address(batch_record), rank, ranks), range(ranks)))
    else:
        for rank in range(ranks):
            function(address(op), address(batch_record), rank, ranks)


def rows(values: np.ndarray, multiple: int = 16, spare: int = 8) -> np.ndarray:
    """f32[T, C] -> the same in rows padded with zeros to a multiple of 16 columns, and `spare` rows more, as the workspace has them."""
    result = np.zeros((len(values) + spare, round_up(values.shape[1], multiple)), np.float32)
    result[: len(values), : values.shape[1]] = values
    return result


class Q8:
    """Room for quantized activations of up to `count` rows."""

    def __init__(self, count: int, columns: int):
        self.count, self.columns = count, columns
        self.width = round_up(columns, 256)
        self.codes = np.zeros((count + 8, self.width), np.int8)
        self.scales, self.sums = (np.zeros((count + 8, self.width // 32), np.float32) for _ in range(2))
        self.sums16 = np.zeros((count + 8, self.width // 16), np.float32)

    def fields(self) -> dict:
        return {"q": self.codes, "q_scales": self.scales, "q_sums": self.sums, "q_sums16": self.sums16, "q_stride": self.width}

    def decoded_codes(self, few: int, tokens: int) -> np.ndarray:
        """[count, width] of the codes as integers, whatever their layout: 16-bit planes of even and odd elements for one row."""
        if self.count > 1:
            return self.untiled(self.codes, self.count, few, tokens).astype(int)
        planes = self.codes.reshape(-1)[: 2 * self.width].view(np.int16).reshape(-1, 2, 32)
        return planes.transpose(0, 2, 1).reshape(1, -1).astype(int)

    def untiled(self, array: np.ndarray, count: int, few: int, tokens: int) -> np.ndarray:
        """[T, n] of an array that is stored in rows for up to `few` rows and in tiles of `tokens` rows for more."""
        group = 4 if array.dtype == np.int8 else 1
        if count <= few:
            return array[:count]
        tiles = (count + tokens - 1) // tokens
        tiled = array.reshape(-1)[: tiles * tokens * array.shape[1]].reshape(tiles, -1, tokens, group)
        return tiled.transpose(0, 2, 1, 3).reshape(tiles * tokens, -1)[:count]


class Sequences:
    """A batch: for each sequence (tokens before, tokens now). Pages are dealt out in a shuffled order; page 0 stays free."""

    def __init__(self, *lengths: tuple[int, int], seed: int = 0):
        self.lengths = np.array([before + now for before, now in lengths], np.int32)
        self.counts = [now for _, now in lengths]
        self.n_tokens = sum(self.counts)
        pages = [-(-n // PAGE) for n in self.lengths]
        self.n_pages = sum(pages) + 1
        order = np.random.default_rng(seed).permutation(np.arange(1, self.n_pages)).astype(np.int32)
        self.page_tables = np.zeros((len(lengths), max(pages) + 1), np.int32)
        for s, count in enumerate(pages):
            self.page_tables[s, :count], order = order[:count], order[count:]
        self.query_starts = np.cumsum([0, *self.counts]).astype(np.int32)
        self.positions = np.concatenate([np.arange(before, before + now) for before, now in lengths]).astype(np.int32)
        self.sequences = np.repeat(np.arange(len(lengths)), self.counts).astype(np.int32)
        self.slots = self.slots_of(self.sequences, self.positions)
        self.logit_rows = np.arange(self.n_tokens, dtype=np.int32)

    def slots_of(self, sequences: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return (self.page_tables[sequences, positions // PAGE] * PAGE + positions % PAGE).astype(np.int32)

    def batch(self) -> dict:
        arrays = ("positions", "slots", "sequences", "query_starts", "page_tables", "lengths", "logit_rows")
        counts = {"n_tokens": self.n_tokens, "n_sequences": len(self.lengths), "n_logit_rows": self.n_tokens}
        return counts | {"page_table_stride": self.page_tables.shape[1]} | {name: getattr(self, name) for name in arrays}
