"""Qwen 2 and 2.5 (biases on q, k, v) and dense Qwen 3 (a norm on each query and key head): Llama's layout with rope over halves."""

from __future__ import annotations

from functools import partial

from . import Architecture, register
from .decoder import decoder
from .hyperparameters import read
from .rope import HALVES

register(Architecture(("qwen2", "qwen3"), partial(read, rope_style=HALVES), decoder))
