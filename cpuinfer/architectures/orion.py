"""Orion: as Llama, with layer norms that have biases."""

from __future__ import annotations

from functools import partial

from ..program.builder import LAYER
from . import Architecture, register
from .decoder import decoder, layer_norms
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("orion",), partial(read, rope_style=HALVES, norm_kind=LAYER), decoder, layer_norms()))
