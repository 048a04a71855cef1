"""gpt-oss: experts with biases and a clamped SwiGLU, attention sinks, every second layer windowed. The norm after attention is the feed-forward's own."""

from __future__ import annotations

from functools import partial

from ..program.builder import Builder, Weights
from ..program.ops import Buffer
from . import Architecture, register
from .decoder import attention, decoder, mlp, norm
from .hyperparameters import Hyperparameters, read, window_pattern
from .rope import HALVES


def layer(b: Builder, x: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    x = b.add(x, attention(b, norm(b, x, w.attn_norm, hp), w, hp, i))
    return b.add(x, mlp(b, norm(b, x, w.post_attention_norm, hp), w, hp, i))


requires = ["output_norm", "attn_norm", "post_attention_norm", "attn_sinks", "ffn_gate_inp.bias"]
requires += [f"attn_{name}.bias" for name in ("q", "k", "v", "output")] + [f"ffn_{name}_exps.bias" for name in ("gate", "up", "down")]
gpt_oss = partial(read, rope_style=HALVES, activation="swiglu_oai", windows=window_pattern(2))
register(Architecture(("gpt-oss",), gpt_oss, partial(decoder, layer=layer), tuple(requires)))
