"""SmolLM3: as Llama, but every fourth layer does not rotate (NoPE)."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import Hyperparameters, Keys, read
from .rope import INTERLEAVED, Rope


def three_of_four(keys: Keys, h: Hyperparameters) -> tuple[Rope | None, ...]:
    return tuple(None if i % 4 == 3 else rope for i, rope in enumerate(h.ropes))


register(Architecture(("smollm3",), partial(read, rope_style=INTERLEAVED, ropes=three_of_four), decoder))
