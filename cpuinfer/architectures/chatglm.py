"""ChatGLM 2 and 3, GLM 4 of 2024: as Llama with half of each head rotated; fused q, k, v with biases, fused gate and up."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import INTERLEAVED

register(Architecture(("chatglm",), partial(read, rope_style=INTERLEAVED), decoder))
