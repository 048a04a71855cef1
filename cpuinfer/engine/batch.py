"""The arrays that a step hands to the program: allocated once, filled from a plan."""

from __future__ import annotations

import numpy as np

from ..kernels.records import BATCH, PAGE
from .sequence import Sequence

FIELDS = ("tokens", "positions", "slots", "sequences", "query_starts", "page_tables", "lengths", "logit_rows")


class Batch:
    """Arrays as records.BATCH describes them; `record` holds their addresses and this step's counts."""

    def __init__(self, max_tokens: int, max_sequences: int, max_pages: int, max_logit_rows: int):
        self.tokens, self.positions, self.slots, self.sequences = (np.zeros(max_tokens, np.int32) for _ in range(4))
        self.query_starts, self.lengths = np.zeros(max_sequences + 1, np.int32), np.zeros(max_sequences, np.int32)
        self.page_tables = np.zeros((max_sequences, max_pages), np.int32)
        self.logit_rows = np.zeros(max_logit_rows, np.int32)
        self.record = np.zeros(1, BATCH)
        for name in FIELDS:
            self.record[name] = getattr(self, name).ctypes.data
        self.record["page_table_stride"] = max_pages

    def fill(self, plan: list[tuple[Sequence, int]], every_logit: bool = False) -> list[int]:
        """plan: (sequence, how many of its uncomputed tokens). Logits are asked for where a sequence catches up (or for every token).

        Gives, for each entry, its logit row, or -1 if it has none.
        """
        at = n_logits = 0
        rows: list[int] = []
        for s, (sequence, count) in enumerate(plan):
            start, end = sequence.n_computed, sequence.n_computed + count
            here = slice(at, at + count)
            pages = np.array(sequence.pages, np.int32)
            self.tokens[here] = sequence.tokens[start:end]
            positions = np.arange(start, end, dtype=np.int32)
            self.positions[here] = positions
            self.slots[here] = pages[positions // PAGE] * PAGE + positions % PAGE
            self.sequences[here] = s
            self.query_starts[s], self.lengths[s] = at, end
            self.page_tables[s, : len(pages)] = pages
            at += count
            wanted = count if every_logit else int(end == len(sequence.tokens))
            self.logit_rows[n_logits : n_logits + wanted] = range(at - wanted, at)
            rows.append(n_logits if wanted else -1)
            n_logits += wanted
        self.query_starts[len(plan)] = at
        for name, value in (("n_tokens", at), ("n_sequences", len(plan)), ("n_logit_rows", n_logits)):
            self.record[name] = value
        return rows
