"""Checks of what callers hand in: numbers with a range, token ids. Every message names the argument, its range and what came instead."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from .errors import InvalidRequest

# Allowed range of an engine's options: (lowest, highest). 0 means automatic.
LIMITS: dict[str, tuple[int, int]] = {
    "threads": (0, 1 << 10),
    "context_length": (0, 1 << 24),
    "batch_size": (1, 1 << 16),
    "max_sequences": (1, 1 << 12),
    "cache_tokens": (0, 1 << 36),
}


def limited(name: str, value: Any) -> int:
    """A whole number in the range of this option of an engine."""
    return whole(name, value, *LIMITS[name])


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number (Python's or numpy's, no bool) from low to high."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise InvalidRequest(f"{name} must be a whole number from {low} to {high}, not {value!r}")
    return number


def real(name: str, value: Any, low: float, high: float) -> float:
    """A finite number (Python's or numpy's, no bool) from low to high."""
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        raise InvalidRequest(f"{name} must be a number from {low} to {high}, not {value!r}")
    return number


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    names = list(allowed)
    if value not in names:
        raise InvalidRequest(f"{name} must be one of {', '.join(names)}, not {value!r}")
    return str(value)


def token_ids(tokens: Iterable[Any], n_vocab: int) -> list[int]:
    """A list of ids that the model has: the only way by which ids from outside come to a kernel."""
    if isinstance(tokens, (str, bytes)):
        raise InvalidRequest("token ids must be a list of whole numbers, not text")
    try:
        given = list(tokens)
    except TypeError:
        raise InvalidRequest(f"token ids must be a list of whole numbers, not {type(tokens).__name__}") from None
    return [whole("a token id", token, 0, n_vocab - 1) for token in given]
