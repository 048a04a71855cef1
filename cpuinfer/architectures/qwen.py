"""Qwen 2 and 3, dense and with experts: rope on halves of a head, biases (2) or head norms (3) as the file has them.

Qwen 2 does not let the weights of chosen experts sum to one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Experts, Hyperparameters, Keys, read
from .rope import HALVES


def plain_weights(keys: Keys, h: Hyperparameters) -> Experts | None:
    return replace(h.experts, normalize=False) if h.experts else None


register(Architecture(("qwen2", "qwen3", "qwen3moe"), partial(read, rope_style=HALVES), decoder))
register(Architecture(("qwen2moe",), partial(read, rope_style=HALVES, experts=plain_weights), decoder))
