"""DeepSeek V2 and V3: multi-head latent attention (DeepSeek-AI 2024), leading dense layers, then experts with shared ones.

A token's keys and values are one latent c [kv_lora_rank] and one rotated part shared by all heads. Files with attn_k_b and attn_v_b are run absorbed: each head's query is
taken into the latent space, the cache holds [rotated | c] as one KV head, and the result leaves the latent space by attn_v_b. Older files with attn_kv_b
are run with the heads' keys and values spelled out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import partial

from ..errors import GGUFError
from ..formats.gguf import GGUFFile
from ..program.builder import Builder, Weights
from ..program.ops import Buffer
from . import Architecture, register
from .decoder import decoder, mlp, norm
from .hyperparameters import Experts, Hyperparameters, Keys, read
from .rope import INTERLEAVED


@dataclass(frozen=True)
class Latent(Hyperparameters):
    """kv_rank: length of the latent. rotated, plain: a head's key elements with and without rope."""

    kv_rank: int = 0
    rotated: int = 0
    plain: int = 0


def hyperparameters(file: GGUFFile, context_length: int) -> Latent:
    keys = Keys(file)
    h = read(file, context_length, rope_style=INTERLEAVED, experts=routed)
    rotated, rank = keys.count("rope.dimension_count"), keys.count("attention.kv_lora_rank")
    key_dim, value_dim = keys.count("attention.key_length_mla", h.key_dim), keys.count("attention.value_length_mla", h.value_dim)
    if key_dim <= rotated:
        raise GGUFError(f"{file.path}: heads of {key_dim} elements, of which {rotated} rotate; the file is damaged")
    rope = h.ropes[0]
    assert rope is not None
    scale = 1 / math.sqrt(key_dim)
    if keys.get("rope.scaling.type", str, "none") == "yarn":
        # The models scale the scores, not the rotated parts.
        rope = replace(rope, magnitude=1.0)
        scale *= (1 + keys.real("rope.scaling.yarn_log_multiplier", 0.0) * math.log(keys.real("rope.scaling.factor", 1.0))) ** 2
    same = {f.name: getattr(h, f.name) for f in fields(h)}
    same |= {"ropes": (rope,) * h.n_layers, "key_dim": key_dim, "value_dim": value_dim, "attention_scale": scale}
    return Latent(**same, kv_rank=rank, rotated=rotated, plain=key_dim - rotated)


def routed(keys: Keys, h: Hyperparameters) -> Experts | None:
    return replace(h.experts, normalize=keys.get("expert_weights_norm", bool, False)) if h.experts else None


def layer(b: Builder, x: Buffer, w: Weights, hp: Latent, i: int) -> Buffer:
    x = b.add(x, attention(b, norm(b, x, w.attn_norm, hp), w, hp, i))
    return b.add(x, mlp(b, norm(b, x, w.ffn_norm, hp), w, hp, i))


def attention(b: Builder, h: Buffer, w: Weights, hp: Latent, i: int) -> Buffer:
    n, rotated, plain, rank = hp.n_heads[i], hp.rotated, hp.plain, hp.kv_rank
    if w.attn_q_a:
        q = b.linear(norm(b, b.linear(h, w.attn_q_a), w.attn_q_a_norm, hp), w.attn_q_b, rows=(n * hp.key_dim,))
    else:
        q = b.linear(h, w.attn_q, rows=(n * hp.key_dim,))
    compressed = b.linear(h, w.attn_kv_a_mqa, rows=(rank + rotated,))
    latent = norm(b, b.columns(compressed, 1, rank), w.attn_kv_a_norm, hp)
    shared = b.columns(compressed, 1, rotated, first=rank)  # the rotated part of every head's key
    if w.attn_k_b:
        return absorbed(b, q, latent, shared, w, hp, i)
    spelled = b.linear(latent, w.attn_kv_b, rows=(n * (plain + hp.value_dim),))
    keys = b.join_heads(n, (shared, 0, rotated, True), (spelled, 0, plain, False))
    values = b.columns(spelled, n, hp.value_dim, first=plain)
    queries = b.join_heads(n, (q, plain, rotated, False), (q, 0, plain, False))
    kv = b.store_kv(b.rope(keys, n, hp.ropes[i], "rope_k"), values, n)
    a = b.attention(b.rope(queries, n, hp.ropes[i], "rope_q"), kv, n, hp.attention_scale)
    return b.linear(a, w.attn_output, rows=(hp.dim,))


def absorbed(b: Builder, q: Buffer, latent: Buffer, shared: Buffer, w: Weights, hp: Latent, i: int) -> Buffer:
    n, rotated, plain, rank = hp.n_heads[i], hp.rotated, hp.plain, hp.kv_rank
    inner = b.head_linear(b.by_head(q, n, plain), w.attn_k_b, rank)
    queries = b.join_heads(n, (q, plain, rotated, False), (inner, 0, rank, False))
    keys = b.join_heads(1, (shared, 0, rotated, False), (latent, 0, rank, False))
    kv = b.store_kv(b.rope(keys, 1, hp.ropes[i], "rope_k"), latent, 1)
    a = b.attention(b.rope(queries, n, hp.ropes[i], "rope_q"), kv, n, hp.attention_scale)
    values = b.head_linear(b.by_head(a, n, rank), w.attn_v_b, hp.value_dim)
    return b.linear(b.join_heads(n, (values, 0, hp.value_dim, False)), w.attn_output, rows=(hp.dim,))


register(Architecture(("deepseek2",), hyperparameters, partial(decoder, layer=layer), ("output_norm", "attn_norm", "ffn_norm", "attn_kv_a_norm")))
