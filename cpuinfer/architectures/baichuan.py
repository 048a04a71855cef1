"""Baichuan: as Llama. The 13B models, told by their number of layers, have ALiBi instead of rope."""

from __future__ import annotations

from ..formats.gguf import GGUFFile
from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Hyperparameters, Keys, read
from .rope import INTERLEAVED

LAYERS_OF_13B = 40


def baichuan(file: GGUFFile, context_length: int) -> Hyperparameters:
    if Keys(file).count("block_count") == LAYERS_OF_13B:
        return read(file, context_length, rope_style=None, alibi=8.0)
    return read(file, context_length, rope_style=INTERLEAVED)


register(Architecture(("baichuan",), baichuan, decoder))
