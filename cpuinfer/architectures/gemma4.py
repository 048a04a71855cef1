"""Gemma 4: layers of two kinds. Windowed ones have heads, rope and often KV heads of their own; scores are not scaled, values are RMS-normed, and keys may serve as values.

The last `shared_kv_layers` keep no keys and values: they look at those of the last earlier layer of their kind. The small models add to each layer an embedding of its own:
    inputs = (norm(W x0 / sqrt(dim)) + sqrt(n) * table[token]) / sqrt(2), n elements a layer;  x += norm(proj(gelu(inp_gate x) * inputs[layer]))
In the mixture of experts a dense feed-forward stands beside the routed ones, each with norms of its own; the router has a norm without weight. Every layer ends with a factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..errors import GGUFError
from ..formats.gguf import GGUFFile
from ..program.builder import Builder, Weight, Weights
from ..program.ops import Buffer
from . import Architecture, register
from .decoder import dense_mlp, norm
from .gemma import NORMS
from .hyperparameters import Hyperparameters, Keys, read, window_pattern
from .rope import HALVES, make_rope


@dataclass(frozen=True)
class Gemma4(Hyperparameters):
    """head_dims: of each layer. kv_layers: the layer whose keys and values each layer looks at. layer_dim: what a layer's own embedding has, 0 for none."""

    head_dims: tuple[int, ...] = ()
    kv_layers: tuple[int, ...] = ()
    layer_dim: int = 0


def hyperparameters(file: GGUFFile, context_length: int) -> Gemma4:
    keys = Keys(file)
    h = read(
        file,
        context_length,
        rope_style=HALVES,
        activation="gelu",
        windows=window_pattern(6),
        attention_scale=1.0,
        embedding_scale=lambda keys, h: math.sqrt(h.dim),
        logit_softcap=lambda keys, h: keys.real("final_logit_softcapping", 0.0),
    )
    local_dim = keys.count("attention.key_length_swa", h.key_dim)
    if h.value_dim != h.key_dim or keys.count("attention.value_length_swa", local_dim) != local_dim:
        raise GGUFError(f"{file.path}: keys and values of {keys.prefix} must be of one length; the file is damaged")
    local = make_rope(keys.count("rope.dimension_count_swa", local_dim), HALVES, keys.real("rope.freq_base_swa", keys.real("rope.freq_base", 10000.0)))
    own = h.n_layers - keys.get("attention.shared_kv_layers", int, 0)
    windowed = [window is not None for window in h.windows]
    kv_layers = [i if i < own else max((j for j in range(own) if windowed[j] == windowed[i]), default=-1) for i in range(h.n_layers)]
    if min(kv_layers) < 0:
        raise GGUFError(f"{file.path}: {keys.prefix}.attention.shared_kv_layers leaves no layer to share keys and values of; the file is damaged")
    return Gemma4(
        **{f.name: getattr(h, f.name) for f in fields(h)} | {"ropes": tuple(local if w else rope for w, rope in zip(windowed, h.ropes))},
        head_dims=tuple(local_dim if w else h.key_dim for w in windowed),
        kv_layers=tuple(kv_layers),
        layer_dim=keys.get("embedding_length_per_layer_input", int, 0),
    )


def decoder(b: Builder, w: Weights, hp: Gemma4) -> Buffer:
    x = b.embedding(w.token_embd, hp.dim, hp.embedding_scale)
    inputs = layer_inputs(b, x, w, hp) if hp.layer_dim else None
    for i in range(hp.n_layers):
        b.scope = f"blk.{i}."
        x = layer(b, x, inputs, w.layer(i), hp, i)
    return b.output(x, w.output_norm, w.output or w.token_embd, hp.norm_eps, softcap=hp.logit_softcap)


def layer_inputs(b: Builder, x: Buffer, w: Weights, hp: Gemma4) -> Buffer:
    """[tokens, n_layers * layer_dim]"""
    columns = hp.n_layers * hp.layer_dim
    table = b.embedding(w.per_layer_token_embd, columns, math.sqrt(hp.layer_dim))
    # norm(x / sqrt(dim)) with eps is norm(x) with dim * eps.
    projected = b.head_norm(b.linear(x, w.per_layer_model_proj, rows=(columns,)), w.per_layer_proj_norm, hp.n_layers, hp.norm_eps * hp.dim)
    return b.add(projected, table, math.sqrt(0.5), math.sqrt(0.5))


