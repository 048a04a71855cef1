"""Matrix product of float weights (F32, F16, BF16) and float32 activations, the same three drivers as matmul.py: y[t, r] (+)= weights[r] . x[t] + bias[r].

Sums are float32, 16 lanes each, so two right implementations differ by rounding only.
"""

from __future__ import annotations

from numba import njit

from .matmul import claim, put
from .panels import put_tile
from .registry import op_kernel
from .simd import add, atomic_add, fma, load_f32x16, load_u8, prefetch, store_f32x16, store_u8, sum_lanes, zero_f32x16
from .tiles import TILES, TOKENS, tile_columns_f32, tile_store, tile_zero, transpose_8x8

# Filled in for each format; see formats.quants.Format.bindings.
strip, scales_of_256 = None, None
UNIT_WEIGHTS, UNIT_BYTES, BLOCK_WEIGHTS, BLOCK_BYTES, PARTS, GROUP, ZERO = 0, 0, 0, 0, 0, 0, 0
HAS_MINIMUM, LARGEST_CODE = False, 0

WIDE = 16 * TILES
AHEAD = 1024
PANEL_BYTES = 192 * 1024
HEAD = 4096 + 64 * TILES * TOKENS


@njit
def copy_tail(source, count, scratch):
    """The part of a unit that a row ends with -> a whole unit padded with zero bytes."""
    for i in range(UNIT_BYTES):
        store_u8(scratch + i, load_u8(source + i) if i < count else 0)


@njit
def row_dot(unit, units, tail, scratch, x):
    """One row times one token, in four independent sums."""
    a, b, c, d = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    for _ in range(units // 4):
        prefetch(unit + AHEAD)
        if UNIT_BYTES > 16:
            prefetch(unit + AHEAD + 64)
        a = fma(strip(unit, 0), load_f32x16(x), a)
        b = fma(strip(unit + UNIT_BYTES, 0), load_f32x16(x + 64), b)
        c = fma(strip(unit + 2 * UNIT_BYTES, 0), load_f32x16(x + 128), c)
        d = fma(strip(unit + 3 * UNIT_BYTES, 0), load_f32x16(x + 192), d)
        unit += 4 * UNIT_BYTES
        x += 256
    for _ in range(units % 4):
        a = fma(strip(unit, 0), load_f32x16(x), a)
        unit += UNIT_BYTES
        x += 64
    if tail:
        copy_tail(unit, tail, scratch)
        b = fma(strip(scratch, 0), load_f32x16(x), b)
    return sum_lanes(add(add(a, b), add(c, d)))


@njit
def rows_by_tokens(op, tokens, rank, size):
    units = op.row_bytes // UNIT_BYTES
    tail = op.row_bytes - units * UNIT_BYTES
    scratch = op.scratch + rank * op.scratch_bytes
    while True:
        first, end = claim(op.counter, op.rows, size)
        if first >= op.rows:
            break
        for row in range(first, end):
            for token in range(tokens):
                put(op, token, row, row_dot(op.weights + row * op.row_bytes, units, tail, scratch, op.x + 4 * op.x_stride * token))


@op_kernel("matmul", name="matmul_vector_f32", variants="format")
def matmul_vector(op, batch, rank, size):
    rows_by_tokens(op, 1, rank, size)


@op_kernel("matmul", name="matmul_few_f32", variants="format")
def matmul_few(op, batch, rank, size):
    rows_by_tokens(op, batch.n_logit_rows if op.per_logit_row else batch.n_tokens, rank, size)


@njit
def unpack_tile(weights, row_bytes, rows, units, tail, scratch, panel):
    """Up to WIDE rows at `weights` -> f32[columns, WIDE]. Missing rows are left as they were: their results are never stored."""
    values = scratch + 2048
    for i in range(units + (1 if tail else 0)):
        for t in range(TILES):
            for row in range(min(16, rows - 16 * t)):
                unit = weights + (16 * t + row) * row_bytes + i * UNIT_BYTES
                if i == units:
                    copy_tail(unit, tail, scratch)
                    unit = scratch
                store_f32x16(values + 64 * row, strip(unit, 0))
            for h in range(2):
                for j in range(2):
                    transpose_8x8(values + 512 * h + 32 * j, 64, panel + 64 * t + 8 * j * 4 * WIDE + 32 * h, 4 * WIDE)
        panel += 16 * 4 * WIDE


@op_kernel("matmul", name="matmul_many_f32", variants="format")
def matmul_many(op, batch, rank, size):
    tokens = batch.n_logit_rows if op.per_logit_row else batch.n_tokens
    units = op.row_bytes // UNIT_BYTES
    tail = op.row_bytes - units * UNIT_BYTES
    columns = 16 * (units + (1 if tail else 0))
    scratch = op.scratch + rank * op.scratch_bytes
    stored, panel = scratch + 4096, scratch + HEAD
    all_tiles = (op.rows + WIDE - 1) // WIDE
    while True:
        tile = atomic_add(op.counter, 1)
        if tile >= all_tiles:
            break
        row = tile * WIDE
        rows = min(WIDE, op.rows - row)
        unpack_tile(op.weights + row * op.row_bytes, op.row_bytes, rows, units, tail, scratch, panel)
        token = 0
        while token < tokens:
            # The last tile of tokens overlaps its neighbour rather than run short; what was stored already is skipped.
            begin = min(token, tokens - TOKENS)
            w, x = panel, op.x + 4 * begin * op.x_stride
            acc = tile_zero()
            for _ in range(0, columns, 4):
                acc = tile_columns_f32(acc, w, x, 4 * op.x_stride)
                w += 16 * WIDE
                x += 16
            tile_store(acc, stored)
            put_tile(op, stored, row, rows, begin, token - begin, TOKENS)
            token += TOKENS
