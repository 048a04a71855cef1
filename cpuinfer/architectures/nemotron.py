"""Nemotron (dense): layer norms, part of each head rotated, squared ReLU without a gate. The converter stored each norm weight plus one."""

from __future__ import annotations

from functools import partial

from ..program.builder import LAYER
from . import Architecture, register
from .decoder import decoder, layer_norms
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("nemotron",), partial(read, rope_style=HALVES, activation="relu2", norm_kind=LAYER, gated=False), decoder, layer_norms()))
