"""Matrix product of quantized weights and quantized activations: y[t, r] (+)= weights[r] . x[t] + bias[r].

Three drivers over the same strips. vector: one token with 16-bit activations, rows read once from the file's own layout at memory speed, two at a time. few: up to 16 tokens
with 8-bit activations, each strip decoded once for two of them. many (panels.py): row tiles unpacked into the thread's scratch as panels of 8-bit codes, then
register tiles of rows x tokens.

With w = scale * (code - zero) + minimum and x = x_scale * x_code, group g of a row adds scale[g] * x_scale[g] * sum(code * x_code) + (minimum[g] - zero * scale[g]) * sum(x).
vector and few read a row in two passes while it is in the first-level cache: first the scales, then the codes. The first pass leaves products[g] =
scale[g] * x_scale[g] in the thread's scratch, from where the second broadcasts them with plain loads, and adds up the second term, `rest`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .registry import op_kernel
from .simd import (
    add,
    atomic_add,
    dot4_i8i8,
    dot4_i16,
    dot4_u7i8,
    each_twice,
    fma,
    halves,
    high_f32x8,
    load_f32,
    load_f32x8,
    load_f32x16,
    load_i16x32,
    load_u8,
    load_u8x64,
    low_f32x8,
    mul,
    prefetch,
    quarters,
    splat_f32x8,
    store_f32,
    store_f32x8,
    store_f32x16,
    store_u8,
    sum_lanes,
    to_f32,
    zero_f32x8,
    zero_f32x16,
    zero_i32x16,
)

# Filled in for each format; see formats.quants.Format.bindings.
strip, scales_of_256 = None, None
UNIT_WEIGHTS, UNIT_BYTES, BLOCK_WEIGHTS, BLOCK_BYTES, PARTS, GROUP, ZERO = 0, 0, 0, 0, 0, 0, 0
HAS_MINIMUM, LARGEST_CODE = False, 0

CHUNKS = 4  # per thread: long chunks stream better, short ones balance better (Zen 3, 2026-12: 16 rows at a time were 25 % slower)
AHEAD = 4096  # bytes prefetched ahead of the reader: hardware prefetch stops at page ends (1 KB ahead: 15 % slower)


@njit
def claim(counter, rows, size):
    """(first row, end) of the next chunk for this thread; first >= rows when none is left."""
    chunk = max(1, rows // (CHUNKS * size))
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


@njit
def readable(row, row_bytes, end, copy):
    """The row's address, or that of a copy padded with zeros where reading 256 weights at a time would leave the tensor.

    What is read between the row's end and the next multiple of 256 weights belongs to the next row and meets activations whose scales are zero.
    """
    step = 256 // UNIT_WEIGHTS * UNIT_BYTES
    padded = (row_bytes + step - 1) // step * step
    if row + padded <= end:
        return row
    for i in range(padded):
        store_u8(copy + i, load_u8(row + i) if i < row_bytes else 0)
    return copy


# ---- first pass: scales ----------------------------------------------------------------------------------------------------------------


@njit
def rest_factor():
    """What `rest` is multiplied with at the end: minus zero where scales were summed, 1 where minimums were."""
    return np.float32(1) if HAS_MINIMUM else np.float32(-ZERO)


@njit
def scale_256(address, g, products, x_scales, x_sums, x_sums16, rest):
    """256 weights from group g on: products, and their part of `rest` added to it."""
    scale, minimum = scales_of_256(address)
    if GROUP == 16:
        store_f32x16(products + 4 * g, mul(scale, each_twice(load_f32x8(x_scales + 2 * g))))
        if HAS_MINIMUM:
            return fma(minimum, load_f32x16(x_sums16 + 4 * g), rest)
        return fma(scale, load_f32x16(x_sums16 + 4 * g), rest)
    store_f32x8(products + 4 * g, mul(scale, load_f32x8(x_scales + 4 * g)))
    if HAS_MINIMUM:
        return fma(minimum, load_f32x8(x_sums + 4 * g), rest)
    return fma(scale, load_f32x8(x_sums + 4 * g), rest)


@njit
def no_rest():
    return zero_f32x16() if GROUP == 16 else zero_f32x8()


@njit
def fold(x):
    """f32x16 -> f32x8 by adding its halves."""
    return add(low_f32x8(x), high_f32x8(x))


@njit
def fold_rest(rest):
    """`rest` as f32x8, times its factor."""
    narrow = fold(rest) if GROUP == 16 else rest
    return mul(narrow, splat_f32x8(rest_factor()))


@njit
def row_scales(row, units, products, x_scales, x_sums, x_sums16):
    """Products of a row by 256 weights at a time, and its rest as f32x8. See readable."""
    rest = no_rest()
    step = 256 // UNIT_WEIGHTS
    for i in range(0, units, step):
        rest = scale_256(row + i * UNIT_BYTES, i * (UNIT_WEIGHTS // GROUP), products, x_scales, x_sums, x_sums16, rest)
    return fold_rest(rest)


# ---- second pass: codes ----------------------------------------------------------------------------------------------------------------


@njit
def scaled(acc, dot, products):
    """acc + dot * products of the strip's groups"""
    if GROUP == 16:
        return fma(dot, quarters(load_f32(products), load_f32(products + 4), load_f32(products + 8), load_f32(products + 12)), acc)
    return fma(dot, halves(load_f32(products), load_f32(products + 4)), acc)


