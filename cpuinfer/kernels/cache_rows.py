"""Rows of the KV cache, one head's key or value of one token: f16, f32, or q8_0 (codes, then a f32 scale per 32); see records.cache_row_bytes.

`LOAD[type](row, d, dim)` gives elements d..d+15 as f32x16; `STORE[type](x, dim, row)` writes a row. Elements from dim on are zero.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .simd import (
    absolute,
    load_f16x16,
    load_f32,
    load_f32x16,
    load_u8x16,
    max_lanes,
    maximum,
    mul,
    round_to_i32,
    sign_extend,
    splat_f32x16,
    store_f16x16,
    store_f32,
    store_f32x16,
    store_u8x16,
    to_f32,
    to_u8x16,
    zero_f32x16,
)


@njit
def load_f16_row(row, d, dim):
    return load_f16x16(row + 2 * d)


@njit
def load_f32_row(row, d, dim):
    return load_f32x16(row + 4 * d)


@njit
def load_q8_row(row, d, dim):
    scale = load_f32(row + (dim + 31) // 32 * 32 + d // 32 * 4)
    return mul(to_f32(sign_extend(load_u8x16(row + d))), splat_f32x16(scale))


@njit
def head_16(x, d, dim, spare):
    """x[d..d+15] of a head with dim elements, zeros beyond; spare: address of 64 bytes to build a last, short vector in."""
    if d + 16 <= dim:
        return load_f32x16(x + 4 * d)
    store_f32x16(spare, zero_f32x16())
    for i in range(max(0, dim - d)):
        store_f32(spare + 4 * i, load_f32(x + 4 * (d + i)))
    return load_f32x16(spare)


@njit
def store_f16_row(x, dim, row, spare):
    for d in range(0, dim, 16):
        store_f16x16(row + 2 * d, head_16(x, d, dim, spare))


@njit
def store_f32_row(x, dim, row, spare):
    for d in range(0, dim, 16):
        store_f32x16(row + 4 * d, head_16(x, d, dim, spare))


@njit
def store_q8_row(x, dim, row, spare):
    scales = row + (dim + 31) // 32 * 32
    for d in range(0, dim, 32):
        low, high = head_16(x, d, dim, spare), head_16(x, d + 16, dim, spare)
        scale = max_lanes(maximum(absolute(low), absolute(high))) * np.float32(1 / 127)
        inverse = splat_f32x16(np.float32(1) / scale if scale > np.float32(1e-30) else np.float32(0))
        store_u8x16(row + d, to_u8x16(round_to_i32(mul(low, inverse))))
        store_u8x16(row + d + 16, to_u8x16(round_to_i32(mul(high, inverse))))
        store_f32(scales + d // 8, scale)


LOAD = {"f16": load_f16_row, "f32": load_f32_row, "q8_0": load_q8_row}
STORE = {"f16": store_f16_row, "f32": store_f32_row, "q8_0": store_q8_row}
