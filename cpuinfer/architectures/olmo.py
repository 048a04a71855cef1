"""OLMo 1: layer norms without weights, else as Llama."""

from __future__ import annotations

from functools import partial

from ..errors import UnsupportedModel
from ..formats.gguf import GGUFFile
from ..program.builder import LAYER, Builder, Weights
from ..program.ops import Buffer
from . import Architecture, register
from .decoder import attention, decoder, mlp
from .hyperparameters import Hyperparameters, Keys, read
from .rope import INTERLEAVED


def olmo(file: GGUFFile, context_length: int) -> Hyperparameters:
    keys = Keys(file)
    if keys.real("attention.clamp_kqv", 0.0):
        raise UnsupportedModel(f"{file.path}: clamping of queries, keys and values ({keys.prefix}.attention.clamp_kqv) is not supported")
    return read(file, context_length, rope_style=INTERLEAVED, norm_kind=LAYER)


def layer(b: Builder, x: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    x = b.add(x, attention(b, b.norm(x, w.attn_norm, hp.norm_eps, LAYER, always=True), w, hp, i))
    return b.add(x, mlp(b, b.norm(x, w.ffn_norm, hp.norm_eps, LAYER, always=True), w, hp, i))


register(Architecture(("olmo",), olmo, partial(decoder, layer=layer), requires=()))
