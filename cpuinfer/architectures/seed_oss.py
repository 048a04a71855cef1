"""Seed-OSS: as Qwen 2. The tensor called post_attention_norm is the feed-forward's own norm."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .gpt_oss import layer
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("seed_oss",), partial(read, rope_style=HALVES), partial(decoder, layer=layer), ("output_norm", "attn_norm", "post_attention_norm")))
