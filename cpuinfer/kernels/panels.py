"""The many-token driver of the matrix product: panels of 8-bit codes in the thread's scratch, register tiles over them. See matmul.py for the terms.

A thread claims a few row tiles, unpacks them once (about 0.3 cycles a weight) and runs all tokens over them. The panel is sized for the second-level cache,
a tile's activations stay in the first.
"""

from __future__ import annotations

from numba import njit

from .registry import op_kernel
from .simd import add, atomic_add, lane, load_f32, load_f32x16, load_u8, store_f32, store_f32x16, store_u8, store_u8x64
from .tiles import TILES, TOKENS, tile_group, tile_store, tile_zero, transpose_8x8

# Filled in for each format; see formats.quants.Format.bindings.
strip, scales_of_256 = None, None
UNIT_WEIGHTS, UNIT_BYTES, BLOCK_WEIGHTS, BLOCK_BYTES, PARTS, GROUP, ZERO = 0, 0, 0, 0, 0, 0, 0
HAS_MINIMUM, LARGEST_CODE = False, 0

PANEL_BYTES = 192 * 1024  # codes of the row tiles claimed together, at most: leaves room in a second-level cache of 512 KB
WIDE = 16 * TILES  # rows of a register tile
HEAD = 4096 + 64 * TILES * TOKENS  # scratch before the panel: a tail unit, strips to be transposed, a stored tile


@njit
def unpack_strip(unit, part, lane_row, strips, scales, minimums):
    """Decode a strip of one row: its codes to strips[lane_row], its scales and minimums to column lane_row of the panel's."""
    codes, scale, minimum = strip(unit, part)
    store_u8x64(strips + 64 * lane_row, codes)
    step = 4 * WIDE
    store_f32(scales + 4 * lane_row, lane(scale, 0))
    if GROUP == 16:
        store_f32(scales + 4 * lane_row + step, lane(scale, 4))
        store_f32(scales + 4 * lane_row + 2 * step, lane(scale, 8))
        store_f32(scales + 4 * lane_row + 3 * step, lane(scale, 12))
    else:
        store_f32(scales + 4 * lane_row + step, lane(scale, 8))
    if HAS_MINIMUM:
        store_f32(minimums + 4 * lane_row, lane(minimum, 0))
        if GROUP == 16:
            store_f32(minimums + 4 * lane_row + step, lane(minimum, 4))
            store_f32(minimums + 4 * lane_row + 2 * step, lane(minimum, 8))
            store_f32(minimums + 4 * lane_row + 3 * step, lane(minimum, 12))
        else:
            store_f32(minimums + 4 * lane_row + step, lane(minimum, 8))


@njit
def transpose_strips(strips, codes):
    """16 rows of 64 codes -> 16 panel vectors, each with four codes of every row; panel vectors are TILES * 64 bytes apart."""
    for i in range(2):
        for j in range(2):
            transpose_8x8(strips + 512 * i + 32 * j, 64, codes + 8 * j * 64 * TILES + 32 * i, 64 * TILES)


@njit
def unpack_tile(weights, row_bytes, rows, units, tail, scratch, codes, scales, minimums):
    """Unpack up to 16 * TILES rows at `weights` into one panel tile. Missing rows are left as they were: their results are never stored."""
    strips = scratch + 2048
    for i in range(units + (1 if tail else 0)):
        for t in range(TILES):
            part_scales, part_minimums = scales + 64 * t, minimums + 64 * t
            count = min(16, rows - 16 * t)
            unpack_unit(weights + 16 * t * row_bytes, row_bytes, count, i, units, tail, scratch, strips, codes + 64 * t, part_scales, part_minimums)
        codes += UNIT_WEIGHTS * WIDE
        scales += UNIT_WEIGHTS // GROUP * 4 * WIDE
        minimums += UNIT_WEIGHTS // GROUP * 4 * WIDE


