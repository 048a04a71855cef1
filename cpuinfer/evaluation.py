"""Perplexity as llama.cpp's tool counts it: the text is tokenized once, cut into chunks of n_ctx tokens, each starting with BOS where the model wants one; in each
chunk the tokens of the second half are scored. perplexity = e^(mean negative log-likelihood)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import InvalidRequest, ModelFailure


def perplexity(model: Any, text: str, context: int, on_progress: Callable[[int, int, float], None] | None = None) -> dict[str, Any]:
    """{"perplexity", "stderr", "tokens" (scored), "chunks", "context"}. Raises InvalidRequest if the text is shorter than one chunk."""
    tokenizer = model.tokenizer
    tokens = tokenizer.encode(text)
    chunks = len(tokens) // context
    if not chunks:
        raise InvalidRequest(f"the text has {len(tokens)} tokens, fewer than one chunk of {context}; use a longer text or a smaller -c")
    first = context // 2
    losses: list[np.ndarray] = []
    for c in range(chunks):
        chunk = list(tokens[c * context : (c + 1) * context])
        if tokenizer.add_bos:
            chunk[0] = tokenizer.bos_id

        def score(start: int, logits: np.ndarray, chunk: list[int] = chunk) -> None:
            # Position p predicts token p + 1; scored are predictions made at first .. context - 2.
            low, high = max(start, first), min(start + len(logits), context - 1)
            if low < high:
                losses.append(_losses(logits[low - start : high - start], chunk[low + 1 : high + 1]))

        model.engine.visit_logits(chunk, score)
        if on_progress:
            on_progress(c + 1, chunks, _exp(float(np.concatenate(losses).mean())))
    every = np.concatenate(losses).astype(np.float64)
    mean = float(every.mean())
    variance = float((every**2).mean()) - mean**2
    value = _exp(mean)
    error = math.sqrt(max(0.0, variance) / (len(every) - 1)) * value if len(every) > 1 else 0.0
    return {"perplexity": value, "stderr": error, "tokens": len(every), "chunks": chunks, "context": context}


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        raise ModelFailure("the perplexity is larger than any number: the model's answers have nothing to do with this text; check the file") from None


def _losses(logits: np.ndarray, targets: list[int]) -> np.ndarray:
    """Negative log-likelihoods. A logit that is no number (NaN, +inf) counts as -inf, as in sampling; ModelFailure where that leaves none for a row or its target."""
    if not (logits < np.inf).all():
        logits = np.where(logits < np.inf, logits, -np.inf)
    largest = logits.max(-1, keepdims=True)
    chosen = logits[np.arange(len(targets)), targets]
    if not (np.isfinite(largest).all() and np.isfinite(chosen).all()):
        raise ModelFailure("the model computed no finite number for a token of the text; the file is damaged, or its weights are broken")
    log_total = np.log(np.exp(logits - largest).sum(-1, dtype=np.float64)) + largest[:, 0]
    return log_total - chosen
