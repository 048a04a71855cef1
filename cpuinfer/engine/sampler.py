"""Calls the compiled sampler for one row of logits at a time, with arrays that are allocated once."""

from __future__ import annotations

import ctypes

import numpy as np

from ..kernels.records import RECORDS
from .sequence import SamplingParams, Sequence

KEY = ("sample",)
MAXIMUM_LOGPROBS = 100
BUCKETS = 2048  # of the kernel's histogram


class Sampler:
    """address: of the compiled kernel ("sample",). n_vocab: logits that are real; the row may be longer. max_history: the context length."""

    def __init__(self, address: int, n_vocab: int, max_history: int):
        self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(address)
        self._history = np.zeros(max_history, np.int32)
        self._counts, self._ids = np.zeros(n_vocab, np.int32), np.zeros(n_vocab, np.int32)
        self._values = np.zeros(n_vocab + BUCKETS + max_history, np.float32)
        self._state, self._token = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._logprob_ids, self._logprobs = np.zeros(MAXIMUM_LOGPROBS + 1, np.int64), np.zeros(MAXIMUM_LOGPROBS + 1, np.float32)
        self._n_vocab = n_vocab
        self._record = np.zeros(1, RECORDS["sample"])
        self._record["n_vocab"] = n_vocab
        arrays: dict[str, np.ndarray] = {"history": self._history, "counts": self._counts, "ids": self._ids, "values": self._values, "state": self._state, "token": self._token}
        arrays |= {"logprob_ids": self._logprob_ids, "logprob_values": self._logprobs}
        for name, array in arrays.items():
            self._record[name] = array.ctypes.data

    def sample(self, logits: np.ndarray, sequence: Sequence) -> tuple[int, list[tuple[int, float]] | None]:
        """Next token of a sequence from f32[n_vocab or more], which is changed; advances the sequence's random state. -1 where no logit is finite.

        Log-probabilities as TokenEvent gives them.
        """
        p = sequence.sampling
        record = self._record
        record["logits"] = logits.ctypes.data
        record["n_history"] = self._fill_history(sequence.tokens, p)
        n_logprobs = min(p.logprobs, self._n_vocab)
        for name, value in (("top_k", p.top_k), ("n_logprobs", n_logprobs), ("temperature", p.temperature), ("top_p", p.top_p), ("min_p", p.min_p)):
            record[name] = value
        for name in ("typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"):
            record[name] = getattr(p, name)
        self._state[0] = sequence.state - (1 << 64) if sequence.state >= 1 << 63 else sequence.state
        self._call(record.ctypes.data, 0, 0, 1)
        sequence.state = int(self._state[0])
        token = int(self._token[0])
        if token < 0 or not n_logprobs:
            return token, None
        chosen, *likeliest = ((int(i), float(v)) for i, v in zip(self._logprob_ids[: n_logprobs + 1], self._logprobs))
        return token, [chosen, *(entry for entry in likeliest if entry[0] != token)]

    def _fill_history(self, tokens: list[int], p: SamplingParams) -> int:
        if p.repeat_penalty == 1 and p.presence_penalty == 0 and p.frequency_penalty == 0:
            return 0
        n = len(tokens) if p.repeat_last_n < 0 else min(p.repeat_last_n, len(tokens))
        self._history[:n] = tokens[len(tokens) - n :]
        return n
