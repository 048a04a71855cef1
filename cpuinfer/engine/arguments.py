"""Checks of what callers hand in: numbers with a range, token ids. Every message names the argument, its range and what came instead."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from ..errors import InvalidRequest


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


def token_ids(tokens: Iterable[Any], n_vocab: int) -> list[int]:
    """A list of ids that the model has: the only way by which ids from outside come to a kernel."""
    if isinstance(tokens, (str, bytes)):
        raise InvalidRequest("token ids must be a list of whole numbers, not text")
    try:
        given = list(tokens)
    except TypeError:
        raise InvalidRequest(f"token ids must be a list of whole numbers, not {type(tokens).__name__}") from None
    return [whole("a token id", token, 0, n_vocab - 1) for token in given]
