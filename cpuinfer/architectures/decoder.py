"""The forward pass that most decoders share. A tensor that a file lacks is the identity, so biases, head norms and norms before or after a block need no flags."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedModel
from ..program.builder import Builder, Weights
from ..program.ops import Buffer
from .hyperparameters import Hyperparameters

# Tensors that architectures require (Architecture.requires).
NORMS = ("output_norm", "attn_norm", "ffn_norm")
BIASES = ("attn_output.bias", "ffn_up.bias", "ffn_down.bias")


def layer_norms(*names: str) -> tuple[str, ...]:
    """Norms (default: NORMS) with their biases."""
    return tuple(f"{name}.{part}" for name in names or NORMS for part in ("weight", "bias"))


def decoder(b: Builder, w: Weights, hp: Hyperparameters, layer: Any = None) -> Buffer:
    """Embedding, layers, last norm, logits. `layer(b, x, weights, hp, i)` replaces decoder_layer."""
    x = b.embedding(w.token_embd, hp.dim, hp.embedding_scale)
    if w.position_embd:
        x = b.add(x, b.embedding(w.position_embd, hp.dim, by_position=True))
    x = b.norm(x, w.token_embd_norm, hp.norm_eps, hp.norm_kind)
    for i in range(hp.n_layers):
        b.scope = f"blk.{i}."
        x = (layer or decoder_layer)(b, x, w.layer(i), hp, i)
    return b.output(x, w.output_norm, w.output or w.token_embd, hp.norm_eps, hp.norm_kind, hp.logit_softcap, hp.logit_scale)


def decoder_layer(b: Builder, x: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    """x: [tokens, dim] -> [tokens, dim]"""
    h = attention(b, norm(b, x, w.attn_norm, hp), w, hp, i)
    x = b.add(x, norm(b, h, w.post_attention_norm, hp), b_scale=hp.residual_scale)
    h = mlp(b, norm(b, x, w.ffn_norm, hp), w, hp, i)
    return b.add(x, norm(b, h, w.post_ffw_norm, hp), b_scale=hp.residual_scale)


def parallel_layer(b: Builder, x: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    """x + attention(norm x) + mlp(norm x); each has a norm of its own if the file has two."""
    h = norm(b, x, w.attn_norm, hp)
    for_attention, for_mlp = norm(b, x, w.attn_norm_2, hp) if w.attn_norm_2 else h, norm(b, x, w.ffn_norm, hp) if w.ffn_norm else h
    return b.add(b.add(x, attention(b, for_attention, w, hp, i)), mlp(b, for_mlp, w, hp, i))


def norm(b: Builder, x: Buffer, weight: Any, hp: Hyperparameters) -> Buffer:
    return b.norm(x, weight, hp.norm_eps, hp.norm_kind)


def qk_norm(b: Builder, x: Buffer, weight: Any, n_heads: int, hp: Hyperparameters) -> Buffer:
    return norm(b, x, weight, hp) if hp.whole_row_qk_norm else b.head_norm(x, weight, n_heads, hp.norm_eps, hp.norm_kind)


def norm_and_rope(b: Builder, x: Buffer, weight: Any, n_heads: int, hp: Hyperparameters, rope: Any, label: str) -> Buffer:
    if hp.rope_before_norm:
        return qk_norm(b, b.rope(x, n_heads, rope, label), weight, n_heads, hp)
    return b.rope(qk_norm(b, x, weight, n_heads, hp), n_heads, rope, label)


def attention(b: Builder, h: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    n_heads, n_kv_heads = hp.n_heads[i], hp.n_kv_heads[i]
    q_rows, k_rows, v_rows = n_heads * hp.key_dim, n_kv_heads * hp.key_dim, n_kv_heads * hp.value_dim
    parts = (w.attn_q, w.attn_k, w.attn_v)
    if fused := w.attn_qkv:
        b.matrix(fused, hp.dim, q_rows + k_rows + v_rows)
        parts = (fused.rows(0, q_rows), fused.rows(q_rows, q_rows + k_rows), fused.rows(q_rows + k_rows, q_rows + k_rows + v_rows))
    q, k, v = b.linear(h, *parts, rows=(q_rows, k_rows, v_rows))
    q = norm_and_rope(b, q, w.attn_q_norm, n_heads, hp, (hp.query_ropes or hp.ropes)[i], "rope_q")
    k = norm_and_rope(b, k, w.attn_k_norm, n_kv_heads, hp, hp.ropes[i], "rope_k")
    layer = b.store_kv(k, v, n_kv_heads)
    a = b.attention(q, layer, n_heads, hp.attention_scale, hp.windows[i], hp.attention_softcap, hp.alibi, w.attn_sinks.tensor)
    return b.linear(a, w.attn_output, rows=(hp.dim,))


def mlp(b: Builder, h: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    """The layer's experts if it has some, else one feed-forward."""
    return experts_mlp(b, h, w, hp) if w.ffn_gate_inp else dense_mlp(b, h, w, hp, hp.ffn_dim[i])


def dense_mlp(b: Builder, h: Buffer, w: Weights, hp: Hyperparameters, ffn: int, suffix: str = "") -> Buffer:
    """down(activation(gate h) * (up h)), gate and up may be one tensor; without a gate (gated is False) down(activation(up h))."""
    w_gate, w_up, w_down = (getattr(w, f"ffn_{name}{suffix}") for name in ("gate", "up", "down"))
    if w_gate and hp.gated:
        gate, up = b.linear(h, w_gate, w_up, rows=(ffn, ffn))
    elif hp.gated:
        if b.matrix(w_up, hp.dim).shape[0] == ffn:
            b.matrix(w_gate, hp.dim)  # missing
        b.matrix(w_up, hp.dim, 2 * ffn)
        gate, up = b.linear(h, w_up.rows(0, ffn), w_up.rows(ffn, 2 * ffn), rows=(ffn, ffn))
    else:
        gate, up = b.linear(h, w_up, rows=(ffn,)), None
    return b.linear(b.activate(gate, up, hp.activation), w_down, rows=(hp.dim,))


def experts_mlp(b: Builder, h: Buffer, w: Weights, hp: Hyperparameters) -> Buffer:
    """The weighted sum of the routed experts, plus the shared one (times its own gate) where the file has it."""
    e = hp.experts
    if e is None:
        raise UnsupportedModel(f"{b.file.path}: the file has expert tensors, but no {b.architecture}.expert_count; it is damaged")
    logits = b.linear(h, w.ffn_gate_inp, rows=(e.n_experts,))
    routing = b.route(logits, e.n_used, e.sigmoid, w.exp_probs_b.bias, e.normalize, e.scale)
    x = b.gather(h, routing)
    gate, up = b.expert_linear(x, w, "ffn_gate", e.ffn_dim), b.expert_linear(x, w, "ffn_up", e.ffn_dim)
    y = b.expert_linear(b.activate(gate, up, hp.activation), w, "ffn_down", hp.dim)
    shared = gate_of_shared = None
    if w.ffn_up_shexp:
        shared = dense_mlp(b, h, w, hp, b.matrix(w.ffn_up_shexp, hp.dim).shape[0], "_shexp")
        if w.ffn_gate_inp_shexp:
            gate_of_shared = b.linear(h, w.ffn_gate_inp_shexp.as_matrix(), rows=(1,))
    return b.combine(y, shared, gate_of_shared)
