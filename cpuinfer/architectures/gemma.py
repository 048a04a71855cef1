"""Gemma 1 to 3: embeddings times sqrt(dim), GELU gate; from 2 on norms before and after each block and sliding windows on most layers.

Gemma 2: every second layer is windowed, attention and logits are soft-capped. Gemma 3: five of six layers are windowed and use a local rope without
scaling; queries and keys are normed. The converter stored each norm weight plus one. The 27B models scale attention by the width of a head of `dim`, not by key_dim.
"""

from __future__ import annotations

import math
from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Hyperparameters, Keys, read, window_pattern
from .rope import HALVES, Rope, read_rope

LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def attention_scale(keys: Keys, h: Hyperparameters) -> float | None:
    return 1 / math.sqrt(h.dim // h.n_heads[0]) if h.n_layers == LAYERS_OF_27B[keys.prefix] else None


def local_ropes(keys: Keys, h: Hyperparameters) -> tuple[Rope | None, ...]:
    local = read_rope(keys, h.key_dim, HALVES, h.context_length, "rope.freq_base_swa", scaled=False)
    return tuple(rope if window is None else local for rope, window in zip(h.ropes, window_pattern(6)(keys, h)))


gemma = partial(read, rope_style=HALVES, activation="gelu", embedding_scale=lambda keys, h: math.sqrt(h.dim), attention_scale=attention_scale)
NORMS = ("output_norm", "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")

register(Architecture(("gemma",), partial(read, rope_style=HALVES, activation="gelu", embedding_scale=lambda keys, h: math.sqrt(h.dim)), decoder))
register(
    Architecture(
        ("gemma2",),
        partial(
            gemma,
            windows=window_pattern(2, 4096),
            attention_softcap=lambda keys, h: keys.real("attn_logit_softcapping", 50.0),
            logit_softcap=lambda keys, h: keys.real("final_logit_softcapping", 30.0),
        ),
        decoder,
        NORMS,
    )
)
register(
    Architecture(
        ("gemma3",),
        partial(
            gemma,
            windows=window_pattern(6),
            ropes=local_ropes,
            logit_softcap=lambda keys, h: keys.real("final_logit_softcapping", 0.0),
        ),
        decoder,
        (*NORMS, "attn_q_norm", "attn_k_norm"),
    )
)
