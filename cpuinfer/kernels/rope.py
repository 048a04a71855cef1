"""Rotary position embedding: pair (p, q) of a head becomes (p cos - q sin, p sin + q cos). The angles' table is made once per batch and rope."""

from __future__ import annotations

import math

import numpy as np

from .registry import op_kernel
from .simd import fma, load_f32, load_f32x16, load_f64, load_i32, mul, store_f32, store_f32x16, sub, zero_f32x16


@op_kernel("rope_table")
def rope_table(op, batch, rank, size):
    half = op.dimensions // 2
    items = batch.n_tokens * half
    share = (items + size - 1) // size
    for item in range(rank * share, min(items, rank * share + share)):
        token, i = item // half, item % half
        position = load_i32(batch.positions + 4 * token)
        angle = position * load_f64(op.frequencies + 8 * i)
        magnitude = op.magnitude
        if op.growth != 0:
            magnitude *= 1 + op.growth * math.log(1.0 + position // op.span)
        row = op.table + 4 * op.table_stride * token
        store_f32(row + 4 * i, np.float32(math.cos(angle) * magnitude))
        store_f32(row + 4 * (half + i), np.float32(math.sin(angle) * magnitude))


@op_kernel("rope")
def rope(op, batch, rank, size):
    """In place; items (token, head) are split in order, as head_norm and store_kv split them."""
    half = op.dimensions // 2
    items = batch.n_tokens * op.n_heads
    share = (items + size - 1) // size
    for item in range(rank * share, min(items, rank * share + share)):
        token, head = item // op.n_heads, item % op.n_heads
        cosine = op.table + 4 * op.table_stride * token
        sine = cosine + 4 * half
        x = op.x + 4 * (op.x_stride * token + op.head_dim * head)
        if op.style == 0:
            for i in range(half):
                p, q = load_f32(x + 8 * i), load_f32(x + 8 * i + 4)
                c, s = load_f32(cosine + 4 * i), load_f32(sine + 4 * i)
                store_f32(x + 8 * i, p * c - q * s)
                store_f32(x + 8 * i + 4, p * s + q * c)
        else:
            y = x + 4 * half
            whole = half // 16 * 16
            for i in range(0, whole, 16):
                p, q = load_f32x16(x + 4 * i), load_f32x16(y + 4 * i)
                c, s = load_f32x16(cosine + 4 * i), load_f32x16(sine + 4 * i)
                store_f32x16(x + 4 * i, fma(p, c, sub(zero_f32x16(), mul(q, s))))
                store_f32x16(y + 4 * i, fma(p, s, mul(q, c)))
            for i in range(whole, half):
                p, q = load_f32(x + 4 * i), load_f32(y + 4 * i)
                c, s = load_f32(cosine + 4 * i), load_f32(sine + 4 * i)
                store_f32(x + 4 * i, p * c - q * s)
                store_f32(y + 4 * i, p * s + q * c)
