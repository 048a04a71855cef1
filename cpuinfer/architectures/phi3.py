"""Phi 3 and 3.5, Phi 4 mini: fused q, k, v and fused gate and up (split as row views by the decoder), LongRoPE factors.

The file's sliding window is not applied: the reference implementation found the models to answer better without it.
"""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("phi3",), partial(read, rope_style=HALVES), decoder, harmless=("attention.sliding_window",)))
