"""Phi 1.5 and 2: layer norms, part of each head rotated, GELU without a gate; attention and feed-forward in parallel after one norm, biases everywhere."""

from __future__ import annotations

from functools import partial

from ..program.builder import LAYER
from . import Architecture, register
from .decoder import BIASES, decoder, layer_norms, parallel_layer
from .hyperparameters import read
from .rope import HALVES

requires = ("output", "output.bias", *layer_norms("output_norm", "attn_norm"), *BIASES)
register(Architecture(("phi2",), partial(read, rope_style=HALVES, activation="gelu", norm_kind=LAYER, gated=False), partial(decoder, layer=parallel_layer), requires))
