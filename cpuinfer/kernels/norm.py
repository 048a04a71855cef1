"""RMS norm and layer norm of rows, of heads, with the result optionally added to a residual and optionally quantized.

RMS norm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019). Layer norm: y = (x - mean) / sqrt(variance + eps) * weight + bias.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .quantize import quantize_span
from .registry import op_kernel
from .simd import add, fma, load_f32, load_f32x16, load_i32, mul, splat_f32x16, store_f32, store_f32x16, sub, sum_lanes, zero_f32x16

LAYER = 1


@njit
def mean_and_rms(x, columns, kind, eps):
    """(what is subtracted, what is multiplied) for the row at address x; the padding after `columns` must be zero."""
    total = zero_f32x16()
    if kind == LAYER:
        for i in range(0, columns, 16):
            total = add(total, load_f32x16(x + 4 * i))
        mean = sum_lanes(total) / np.float32(columns)
        total = zero_f32x16()
        whole = columns // 16 * 16
        for i in range(0, whole, 16):
            d = sub(load_f32x16(x + 4 * i), splat_f32x16(mean))
            total = fma(d, d, total)
        squares = np.float64(sum_lanes(total))
        for i in range(whole, columns):
            d = load_f32(x + 4 * i) - mean
            squares += d * d
    else:
        mean = np.float32(0)
        for i in range(0, columns, 16):
            v = load_f32x16(x + 4 * i)
            total = fma(v, v, total)
        squares = np.float64(sum_lanes(total))
    return mean, np.float32(1.0 / math.sqrt(squares / columns + eps))


@op_kernel("norm")
def norm(op, batch, rank, size):
    rows = batch.n_logit_rows if op.gather else batch.n_tokens
    # One row a turn: rows are few in decode, many in prefill.
    for row in range(rank, rows, size):
        source = load_i32(batch.logit_rows + 4 * row) if op.gather else row
        x = op.x + 4 * op.x_stride * source
        mean, scale = mean_and_rms(x, op.columns, op.kind, op.eps)
        y = op.y + 4 * op.y_stride * row if op.y else op.scratch + op.scratch_bytes * rank
        residual = op.residual + 4 * op.residual_stride * row if op.residual else 0
        normalize(x, y, op.columns, mean, scale, op.weight, op.bias, residual)
        if op.q:
            quantize_span(y, 0, op.columns, op.columns, row, rows, op.q, op.q_scales, op.q_sums, op.q_sums16, op.q_stride)


@njit
def normalize(x, y, columns, mean, scale, weight, bias, residual):
    """y = (x - mean) * scale * weight + bias + residual, on whole vectors; weight, bias and residual may be 0. Padding of y stays zero."""
    for i in range(0, columns, 16):
        v = mul(sub(load_f32x16(x + 4 * i), splat_f32x16(mean)), splat_f32x16(scale))
        if weight:
            v = mul(v, load_f32x16(weight + 4 * i))
        if bias:
            v = add(v, load_f32x16(bias + 4 * i))
        if residual:
            v = add(v, load_f32x16(residual + 4 * i))
        store_f32x16(y + 4 * i, v)
    if mean != 0 and not weight:
        for i in range(columns, (columns + 15) // 16 * 16):
            store_f32(y + 4 * i, np.float32(0))


@op_kernel("head_norm")
def head_norm(op, batch, rank, size):
    """In place on each head of each token; items (token, head) are split in order, as rope and store_kv split them."""
    items = batch.n_tokens * op.n_heads
    share = (items + size - 1) // size
    for item in range(rank * share, min(items, rank * share + share)):
        token, head = item // op.n_heads, item % op.n_heads
        x = op.x + 4 * (op.x_stride * token + op.head_dim * head)
        shift = 4 * op.head_dim * head if op.per_head else 0
        normalize_head(x, op.head_dim, op.kind, op.eps, op.weight + shift if op.weight else 0, op.bias + shift if op.bias else 0)


@njit
def normalize_head(x, head_dim, kind, eps, weight, bias):
    """Scalar tails because a head's length need not be a multiple of a vector, and its neighbour follows at once."""
    whole = head_dim // 16 * 16
    total, squares = np.float32(0), np.float32(0)
    sums, square_sums = zero_f32x16(), zero_f32x16()
    for i in range(0, whole, 16):
        sums = add(sums, load_f32x16(x + 4 * i))
    total = sum_lanes(sums)
    for i in range(whole, head_dim):
        total += load_f32(x + 4 * i)
    mean = total / np.float32(head_dim) if kind == LAYER else np.float32(0)
    for i in range(0, whole, 16):
        d = sub(load_f32x16(x + 4 * i), splat_f32x16(mean))
        square_sums = fma(d, d, square_sums)
    squares = sum_lanes(square_sums)
    for i in range(whole, head_dim):
        d = load_f32(x + 4 * i) - mean
        squares += d * d
    scale = np.float32(1.0 / math.sqrt(squares / head_dim + eps))
    for i in range(0, whole, 16):
        v = mul(sub(load_f32x16(x + 4 * i), splat_f32x16(mean)), splat_f32x16(scale))
        if weight:
            v = mul(v, load_f32x16(weight + 4 * i))
        if bias:
            v = add(v, load_f32x16(bias + 4 * i))
        store_f32x16(x + 4 * i, v)
    for i in range(whole, head_dim):
        v = (load_f32(x + 4 * i) - mean) * scale
        if weight:
            v *= load_f32(weight + 4 * i)
        if bias:
            v += load_f32(bias + 4 * i)
        store_f32(x + 4 * i, v)
