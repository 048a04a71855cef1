"""Arcee (AFM): as Llama, with a squared ReLU in place of the gated feed-forward."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import INTERLEAVED

register(Architecture(("arcee",), partial(read, rope_style=INTERLEAVED, activation="relu2", gated=False), decoder))
