"""Command R (command-r) and Command R7B (cohere2): layer norms without bias, attention and feed-forward in parallel, scaled logits. cohere2 rotates only in its windowed layers."""

from __future__ import annotations

from functools import partial

from ..program.builder import LAYER
from . import Architecture, register
from .decoder import decoder, parallel_layer
from .hyperparameters import Hyperparameters, Keys, read, window_pattern
from .rope import INTERLEAVED, Rope


def local_ropes(keys: Keys, h: Hyperparameters) -> tuple[Rope | None, ...]:
    keys.count("attention.sliding_window")  # without it no layer would rotate
    return tuple(rope if window else None for rope, window in zip(h.ropes, window_pattern(4)(keys, h)))


cohere = partial(read, rope_style=INTERLEAVED, norm_kind=LAYER, logit_scale=lambda keys, h: keys.real("logit_scale"))
parallel = partial(decoder, layer=parallel_layer)
register(Architecture(("command-r",), cohere, parallel, ("output_norm", "attn_norm")))
register(Architecture(("cohere2",), partial(cohere, windows=window_pattern(4), ropes=local_ropes), parallel, ("output_norm", "attn_norm")))
