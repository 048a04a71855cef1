"""A batch and a KV cache without the engine: one sequence in consecutive pages."""

from __future__ import annotations

import numpy as np

from cpuinfer.kernels.records import BATCH, PAGE, cache_row_bytes


class SimpleCache:
    """PagedKVCache's arrays for one sequence of up to `length` tokens; its pages are 1, 2, 3, ..."""

    def __init__(self, kv_layers, length: int, key_type: str = "f32", value_type: str | None = None):
        self.key_type, self.value_type = key_type, value_type or key_type
        n_pages = (length + PAGE - 1) // PAGE + 1
        self.key_arrays = [np.zeros((n_pages, k.n_kv_heads, PAGE, cache_row_bytes(self.key_type, k.key_dim)), np.uint8) for k in kv_layers]
        self.value_arrays = [np.zeros((n_pages, k.n_kv_heads, PAGE, cache_row_bytes(self.value_type, k.value_dim)), np.uint8) for k in kv_layers]
        self.page_table = np.arange(1, n_pages, dtype=np.int32)[None]


class SimpleBatch:
    """Tokens of one sequence at positions start, start + 1, ...; logits of every token unless logit_rows says which."""

    def __init__(self, tokens, start: int, cache: SimpleCache, logit_rows=None):
        n = len(tokens)
        self.tokens = np.asarray(tokens, np.int32)
        self.positions = np.arange(start, start + n, dtype=np.int32)
        self.slots = (cache.page_table[0][self.positions // PAGE] * PAGE + self.positions % PAGE).astype(np.int32)
        self.sequences = np.zeros(n, np.int32)
        self.query_starts, self.lengths = np.array([0, n], np.int32), np.array([start + n], np.int32)
        self.page_tables = cache.page_table
        self.logit_rows = np.arange(n, dtype=np.int32) if logit_rows is None else np.asarray(logit_rows, np.int32)
        self.record = np.zeros(1, BATCH)
        counts = {"n_tokens": n, "n_sequences": 1, "n_logit_rows": len(self.logit_rows), "page_table_stride": cache.page_table.shape[1]}
        for name, value in counts.items():
            self.record[name] = value
        for name in ("tokens", "positions", "slots", "sequences", "query_starts", "page_tables", "lengths", "logit_rows"):
            self.record[name] = getattr(self, name).ctypes.data
