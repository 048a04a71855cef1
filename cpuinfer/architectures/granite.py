"""Granite, dense or with experts: as Llama, with scales of the embedding, of attention, of what each block adds, and of the logits (divided by theirs)."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Hyperparameters, Keys, read
from .rope import INTERLEAVED


def logit_scale(keys: Keys, h: Hyperparameters) -> float:
    return 1 / (keys.real("logit_scale", 1.0) or 1.0)


granite = partial(
    read,
    rope_style=INTERLEAVED,
    embedding_scale=lambda keys, h: keys.real("embedding_scale", 1.0),
    attention_scale=lambda keys, h: keys.real("attention.scale", 0.0) or None,
    residual_scale=lambda keys, h: keys.real("residual_scale", 1.0),
    logit_scale=logit_scale,
)
register(Architecture(("granite", "granitemoe"), granite, decoder))
