"""Embedding: the weights' rows of the batch's tokens, dequantized to float32 and scaled."""

from __future__ import annotations

import numpy as np
from numba import njit

from .registry import op_kernel
from .simd import (
    f32x16,
    fma,
    load_i32,
    load_u8,
    load_u8x16,
    mul,
    shuffle,
    sign_extend,
    splat_f32x16,
    store_f32x16,
    store_u8,
    store_u8x64,
    sub,
    to_f32,
    zero_extend,
)

# Filled in for each format; see formats.quants.Format.bindings.
strip, scales_of_256 = None, None
UNIT_WEIGHTS, UNIT_BYTES, BLOCK_WEIGHTS, BLOCK_BYTES, PARTS, GROUP, ZERO = 0, 0, 0, 0, 0, 0, 0
HAS_MINIMUM, LARGEST_CODE = False, 0

# Lanes 4k..4k+3 of a strip's scales, each for the four weights it belongs to.
_SPREAD = [shuffle(f32x16, f32x16, [4 * k + i // 4 for i in range(16)]) for k in range(4)]
first_quarter, second_quarter, third_quarter, fourth_quarter = _SPREAD


@njit
def write_16(codes, scale, minimum, y, factor):
    """16 codes at an address -> 16 weights times factor."""
    value = to_f32(sign_extend(load_u8x16(codes))) if LARGEST_CODE < 0 else to_f32(zero_extend(load_u8x16(codes)))
    if ZERO != 0:
        value = sub(value, splat_f32x16(np.float32(ZERO)))
    value = fma(value, scale, minimum) if HAS_MINIMUM else mul(value, scale)
    store_f32x16(y, mul(value, splat_f32x16(factor)))


@njit
def write_strip(unit, part, y, left, factor, scratch):
    """One strip, of which `left` weights belong to the row: none, where a row of 128-weight blocks ends within a unit."""
    if left <= 0:
        return
    codes, scale, minimum = strip(unit, part)
    store_u8x64(scratch, codes)
    write_16(scratch, first_quarter(scale), first_quarter(minimum), y, factor)
    if left > 16:
        write_16(scratch + 16, second_quarter(scale), second_quarter(minimum), y + 64, factor)
    if left > 32:
        write_16(scratch + 32, third_quarter(scale), third_quarter(minimum), y + 128, factor)
    if left > 48:
        write_16(scratch + 48, fourth_quarter(scale), fourth_quarter(minimum), y + 192, factor)


@njit
def whole_unit(row, offset, row_bytes, scratch):
    """Address of the unit at `offset` in a row: itself, or a copy padded with zero bytes if the row ends within it."""
    if offset + UNIT_BYTES <= row_bytes:
        return row + offset
    for i in range(UNIT_BYTES):
        store_u8(scratch + i, load_u8(row + offset + i) if offset + i < row_bytes else 0)
    return scratch


@op_kernel("embedding", variants="format")
def embedding(op, batch, rank, size):
    scratch = op.scratch + rank * op.scratch_bytes
    factor = np.float32(op.scale)
    rows = batch.positions if op.by_position else batch.tokens
    for token in range(rank, batch.n_tokens, size):
        row = op.weights + op.row_bytes * load_i32(rows + 4 * token)
        y = op.y + 4 * op.y_stride * token
        for i in range(0, op.columns, UNIT_WEIGHTS):
            unit = whole_unit(row, i // UNIT_WEIGHTS * UNIT_BYTES, op.row_bytes, scratch + 64)
            left = op.columns - i
            write_strip(unit, 0, y + 4 * i, left, factor, scratch)
            if PARTS > 1:
                write_strip(unit, 1, y + 4 * i + 256, left - 64, factor, scratch)
                write_strip(unit, 2, y + 4 * i + 512, left - 128, factor, scratch)
                write_strip(unit, 3, y + 4 * i + 768, left - 192, factor, scratch)


@op_kernel("embedding", name="embedding_f32", variants="format")
def float_embedding(op, batch, rank, size):
    scratch = op.scratch + rank * op.scratch_bytes
    factor = splat_f32x16(np.float32(op.scale))
    rows = batch.positions if op.by_position else batch.tokens
    for token in range(rank, batch.n_tokens, size):
        row = op.weights + op.row_bytes * load_i32(rows + 4 * token)
        y = op.y + 4 * op.y_stride * token
        for i in range(0, op.columns, UNIT_WEIGHTS):
            unit = whole_unit(row, i // UNIT_WEIGHTS * UNIT_BYTES, op.row_bytes, scratch + 64)
            store_f32x16(y + 4 * i, mul(strip(unit, 0), factor))
