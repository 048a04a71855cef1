"""Quantized activations: 8-bit codes (16-bit ones for a single row) with a float32 scale per 32 values, and the sums that weights with a minimum or a zero need.

scale = max |x| / limit over 32 values, code = round(x / scale), to nearest even. limit is 127; a single row has 32767, because reading the weights is what
its products wait for, so that finer activations cost nothing there and the result is within float32 rounding of the exact one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .records import FEW
from .registry import op_kernel
from .simd import (
    absolute,
    as_i32x16,
    evens_and_odds,
    join_u8x16,
    join_u8x32,
    lane,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    round_to_i32,
    splat_f32x16,
    store_f32,
    store_i16x32,
    store_i32,
    store_u8x64,
    sum_lanes,
    to_f32,
    to_u8x16,
    zero_f32x16,
)
from .tiles import TOKENS


@njit
def quantize_64(low, second, third, high, row, rows, i, q, q_scales, q_sums, q_sums16, q_stride):
    """Four f32x16, columns i..i+63 of row `row` of `rows`, into the four arrays."""
    step_of_largest = np.float32(1 / 32767) if rows == 1 else np.float32(1 / 127)
    first_scale = max_lanes(maximum(absolute(low), absolute(second))) * step_of_largest
    second_scale = max_lanes(maximum(absolute(third), absolute(high))) * step_of_largest
    inverse = np.float32(1) / first_scale if first_scale > np.float32(1e-30) else np.float32(0)
    second_inverse = np.float32(1) / second_scale if second_scale > np.float32(1e-30) else np.float32(0)
    a, b = splat_f32x16(inverse), splat_f32x16(second_inverse)
    c, d, e, f = round_to_i32(mul(low, a)), round_to_i32(mul(second, a)), round_to_i32(mul(third, b)), round_to_i32(mul(high, b))
    # In rows: the strip's elements follow each other. In tiles: an element of every row of the tile, then the next.
    tile, step = row * q_stride, 1
    shift = np.int64(0)
    if rows == 1:
        even, odd = evens_and_odds(c, d, e, f)
        store_i16x32(q + 2 * i, even)
        store_i16x32(q + 2 * i + 64, odd)
    else:
        codes = join_u8x32(join_u8x16(to_u8x16(c), to_u8x16(d)), join_u8x16(to_u8x16(e), to_u8x16(f)))
        if rows > FEW:
            tile, step = row // TOKENS * TOKENS * q_stride, TOKENS
            shift = 4 * (row % TOKENS)
            parts = as_i32x16(codes)
            to = q + tile + i * TOKENS + shift
            for p in range(16):
                store_i32(to + 4 * TOKENS * p, lane(parts, p))
        else:
            store_u8x64(q + tile + i, codes)
    to = tile // 8 + i // 8 * step + shift
    store_f32(q_scales + to, first_scale)
    store_f32(q_scales + to + 4 * step, second_scale)
    a, b = splat_f32x16(first_scale), splat_f32x16(second_scale)
    first, second_sum = sum_lanes(mul(to_f32(c), a)), sum_lanes(mul(to_f32(d), a))
    third_sum, fourth = sum_lanes(mul(to_f32(e), b)), sum_lanes(mul(to_f32(f), b))
    store_f32(q_sums + to, first + second_sum)
    store_f32(q_sums + to + 4 * step, third_sum + fourth)
    to = tile // 4 + i // 4 * step + shift
    store_f32(q_sums16 + to, first)
    store_f32(q_sums16 + to + 4 * step, second_sum)
    store_f32(q_sums16 + to + 8 * step, third_sum)
    store_f32(q_sums16 + to + 12 * step, fourth)


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
