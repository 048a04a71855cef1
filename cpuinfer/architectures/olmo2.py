"""OLMo 2: norms after the blocks only; query and key norms run over the whole row."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("olmo2",), partial(read, rope_style=HALVES, whole_row_qk_norm=True), decoder))