@njit
def unpack_unit(weights, row_bytes, count, index, units, tail, scratch, strips, codes, scales, minimums):
    """Unit number `index` of 16 rows (or the first `count` of them)."""
    groups = 64 // GROUP * 4 * WIDE
    for part in range(PARTS):
        for row in range(count):
            unit = weights + row * row_bytes + index * UNIT_BYTES
            if index == units:
                copy_tail(unit, tail, scratch)
                unit = scratch
            if part == 0:
                unpack_strip(unit, 0, row, strips, scales, minimums)
            elif part == 1:
                unpack_strip(unit, 1, row, strips, scales, minimums)
            elif part == 2:
                unpack_strip(unit, 2, row, strips, scales, minimums)
            else:
                unpack_strip(unit, 3, row, strips, scales, minimums)
        transpose_strips(strips, codes)
        codes += 64 * WIDE
        scales += groups
        minimums += groups


@njit
def copy_tail(source, count, scratch):
    for i in range(UNIT_BYTES):
        store_u8(scratch + i, load_u8(source + i) if i < count else 0)


@njit
def put_tile(op, tile, row, rows, token, start, stop):
    """Store a computed tile (f32[TOKENS, WIDE] at `tile`) for tokens token+start..token+stop-1 and rows row..row+rows-1."""
    for i in range(start, stop):
        source = tile + 4 * WIDE * i
        y = op.y + 4 * (op.y_stride * (token + i) + row)
        if rows == WIDE:
            for r in range(0, WIDE, 16):
                v = load_f32x16(source + 4 * r)
                if op.bias:
                    v = add(v, load_f32x16(op.bias + 4 * (row + r)))
                if op.accumulate:
                    v = add(v, load_f32x16(y + 4 * r))
                store_f32x16(y + 4 * r, v)
        else:
            for r in range(rows):
                value = load_f32(source + 4 * r)
                if op.bias:
                    value += load_f32(op.bias + 4 * (row + r))
                if op.accumulate:
                    value += load_f32(y + 4 * r)
                store_f32(y + 4 * r, value)


@op_kernel("matmul", name="matmul_many", variants="format")
def matmul_many(op, batch, rank, size):
    tokens = batch.n_logit_rows if op.per_logit_row else batch.n_tokens
    units = op.row_bytes // UNIT_BYTES
    tail = op.row_bytes - units * UNIT_BYTES
    groups = (units + (1 if tail else 0)) * (UNIT_WEIGHTS // GROUP)
    scratch = op.scratch + rank * op.scratch_bytes
    stored = scratch + 4096
    tile_bytes = groups * GROUP * WIDE
    scale_bytes = groups * 4 * WIDE
    all_tiles = (op.rows + WIDE - 1) // WIDE
    at_once = max(1, min(PANEL_BYTES // tile_bytes, (all_tiles + 4 * size - 1) // (4 * size)))
    panel = scratch + HEAD
    scales = panel + at_once * tile_bytes
    minimums = scales + at_once * scale_bytes
    while True:
        first = atomic_add(op.counter, 1) * at_once
        if first >= all_tiles:
            break
        end = min(first + at_once, all_tiles)
        for tile in range(first, end):
            n, row = tile - first, tile * WIDE
            rows = min(WIDE, op.rows - row)
            start = op.weights + row * op.row_bytes
            unpack_tile(start, op.row_bytes, rows, units, tail, scratch, panel + n * tile_bytes, scales + n * scale_bytes, minimums + n * scale_bytes)
        for token in range(0, tokens, TOKENS):
            for tile in range(first, end):
                n, row = tile - first, tile * WIDE
                x, x_scales = op.x + token * op.x_stride, op.x_scales + token * (op.x_stride // 8)
                x_sums = op.x_sums16 + token * (op.x_stride // 4) if GROUP == 16 else op.x_sums + token * (op.x_stride // 8)
                w, s, m = panel + n * tile_bytes, scales + n * scale_bytes, minimums + n * scale_bytes
                acc = tile_zero()
                for g in range(groups):
                    x_scale = x_scales + g * GROUP // 32 * 4 * TOKENS
                    acc = tile_group(acc, w, s, m, x, x_scale, x_sums, GROUP, ZERO, HAS_MINIMUM, LARGEST_CODE)
                    w += GROUP * WIDE
                    s += 4 * WIDE
                    m += 4 * WIDE
                    x += GROUP * TOKENS
                    x_sums += 4 * TOKENS
                tile_store(acc, stored)
                put_tile(op, stored, row, min(WIDE, op.rows - row), token, 0, min(TOKENS, tokens - token))
