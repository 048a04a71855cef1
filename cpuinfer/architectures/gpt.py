"""Decoders with layer norms and an ungated GELU.

GPT-2 and StarCoder have learned positions, MPT and BLOOM ALiBi (BLOOM norms its embedding too). CodeShell, GPT-NeoX and Falcon rotate; the last two run attention and
feed-forward in parallel.
"""

from __future__ import annotations

from functools import partial

from ..errors import UnsupportedModel
from ..formats.gguf import GGUFFile
from ..program.builder import LAYER, Builder, Weights
from ..program.ops import Buffer
from . import Architecture, register
from .decoder import BIASES, decoder, decoder_layer, layer_norms, parallel_layer
from .hyperparameters import Hyperparameters, Keys, read
from .rope import HALVES

gelu = partial(read, activation="gelu", norm_kind=LAYER, gated=False)


def learned_positions(file: GGUFFile, context_length: int) -> Hyperparameters:
    h = gelu(file, context_length, rope_style=None)
    table = file.tensors.get("position_embd.weight")
    if table is not None and max(context_length, h.context_length) > table.shape[0]:
        raise UnsupportedModel(f"{file.path}: the model has learned {table.shape[0]} positions; a longer context cannot be used (-c {table.shape[0]})")
    return h


def mpt(file: GGUFFile, context_length: int) -> Hyperparameters:
    keys = Keys(file)
    if keys.real("attention.clamp_kqv", 0.0):
        raise UnsupportedModel(f"{file.path}: clamping of queries, keys and values ({keys.prefix}.attention.clamp_kqv) is not supported")
    return gelu(file, context_length, rope_style=None, alibi=lambda keys, h: keys.real("attention.max_alibi_bias", 0.0))


def neox_layer(b: Builder, x: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    return (parallel_layer if Keys(b.file).get("use_parallel_residual", bool, True) else decoder_layer)(b, x, w, hp, i)


everything = (*layer_norms(), "attn_qkv.bias", *BIASES)
register(Architecture(("gpt2", "starcoder"), learned_positions, decoder, ("position_embd", *everything)))
register(Architecture(("mpt",), mpt, decoder))
register(Architecture(("bloom",), partial(gelu, rope_style=None, alibi=8.0), decoder, (*layer_norms("token_embd_norm"), *everything)))
register(Architecture(("codeshell",), partial(gelu, rope_style=HALVES), decoder, everything))
register(Architecture(("gptneox",), partial(gelu, rope_style=HALVES), partial(decoder, layer=neox_layer), everything))
register(Architecture(("falcon",), partial(gelu, rope_style=HALVES), partial(decoder, layer=parallel_layer), layer_norms("output_norm", "attn_norm")))
