"""Hunyuan (dense): as Qwen 3, but queries and keys are normed after their rotation."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import NORMS, decoder
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("hunyuan-dense",), partial(read, rope_style=HALVES, rope_before_norm=True), decoder, (*NORMS, "attn_q_norm", "attn_k_norm")))
