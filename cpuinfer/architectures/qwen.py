"""Qwen 1 to 3, dense and with experts: rope on halves of a head, biases (2) or head norms (3) as the file has them.

Qwen 1 counts gate and up together as its feed-forward length. Qwen 2 does not let the weights of chosen experts sum to one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from . import Architecture, register
from .decoder import NORMS, decoder
from .hyperparameters import Experts, Hyperparameters, Keys, read
from .rope import HALVES


def plain_weights(keys: Keys, h: Hyperparameters) -> Experts | None:
    return replace(h.experts, normalize=False) if h.experts else None


def half_feed_forward(keys: Keys, h: Hyperparameters) -> tuple[int, ...]:
    return tuple(length // 2 for length in h.ffn_dim)


register(Architecture(("qwen",), partial(read, rope_style=HALVES, ffn_dim=half_feed_forward), decoder, (*NORMS, "attn_qkv.bias")))
register(Architecture(("qwen2",), partial(read, rope_style=HALVES), decoder))
register(Architecture(("qwen3", "qwen3moe"), partial(read, rope_style=HALVES), decoder, (*NORMS, "attn_q_norm", "attn_k_norm")))
register(Architecture(("qwen2moe",), partial(read, rope_style=HALVES, experts=plain_weights), decoder))