@njit
def fine_strip(acc, unit, part, x, products):
    """A strip times 16-bit activations."""
    dot = dot4_i16(strip(unit, part)[0], load_i16x32(x + 128 * part), load_i16x32(x + 128 * part + 64), LARGEST_CODE)
    return scaled(acc, to_f32(dot), products + 4 * (64 // GROUP) * part)


@njit
def fine_unit(acc, unit, x, products):
    acc = fine_strip(acc, unit, 0, x, products)
    if PARTS > 1:
        acc = fine_strip(acc, unit, 1, x, products)
        acc = fine_strip(acc, unit, 2, x, products)
        acc = fine_strip(acc, unit, 3, x, products)
    return acc


@njit
def row_codes(row, units, x, products):
    """Sum of all strips of a row as f32x8, in two accumulators so that additions overlap."""
    first, second = zero_f32x16(), zero_f32x16()
    step = 4 * (UNIT_WEIGHTS // GROUP)
    for _ in range(units // 2):
        for line in range(0, 2 * UNIT_BYTES, 64):
            prefetch(row + AHEAD + line)
        first = fine_unit(first, row, x, products)
        second = fine_unit(second, row + UNIT_BYTES, x + 2 * UNIT_WEIGHTS, products + step)
        row += 2 * UNIT_BYTES
        x += 4 * UNIT_WEIGHTS
        products += 2 * step
    if units % 2:
        first = fine_unit(first, row, x, products)
    return fold(add(first, second))


@op_kernel("matmul", name="matmul_vector", variants="format")
def matmul_vector(op, batch, rank, size):
    weights, row_bytes, counter, rows = op.weights, op.row_bytes, op.counter, op.rows
    x, x_scales, x_sums, x_sums16 = op.x, op.x_scales, op.x_sums, op.x_sums16
    units = (row_bytes + UNIT_BYTES - 1) // UNIT_BYTES
    products = op.scratch + rank * op.scratch_bytes
    copy = products + 4 * (op.x_stride // GROUP + 16)
    end_of_weights = weights + rows * row_bytes
    while True:
        first, end = claim(counter, rows, size)
        if first >= rows:
            break
        for r in range(first, end):
            row = readable(weights + r * row_bytes, row_bytes, end_of_weights, copy)
            rest = row_scales(row, units, products, x_scales, x_sums, x_sums16)
            put(op, 0, r, sum_lanes(add(row_codes(row, units, x, products), rest)))


# ---- few tokens ------------------------------------------------------------------------------------------------------------------------


@njit
def dot_strip(acc, codes, x, products):
    """A strip times 8-bit activations."""
    if LARGEST_CODE < 0:
        return scaled(acc, to_f32(dot4_i8i8(zero_i32x16(), codes, load_u8x64(x))), products)
    return scaled(acc, to_f32(dot4_u7i8(zero_i32x16(), codes, load_u8x64(x))), products)


@njit
def dot_pair(a, b, unit, part, x, s, products, t):
    """One strip, two tokens; s, t: bytes from token to token of codes and products."""
    codes = strip(unit, part)[0]
    x, products = x + 64 * part, products + 4 * (64 // GROUP) * part
    return dot_strip(a, codes, x, products), dot_strip(b, codes, x + s, products + t)


@njit
def codes_of_two_tokens(row, units, x, s, products, t):
    """Sums of a row for two tokens: more accumulators would not stay in the registers of AVX2."""
    a, b = zero_f32x16(), zero_f32x16()
    for _ in range(units):
        a, b = dot_pair(a, b, row, 0, x, s, products, t)
        if PARTS > 1:
            a, b = dot_pair(a, b, row, 1, x, s, products, t)
            a, b = dot_pair(a, b, row, 2, x, s, products, t)
            a, b = dot_pair(a, b, row, 3, x, s, products, t)
        row += UNIT_BYTES
        x += UNIT_WEIGHTS
        products += 4 * (UNIT_WEIGHTS // GROUP)
    return fold(a), fold(b)


@njit
def decode_scales(row, units, scales, factors):
    """A row's scales and minimums as f32, once for all tokens; factors are what sums of activations are multiplied with."""
    for i in range(0, units, 256 // UNIT_WEIGHTS):
        for line in range(0, 256 // UNIT_WEIGHTS * UNIT_BYTES, 64):
            prefetch(row + i * UNIT_BYTES + AHEAD + line)
        scale, minimum = scales_of_256(row + i * UNIT_BYTES)
        g = 4 * i * (UNIT_WEIGHTS // GROUP)
        if GROUP == 16:
            store_f32x16(scales + g, scale)
            store_f32x16(factors + g, minimum if HAS_MINIMUM else scale)
        else:
            store_f32x8(scales + g, scale)
            store_f32x8(factors + g, minimum if HAS_MINIMUM else scale)


@njit
def token_products(groups, scales, factors, products, x_scales, x_sums, x_sums16):
    """A token's products of a row, and its rest as f32x8."""
    rest = no_rest()
    if GROUP == 16:
        for g in range(0, groups, 16):
            store_f32x16(products + 4 * g, mul(load_f32x16(scales + 4 * g), each_twice(load_f32x8(x_scales + 2 * g))))
            rest = fma(load_f32x16(factors + 4 * g), load_f32x16(x_sums16 + 4 * g), rest)
    else:
        for g in range(0, groups, 8):
            store_f32x8(products + 4 * g, mul(load_f32x8(scales + 4 * g), load_f32x8(x_scales + 4 * g)))
            rest = fma(load_f32x8(factors + 4 * g), load_f32x8(x_sums + 4 * g), rest)
    return fold_rest(rest)


@op_kernel("matmul", name="matmul_few", variants="format")
def matmul_few(op, batch, rank, size):
    tokens = batch.n_logit_rows if op.per_logit_row else batch.n_tokens
    units = (op.row_bytes + UNIT_BYTES - 1) // UNIT_BYTES
    groups = units * (UNIT_WEIGHTS // GROUP)
    step = 4 * (op.x_stride // GROUP + 16)  # bytes of scales or products of a row
    scales = op.scratch + rank * op.scratch_bytes
    factors = scales + step
    products = factors + step
    copy = products + 2 * step
    end_of_weights = op.weights + op.rows * op.row_bytes
    per_token = op.x_stride // 32 * 4  # bytes of activation scales from token to token
    while True:
        first, end = claim(op.counter, op.rows, size)
        if first >= op.rows:
            break
        for r in range(first, end):
            row = readable(op.weights + r * op.row_bytes, op.row_bytes, end_of_weights, copy)
            decode_scales(row, units, scales, factors)
            # The last pair may reach beyond the last token: rows of activations have room for that, its result is not stored.
            for token in range(0, tokens, 2):
                at, after = token * per_token, token * per_token + per_token
                a = token_products(groups, scales, factors, products, op.x_scales + at, op.x_sums + at, op.x_sums16 + 2 * at)
                b = token_products(groups, scales, factors, products + step, op.x_scales + after, op.x_sums + after, op.x_sums16 + 2 * after)
                c, d = codes_of_two_tokens(row, units, op.x + token * op.x_stride, op.x_stride, products, step)
                put(op, token, r, sum_lanes(add(a, c)))
                if token + 1 < tokens:
                    put(op, token + 1, r, sum_lanes(add(b, d)))
