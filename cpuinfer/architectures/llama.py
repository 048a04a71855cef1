"""Llama 1 to 3, Mistral, Mixtral, SmolLM, InternLM 2, ERNIE 4.5, XVERSE and all that share their layout.

RMS norms, interleaved rope (scaled as the file says), SiLU-gated feed-forward.
"""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import INTERLEAVED

register(Architecture(("llama", "internlm2", "ernie4_5", "xverse"), partial(read, rope_style=INTERLEAVED), decoder))
