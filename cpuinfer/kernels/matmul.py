"""Matrix product of quantized weights and Q8 activations: y[t, r] (+)= weights[r] . x[t] + bias[r].

Three drivers over the same strips. vector: one token, rows read once from the file's own layout at memory speed. few: up to 16 tokens, each strip decoded once
for four of them. many: row tiles unpacked into the thread's scratch as panels of 8-bit codes (tiles.py), then register tiles of rows x tokens.
With w = scale * (code - zero) + minimum and x = x_scale * x_code, a strip adds scale * x_scale * sum(code * x_code) + (minimum - zero * scale) * sum(x).
All drivers compute these same terms; only the order of the float additions differs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .registry import op_kernel
from .simd import (
    add,
    atomic_add,
    dot4_i8i8,
    dot4_u7i8,
    fma,
    halves,
    load_f32,
    load_f32x16,
    load_u8,
    load_u8x64,
    mul,
    prefetch,
    splat_f32x16,
    store_f32,
    store_u8,
    sub,
    sum_lanes,
    to_f32,
    zero_f32x16,
    zero_i32x16,
)

# Filled in for each format; see formats.quants.Format.bindings.
strip = None
UNIT_WEIGHTS, UNIT_BYTES, BLOCK_WEIGHTS, BLOCK_BYTES, PARTS, GROUP, ZERO = 0, 0, 0, 0, 0, 0, 0
HAS_MINIMUM, LARGEST_CODE = False, 0

ROWS = 16  # rows claimed at once by the vector and few drivers, at most
AHEAD = 1024  # bytes prefetched ahead of the reader: hardware prefetch stops at page ends


@njit
def dot(codes, x):
    if LARGEST_CODE < 0:
        return to_f32(dot4_i8i8(zero_i32x16(), codes, x))
    return to_f32(dot4_u7i8(zero_i32x16(), codes, x))


@njit
def accumulate(acc, rest, codes, scale, minimum, x, x_scales, x_sums):
    """One strip and one token: acc gets the products, rest what minimum or zero add (times zero later)."""
    x_scale = halves(load_f32(x_scales), load_f32(x_scales + 4))
    acc = fma(dot(codes, load_u8x64(x)), mul(scale, x_scale), acc)
    if HAS_MINIMUM:
        rest = fma(minimum, load_f32x16(x_sums), rest)
    elif ZERO != 0:
        rest = fma(scale, load_f32x16(x_sums), rest)
    return acc, rest


@njit
def total(acc, rest):
    if HAS_MINIMUM:
        return sum_lanes(add(acc, rest))
    if ZERO != 0:
        return sum_lanes(sub(acc, mul(rest, splat_f32x16(np.float32(ZERO)))))
    return sum_lanes(acc)


@njit
def unit_one(acc, rest, unit, x, x_scales, x_sums):
    """All strips of a unit, one token."""
    codes, scale, minimum = strip(unit, 0)
    acc, rest = accumulate(acc, rest, codes, scale, minimum, x, x_scales, x_sums)
    if PARTS > 1:
        codes, scale, minimum = strip(unit, 1)
        acc, rest = accumulate(acc, rest, codes, scale, minimum, x + 64, x_scales + 8, x_sums + 64)
        codes, scale, minimum = strip(unit, 2)
        acc, rest = accumulate(acc, rest, codes, scale, minimum, x + 128, x_scales + 16, x_sums + 128)
        codes, scale, minimum = strip(unit, 3)
        acc, rest = accumulate(acc, rest, codes, scale, minimum, x + 192, x_scales + 24, x_sums + 192)
    return acc, rest


@njit
def copy_tail(source, count, scratch):
    """The part of a unit that a row ends with -> a whole unit padded with zero bytes, whose scales are then zero."""
    for i in range(UNIT_BYTES):
        store_u8(scratch + i, load_u8(source + i) if i < count else 0)


@njit
def claim(counter, rows, size):
    """(first row, end) of the next chunk for this thread; first >= rows when none is left."""
    chunk = min(ROWS, max(1, rows // (4 * size)))
    first = atomic_add(counter, 1) * chunk
    return first, min(first + chunk, rows)


@njit
def put(op, token, row, value):
    y = op.y + 4 * (op.y_stride * token + row)
    if op.bias:
        value += load_f32(op.bias + 4 * row)
    if op.accumulate:
        value += load_f32(y)
    store_f32(y, value)


@op_kernel("matmul", name="matmul_vector", variants="format")
def matmul_vector(op, batch, rank, size):
    units = op.row_bytes // UNIT_BYTES
    tail = op.row_bytes - units * UNIT_BYTES
    scratch = op.scratch + rank * op.scratch_bytes
    while True:
        first, end = claim(op.counter, op.rows, size)
        if first >= op.rows:
            break
        for row in range(first, end):
            unit = op.weights + row * op.row_bytes
            acc, rest = zero_f32x16(), zero_f32x16()
            x, x_scales, x_sums = op.x, op.x_scales, op.x_sums
            for _ in range(units):
                for line in range(0, UNIT_BYTES, 64):
                    prefetch(unit + AHEAD + line)
                acc, rest = unit_one(acc, rest, unit, x, x_scales, x_sums)
                unit += UNIT_BYTES
                x += UNIT_WEIGHTS
                x_scales += UNIT_WEIGHTS // 8
                x_sums += UNIT_WEIGHTS
            if tail:
                copy_tail(unit, tail, scratch)
                acc, rest = unit_one(acc, rest, scratch, x, x_scales, x_sums)
            put(op, 0, row, total(acc, rest))


@njit
def four_tokens(a, b, c, d, e, f, g, h, unit, part, x, x_scales, x_sums, s, t, u):
    """One strip, four tokens: (a, e), (b, f), (c, g), (d, h) are their sums. s, t, u: byte strides of codes, scales and sums."""
    codes, scale, minimum = strip(unit, part)
    a, e = accumulate(a, e, codes, scale, minimum, x, x_scales, x_sums)
    b, f = accumulate(b, f, codes, scale, minimum, x + s, x_scales + t, x_sums + u)
    c, g = accumulate(c, g, codes, scale, minimum, x + 2 * s, x_scales + 2 * t, x_sums + 2 * u)
    d, h = accumulate(d, h, codes, scale, minimum, x + 3 * s, x_scales + 3 * t, x_sums + 3 * u)
    return a, b, c, d, e, f, g, h


@njit
def row_four_tokens(op, unit, units, tail, scratch, token, row):
    """One row for tokens token..token+3."""
    s, t, u = op.x_stride, op.x_stride // 8, op.x_stride
    a, b, c, d = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    e, f, g, h = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    x, x_scales, x_sums = op.x + token * s, op.x_scales + token * t, op.x_sums + token * u
    for i in range(units + (1 if tail else 0)):
        if i == units:
            copy_tail(unit, tail, scratch)
            unit = scratch
        a, b, c, d, e, f, g, h = four_tokens(a, b, c, d, e, f, g, h, unit, 0, x, x_scales, x_sums, s, t, u)
        if PARTS > 1:
            a, b, c, d, e, f, g, h = four_tokens(a, b, c, d, e, f, g, h, unit, 1, x + 64, x_scales + 8, x_sums + 64, s, t, u)
            a, b, c, d, e, f, g, h = four_tokens(a, b, c, d, e, f, g, h, unit, 2, x + 128, x_scales + 16, x_sums + 128, s, t, u)
            a, b, c, d, e, f, g, h = four_tokens(a, b, c, d, e, f, g, h, unit, 3, x + 192, x_scales + 24, x_sums + 192, s, t, u)
        unit += UNIT_BYTES
        x += UNIT_WEIGHTS
        x_scales += UNIT_WEIGHTS // 8
        x_sums += UNIT_WEIGHTS
    put(op, token, row, total(a, e))
    put(op, token + 1, row, total(b, f))
    put(op, token + 2, row, total(c, g))
    put(op, token + 3, row, total(d, h))


@op_kernel("matmul", name="matmul_few", variants="format")
def matmul_few(op, batch, rank, size):
    units = op.row_bytes // UNIT_BYTES
    tail = op.row_bytes - units * UNIT_BYTES
    scratch = op.scratch + rank * op.scratch_bytes
    tokens = batch.n_logit_rows if op.per_logit_row else batch.n_tokens
    whole = tokens // 4 * 4
    while True:
        first, end = claim(op.counter, op.rows, size)
        if first >= op.rows:
            break
        for row in range(first, end):
            start = op.weights + row * op.row_bytes
            for token in range(0, whole, 4):
                row_four_tokens(op, start, units, tail, scratch, token, row)
            for token in range(whole, tokens):
                unit = start
                acc, rest = zero_f32x16(), zero_f32x16()
                x = op.x + token * op.x_stride
                x_scales, x_sums = op.x_scales + token * (op.x_stride // 8), op.x_sums + token * op.x_stride
                for i in range(units + (1 if tail else 0)):
                    if i == units:
                        copy_tail(unit, tail, scratch)
                        unit = scratch
                    acc, rest = unit_one(acc, rest, unit, x, x_scales, x_sums)
                    unit += UNIT_BYTES
                    x += UNIT_WEIGHTS
                    x_scales += UNIT_WEIGHTS // 8
                    x_sums += UNIT_WEIGHTS
                put(op, token, row, total(acc, rest))

