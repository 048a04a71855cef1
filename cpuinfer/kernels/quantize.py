"""Q8 activations: 8-bit codes with a float32 scale per 32 values, and the sums that weights with a minimum or a zero need.

scale = max |x| / 127 over 32 values, code = round(x / scale), to nearest even. Codes stay within -127..127.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .registry import op_kernel
from .simd import (
    absolute,
    dot4_i8i8,
    join_u8x16,
    join_u8x32,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    round_to_i32,
    halves,
    splat_f32x16,
    splat_u8x64,
    store_f32,
    store_u8x64,
    sum_quarters,
    to_f32,
    to_u8x16,
    zero_f32x16,
    zero_i32x16,
)


@njit
def quantize_64(low, second, third, high, codes, scales, sums, sums16):
    """Four f32x16 (64 values) -> 64 codes, 2 scales, 2 sums, 4 sums of 16, each at its address."""
    first_scale = max_lanes(maximum(absolute(low), absolute(second))) * np.float32(1 / 127)
    second_scale = max_lanes(maximum(absolute(third), absolute(high))) * np.float32(1 / 127)
    inverse = np.float32(1) / first_scale if first_scale > np.float32(1e-30) else np.float32(0)
    second_inverse = np.float32(1) / second_scale if second_scale > np.float32(1e-30) else np.float32(0)
    a, b = splat_f32x16(inverse), splat_f32x16(second_inverse)
    bytes_ = join_u8x32(
        join_u8x16(to_u8x16(round_to_i32(mul(low, a))), to_u8x16(round_to_i32(mul(second, a)))),
        join_u8x16(to_u8x16(round_to_i32(mul(third, b))), to_u8x16(round_to_i32(mul(high, b)))),
    )
    store_u8x64(codes, bytes_)
    store_f32(scales, first_scale)
    store_f32(scales + 4, second_scale)
    total = mul(to_f32(dot4_i8i8(zero_i32x16(), splat_u8x64(1), bytes_)), halves(first_scale, second_scale))
    a, b, c, d = sum_quarters(total, 0), sum_quarters(total, 1), sum_quarters(total, 2), sum_quarters(total, 3)
    store_f32(sums, a + b)
    store_f32(sums + 4, c + d)
    store_f32(sums16, a)
    store_f32(sums16 + 4, b)
    store_f32(sums16 + 8, c)
    store_f32(sums16 + 12, d)


@njit
def quantize_row(x, columns, row, q, q_scales, q_sums, q_sums16, q_stride):
    """Quantize the f32 row at address x into row `row` of the four arrays. x is read in vectors of 16; beyond its padding zeros are written."""
    codes, scales = q + q_stride * row, q_scales + 4 * (q_stride // 32) * row
    sums, sums16 = q_sums + 4 * (q_stride // 32) * row, q_sums16 + 4 * (q_stride // 16) * row
    quantize_span(x, 0, columns, columns, codes, scales, sums, sums16)


@njit
def quantize_span(x, start, stop, columns, codes, scales, sums, sums16):
    """Columns start..stop-1 (start a multiple of 64) of a row with `columns` columns."""
    for i in range(start, stop, 64):
        a = load_f32x16(x + 4 * i)
        b = load_f32x16(x + 4 * i + 64) if i + 16 < columns else zero_f32x16()
        c = load_f32x16(x + 4 * i + 128) if i + 32 < columns else zero_f32x16()
        d = load_f32x16(x + 4 * i + 192) if i + 48 < columns else zero_f32x16()
        quantize_64(a, b, c, d, codes + i, scales + i // 8, sums + i // 8, sums16 + i // 4)


@op_kernel("quantize")
def quantize(op, batch, rank, size):
    """Tasks are (row, 64 columns), split in order: one row is shared by all threads in decode."""
    spans = (op.columns + 63) // 64
    tasks = batch.n_tokens * spans
    share = (tasks + size - 1) // size
    for task in range(rank * share, min(tasks, rank * share + share)):
        row, i = task // spans, task % spans * 64
        quantize_span(
            op.x + 4 * op.x_stride * row,
            i,
            min(i + 64, op.columns),
            op.columns,
            op.q + op.q_stride * row,
            op.q_scales + 4 * (op.q_stride // 32) * row,
            op.q_sums + 4 * (op.q_stride // 32) * row,
            op.q_sums16 + 4 * (op.q_stride // 16) * row,
        )
