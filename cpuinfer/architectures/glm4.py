"""GLM 4 (2025): norms before and after each block, half of each head rotated, fused gate and up."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .gemma import NORMS
from .hyperparameters import read
from .rope import INTERLEAVED

register(Architecture(("glm4",), partial(read, rope_style=INTERLEAVED), decoder, NORMS))
