"""MiniCPM: Granite's scales under other defaults. Embeddings times 12, what a block adds times 1.4 / sqrt(layers), logits divided by dim / 256."""

from __future__ import annotations

import math
from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import INTERLEAVED

minicpm = partial(
    read,
    rope_style=INTERLEAVED,
    embedding_scale=lambda keys, h: keys.real("embedding_scale", 12.0),
    residual_scale=lambda keys, h: keys.real("residual_scale", 1.4 / math.sqrt(h.n_layers)),
    logit_scale=lambda keys, h: 1 / keys.real("logit_scale", h.dim / 256),
)
register(Architecture(("minicpm",), minicpm, decoder))
