"""StarCoder 2: layer norms and biases everywhere, GELU without a gate. StableLM: layer norms, partial rotation, SiLU gate; in parallel where a layer has one norm."""

from __future__ import annotations

from functools import partial

from ..program.builder import LAYER, Builder, Weights
from ..program.ops import Buffer
from . import Architecture, register
from .decoder import BIASES, decoder, decoder_layer, layer_norms, parallel_layer
from .hyperparameters import Hyperparameters, read
from .rope import HALVES


def stablelm_layer(b: Builder, x: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    return (decoder_layer if w.ffn_norm else parallel_layer)(b, x, w, hp, i)


register(Architecture(("starcoder2",), partial(read, rope_style=HALVES, activation="gelu", norm_kind=LAYER, gated=False), decoder, (*layer_norms(), *BIASES)))
register(
    Architecture(
        ("stablelm",),
        partial(read, rope_style=HALVES, norm_kind=LAYER),
        partial(decoder, layer=stablelm_layer),
        layer_norms("output_norm", "attn_norm"),
        harmless=("use_parallel_residual",),  # the layers' norms show it
    )
)