def layer(b: Builder, x: Buffer, inputs: Buffer | None, w: Weights, hp: Gemma4, i: int) -> Buffer:
    x = b.add(x, norm(b, attention(b, norm(b, x, w.attn_norm, hp), w, hp, i), w.post_attention_norm, hp))
    x = b.add(x, norm(b, feed_forward(b, x, w, hp, i), w.post_ffw_norm, hp))
    if inputs:
        own = b.columns(inputs, 1, hp.layer_dim, first=i * hp.layer_dim)
        gated = b.activate(b.linear(x, w.inp_gate, rows=(hp.layer_dim,)), own, hp.activation)
        x = b.add(x, norm(b, b.linear(gated, w.proj, rows=(hp.dim,)), w.post_norm, hp))
    factor = b.vector(w.layer_output_scale.tensor, 1)
    return x if factor is None else b.scale(x, float(factor[0]))


def attention(b: Builder, h: Buffer, w: Weights, hp: Gemma4, i: int) -> Buffer:
    n_heads, n_kv_heads, head_dim = hp.n_heads[i], hp.n_kv_heads[i], hp.head_dims[i]
    if hp.kv_layers[i] == i:
        kv_rows = n_kv_heads * head_dim
        if w.attn_v:
            q, k, v = b.linear(h, w.attn_q, w.attn_k, w.attn_v, rows=(n_heads * head_dim, kv_rows, kv_rows))
        else:
            q, k = b.linear(h, w.attn_q, w.attn_k, rows=(n_heads * head_dim, kv_rows))
            v = b.columns(k, 1, kv_rows)
        k = b.rope(b.head_norm(k, w.attn_k_norm, n_kv_heads, hp.norm_eps), n_kv_heads, hp.ropes[i], "rope_k")
        v = b.head_norm(v, w.attn_v_norm, n_kv_heads, hp.norm_eps, always=True)
        b.store_kv(k, v, n_kv_heads)
    else:
        q = b.linear(h, w.attn_q, rows=(n_heads * head_dim,))
        # Converters may keep the tensors that a sharing layer does not use.
        for name in ("attn_k", "attn_v", "attn_k_norm"):
            getattr(w, name)
    q = b.rope(b.head_norm(q, w.attn_q_norm, n_heads, hp.norm_eps), n_heads, hp.ropes[i], "rope_q")
    a = b.attention(q, hp.kv_layers[i], n_heads, hp.attention_scale, hp.windows[i])
    return b.linear(a, w.attn_output, rows=(hp.dim,))


def feed_forward(b: Builder, x: Buffer, w: Weights, hp: Gemma4, i: int) -> Buffer:
    dense = dense_mlp(b, norm(b, x, w.ffn_norm, hp), w, hp, hp.ffn_dim[i])
    e = hp.experts
    if not w.ffn_gate_inp or e is None:
        return dense
    normed = b.norm(x, Weight("ffn_gate_inp.scale", w.tensor("ffn_gate_inp.scale"), None), hp.norm_eps, always=True)
    logits = b.scale(b.linear(normed, w.ffn_gate_inp, rows=(e.n_experts,)), 1 / math.sqrt(hp.dim))
    routing = b.route(logits, e.n_used, scales=w.tensor("ffn_down_exps.scale"))
    h = b.gather(norm(b, x, w.pre_ffw_norm_2, hp), routing)
    if w.ffn_gate_up_exps:
        gate, up = (b.expert_linear(h, w, "ffn_gate_up", e.ffn_dim, part, 2) for part in (0, 1))
    else:
        gate, up = (b.expert_linear(h, w, name, e.ffn_dim) for name in ("ffn_gate", "ffn_up"))
    routed = b.combine(b.expert_linear(b.activate(gate, up, hp.activation), w, "ffn_down", hp.dim))
    return b.add(norm(b, dense, w.post_ffw_norm_1, hp), norm(b, routed, w.post_ffw_norm_2, hp))


# Which tensors a layer has depends on its kind and on whose keys and values it uses.
register(Architecture(("gemma4",), hyperparameters, decoder, (*NORMS, "attn_q_norm"), varying=("attn_k", "attn_v")))
