"""OLMo 2: norms after the blocks only; query and key norms run over the whole row. OLMo 3, its files with a window: three of four layers are windowed and rotate unscaled."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Hyperparameters, Keys, read, window_pattern
from .rope import HALVES, Rope, read_rope


def local_ropes(keys: Keys, h: Hyperparameters) -> tuple[Rope | None, ...]:
    local = read_rope(keys, h.key_dim, HALVES, 0, "rope.freq_base_swa", scaled=False, base=keys.real("rope.freq_base", 10000.0))
    return tuple(rope if window is None else local for rope, window in zip(h.ropes, window_pattern(4)(keys, h)))


olmo2 = partial(read, rope_style=HALVES, whole_row_qk_norm=True, windows=window_pattern(4), ropes=local_ropes)
register(Architecture(("olmo2",), olmo2, decoder, requires=("output_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")))
