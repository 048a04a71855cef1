"""Phi 1.5 and 2: layer norms, part of each head rotated, GELU without a gate; attention and feed-forward in parallel after one norm, biases everywhere."""

from __future__ import annotations

from functools import partial

from ..program.builder import LAYER
from . import Architecture, register
from .decoder import decoder, parallel_layer
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("phi2",), partial(read, rope_style=HALVES, activation="gelu", norm_kind=LAYER), partial(decoder, layer=parallel_layer)))
