"""Q8 activations: 8-bit codes with a float32 scale per 32 values, and the sums that weights with a minimum or a zero need.

scale = max |x| / 127 over 32 values, code = round(x / scale), to nearest even. Codes stay within -127..127.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .records import FEW
from .registry import op_kernel
from .simd import (
    absolute,
    as_i32x16,
    dot4_i8i8,
    halves,
    join_u8x16,
    join_u8x32,
    lane,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    round_to_i32,
    splat_f32x16,
    splat_u8x64,
    store_f32,
    store_i32,
    store_u8x64,
    sum_quarters,
    to_f32,
    to_u8x16,
    zero_f32x16,
    zero_i32x16,
)
from .tiles import TOKENS


@njit
def quantize_64(low, second, third, high, row, rows, i, q, q_scales, q_sums, q_sums16, q_stride):
    """Four f32x16, columns i..i+63 of row `row` of `rows`, into the four arrays."""
    first_scale = max_lanes(maximum(absolute(low), absolute(second))) * np.float32(1 / 127)
    second_scale = max_lanes(maximum(absolute(third), absolute(high))) * np.float32(1 / 127)
    inverse = np.float32(1) / first_scale if first_scale > np.float32(1e-30) else np.float32(0)
    second_inverse = np.float32(1) / second_scale if second_scale > np.float32(1e-30) else np.float32(0)
    a, b = splat_f32x16(inverse), splat_f32x16(second_inverse)
    codes = join_u8x32(
        join_u8x16(to_u8x16(round_to_i32(mul(low, a))), to_u8x16(round_to_i32(mul(second, a)))),
        join_u8x16(to_u8x16(round_to_i32(mul(third, b))), to_u8x16(round_to_i32(mul(high, b)))),
    )
    total = mul(to_f32(dot4_i8i8(zero_i32x16(), splat_u8x64(1), codes)), halves(first_scale, second_scale))
    # In rows: the strip's elements follow each other. In tiles: an element of every row of the tile, then the next.
    tile, step = row * q_stride, 1
    shift = np.int64(0)
    if rows > FEW:
        tile, step = row // TOKENS * TOKENS * q_stride, TOKENS
        shift = 4 * (row % TOKENS)
        parts = as_i32x16(codes)
        to = q + tile + i * TOKENS + shift
        for k in range(16):
            store_i32(to + 4 * TOKENS * k, lane(parts, k))
    else:
        store_u8x64(q + tile + i, codes)
    to = tile // 8 + i // 8 * step + shift
    store_f32(q_scales + to, first_scale)
    store_f32(q_scales + to + 4 * step, second_scale)
    a, b, c, d = sum_quarters(total, 0), sum_quarters(total, 1), sum_quarters(total, 2), sum_quarters(total, 3)
    store_f32(q_sums + to, a + b)
    store_f32(q_sums + to + 4 * step, c + d)
    to = tile // 4 + i // 4 * step + shift
    store_f32(q_sums16 + to, a)
    store_f32(q_sums16 + to + 4 * step, b)
    store_f32(q_sums16 + to + 8 * step, c)
    store_f32(q_sums16 + to + 12 * step, d)


@njit
def quantize_span(x, start, stop, columns, row, rows, q, q_scales, q_sums, q_sums16, q_stride):
    """Quantize columns start..stop-1 (start a multiple of 64) of the f32 row at address x, which has `columns` columns, as row `row` of `rows`.

    x is read in vectors of 16 up to its padding; beyond it zeros are written.
    """
    for i in range(start, stop, 64):
        a = load_f32x16(x + 4 * i)
        b = load_f32x16(x + 4 * i + 64) if i + 16 < columns else zero_f32x16()
        c = load_f32x16(x + 4 * i + 128) if i + 32 < columns else zero_f32x16()
        d = load_f32x16(x + 4 * i + 192) if i + 48 < columns else zero_f32x16()
        quantize_64(a, b, c, d, row, rows, i, q, q_scales, q_sums, q_sums16, q_stride)
    if stop == columns and rows <= FEW:
        # A batch in tiles may have left its values here. Zero scales make the codes of the padding count for nothing.
        first = (columns + 63) // 64 * 2
        for i in range(first + row * (q_stride // 32), (row + 1) * (q_stride // 32)):
            store_f32(q_scales + 4 * i, np.float32(0))
            store_f32(q_sums + 4 * i, np.float32(0))
            store_f32(q_sums16 + 8 * i, np.float32(0))
            store_f32(q_sums16 + 8 * i + 4, np.float32(0))


@op_kernel("quantize")
def quantize(op, batch, rank, size):
    """Tasks are (row, 64 columns), split in order: one row is shared by all threads in decode."""
    spans = (op.columns + 63) // 64
    tasks = batch.n_tokens * spans
    share = (tasks + size - 1) // size
    for task in range(rank * share, min(tasks, rank * share + share)):
        row, i = task // spans, task % spans * 64
        x = op.x + 4 * op.x_stride * row
        quantize_span(x, i, min(i + 64, op.columns), op.columns, row, batch.n_tokens, op.q, op.q_scales, op.q_sums, op.q_sums16, op.q_stride)
