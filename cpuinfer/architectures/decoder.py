"""The forward pass that most decoders share. A tensor that a file lacks is the identity, so biases, head norms and norms after a block need no flags."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedModel
from ..program.builder import Builder, Weights
from ..program.ops import Buffer
from .hyperparameters import Hyperparameters


def decoder(b: Builder, w: Weights, hp: Hyperparameters, layer: Any = None) -> Buffer:
    """Embedding, layers, last norm, logits. `layer(b, x, weights, hp, i)` replaces decoder_layer."""
    x = b.embedding(w.token_embd, hp.dim, hp.embedding_scale)
    for i in range(hp.n_layers):
        b.scope = f"blk.{i}."
        x = (layer or decoder_layer)(b, x, w.layer(i), hp, i)
    return b.output(x, w.output_norm, w.output or w.token_embd, hp.norm_eps, softcap=hp.logit_softcap)


def decoder_layer(b: Builder, x: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    """x: [tokens, dim] -> [tokens, dim]"""
    x = b.add(x, b.norm(attention(b, b.norm(x, w.attn_norm, hp.norm_eps), w, hp, i), w.post_attention_norm, hp.norm_eps))
    return b.add(x, b.norm(mlp(b, b.norm(x, w.ffn_norm, hp.norm_eps), w, hp, i), w.post_ffw_norm, hp.norm_eps))


def attention(b: Builder, h: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    n_heads, n_kv_heads = hp.n_heads[i], hp.n_kv_heads[i]
    q_rows, k_rows, v_rows = n_heads * hp.key_dim, n_kv_heads * hp.key_dim, n_kv_heads * hp.value_dim
    parts = (w.attn_q, w.attn_k, w.attn_v)
    if fused := w.attn_qkv:
        b.matrix(fused, hp.dim, q_rows + k_rows + v_rows)
        parts = (fused.rows(0, q_rows), fused.rows(q_rows, q_rows + k_rows), fused.rows(q_rows + k_rows, q_rows + k_rows + v_rows))
    q, k, v = b.linear(h, *parts, rows=(q_rows, k_rows, v_rows))
    q = b.rope(b.head_norm(q, w.attn_q_norm, n_heads, hp.norm_eps), n_heads, hp.ropes[i], "rope_q")
    k = b.rope(b.head_norm(k, w.attn_k_norm, n_kv_heads, hp.norm_eps), n_kv_heads, hp.ropes[i], "rope_k")
    layer = b.store_kv(k, v, n_kv_heads)
    a = b.attention(q, layer, n_heads, hp.attention_scale, hp.windows[i], hp.attention_softcap)
    return b.linear(a, w.attn_output, rows=(hp.dim,))


def mlp(b: Builder, h: Buffer, w: Weights, hp: Hyperparameters, i: int) -> Buffer:
    """down(activation(gate h) * (up h)); gate and up may be one tensor."""
    if w.ffn_gate_inp or w.ffn_up_exps:
        raise UnsupportedModel(f"{b.file.path}: architecture {b.architecture} with experts (mixture of experts) is not supported yet; use a dense model")
    ffn = hp.ffn_dim[i]
    parts = (w.ffn_gate, w.ffn_up)
    if not parts[0]:
        b.matrix(w.ffn_up, hp.dim, 2 * ffn)
        parts = (w.ffn_up.rows(0, ffn), w.ffn_up.rows(ffn, 2 * ffn))
    gate, up = b.linear(h, *parts, rows=(ffn, ffn))
    return b.linear(b.activate(gate, up, hp.activation), w.ffn_down, rows=(hp.dim,))
