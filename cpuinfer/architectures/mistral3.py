"""Ministral 3: as Llama with YaRN. Where the file says so, queries grow with the logarithm of their position in units of the original context."""

from __future__ import annotations

import math
from dataclasses import replace

from ..errors import UnsupportedModel
from ..formats.gguf import GGUFFile
from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Hyperparameters, Keys, read
from .rope import INTERLEAVED


def mistral3(file: GGUFFile, context_length: int) -> Hyperparameters:
    keys = Keys(file)
    h = read(file, context_length, rope_style=INTERLEAVED)
    rope = h.ropes[0]
    assert rope is not None
    if keys.get("rope.scaling.type", str, "none") == "yarn":
        # The multiplier takes back YaRN's own growth of scores, wholly if it is 1.
        rope = replace(rope, magnitude=rope.magnitude / (1 + 0.1 * keys.real("rope.scaling.yarn_log_multiplier", 0.0) * math.log(keys.real("rope.scaling.factor"))))
    for_queries, growth = rope, keys.real("attention.temperature_scale", 0.0)
    if growth:
        if rope.dim != h.key_dim:
            raise UnsupportedModel(f"{file.path}: {keys.prefix}.attention.temperature_scale with heads of which only {rope.dim} of {h.key_dim} elements rotate is not supported")
        for_queries = replace(rope, growth=growth, span=keys.count("rope.scaling.original_context_length"))
    return replace(h, ropes=(rope,) * h.n_layers, query_ropes=(for_queries,) * h.n_layers)


register(Architecture(("mistral3",), mistral3, decoder))
