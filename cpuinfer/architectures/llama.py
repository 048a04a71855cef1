"""Llama 1 to 3, Mistral, Mixtral, SmolLM and all that share their layout: RMS norms, interleaved rope (scaled as the file says), SiLU-gated feed-forward."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import INTERLEAVED

register(Architecture(("llama",), partial(read, rope_style=INTERLEAVED), decoder))
