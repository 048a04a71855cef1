"""EXAONE 3: as Llama, but rope on halves of a head.

EXAONE 4: norms after the blocks only, head norms. Where the file has a sliding window, three of four layers use it and only these rotate.
"""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Hyperparameters, Keys, read, window_pattern
from .rope import HALVES, Rope


def local_ropes(keys: Keys, h: Hyperparameters) -> tuple[Rope | None, ...]:
    windows = window_pattern(4)(keys, h)
    return h.ropes if not any(windows) else tuple(rope if window else None for rope, window in zip(h.ropes, windows))


register(Architecture(("exaone",), partial(read, rope_style=HALVES), decoder))
requires = ("output_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
register(Architecture(("exaone4",), partial(read, rope_style=HALVES, windows=window_pattern(4), ropes=local_ropes), decoder, requires))
