"""Attention of many query rows of one KV head, as in prefill: flash attention on transposed tiles (Dao et al. 2022).

Lanes are query rows (tokens x the query heads of the KV head), so that softmax needs no sums across lanes. Blocks of up to BLOCK keys are converted to f32 once for all
rows of a task. With Q^T [key_dim, lanes] per group of LANES rows, both products are outer products of register tiles of six rows:

    S^T[key, lane]  = sum over d of K[key, d] Q^T[d, lane]              six keys at a time
    O^T[d, lane]   += sum over keys of V[key, d] exp(S^T - largest)     six values d at a time, V packed as [d / 6, BLOCK, 6]
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .cache_rows import head_16
from .float_tiles import tile_operations
from .records import ATTENTION_BLOCK as BLOCK
from .records import ATTENTION_ROWS as ROWS
from .records import PAGE
from .simd import (
    add,
    divide,
    fma,
    load_f32,
    load_f32x8,
    load_f32x16,
    load_i32,
    load_i32x16,
    maximum,
    mul,
    select_less,
    splat_f32x16,
    splat_i32x16,
    store_f32,
    store_f32x8,
    store_f32x16,
    store_i32,
    sub,
    to_f32,
    zero_f32x16,
)
from .tiles import TILES, transpose_8x8
from .vector_math import exp_negative, tanh

LANES = 16 * TILES
SIX = 6
LINE = 4 * LANES  # bytes of one row of a group
LOWEST = np.float32(-1e30)  # score of a masked key: beside any real score its weight is below 2e-38

_tile = tile_operations(SIX, TILES)
tile_zero, tile_outer, tile_load_scaled, tile_store = _tile.zero, _tile.outer, _tile.load_scaled, _tile.store_rows


@njit
def pad(n):
    return (n + 15) // 16 * 16


@njit
def transpose_lanes(rows, row_stride, columns, target):
    """f32[16, columns] at `rows` (byte stride; columns a multiple of 8) -> f32[columns, LANES] at target, of which 16 lanes are written."""
    for i in range(0, 16, 8):
        for d in range(0, columns, 8):
            transpose_8x8(rows + row_stride * i + 4 * d, row_stride, target + LINE * d + 4 * i, LINE)


@njit
def load_queries(op, start_token, kv_head, first_row, n, spare, queries, first, last, slopes, sinks, positions):
    """Rows first_row..first_row+n-1, scaled, as Q^T of each group; and the first and last key that each lane sees. Lanes without a row repeat the last one's."""
    group = op.n_heads // op.n_kv_heads
    width = pad(op.key_dim)
    scale = splat_f32x16(np.float32(op.scale))
    for r in range(0, (n + LANES - 1) // LANES * LANES):
        row = first_row + min(r, n - 1)
        token, head = start_token + row // group, kv_head * group + row % group
        source = op.q + 4 * (op.q_stride * token + op.key_dim * head)
        to = spare + 64 + 4 * width * (r % 16)
        for d in range(0, width, 16):
            store_f32x16(to + 4 * d, mul(head_16(source, d, op.key_dim, spare), scale))
        position = load_i32(positions + 4 * token)
        store_i32(last + 4 * r, position)
        store_i32(first + 4 * r, max(0, position + 1 - op.window) if op.window else 0)
        store_f32(slopes + 4 * r, load_f32(op.slopes + 4 * head) if op.slopes else np.float32(0))
        store_f32(sinks + 4 * r, load_f32(op.sinks + 4 * head) if op.sinks else LOWEST)
        if r % 16 == 15:
            transpose_lanes(spare + 64, 4 * width, width, queries + LINE * width * (r // LANES) + r % LANES // 16 * 64)


@njit
def unpack_keys(load, keys, row_bytes, count, dim, rows):
    """`count` keys of a page -> f32[count, padded dim]."""
    for _ in range(count):
        for d in range(0, dim, 16):
            store_f32x16(rows + 4 * d, load(keys, d, dim))
        keys += row_bytes
        rows += 4 * pad(dim)


@njit
def unpack_values(load, values, row_bytes, count, dim, spare, packed):
    """`count` values of a page -> f32[dim / 6, BLOCK, 6] from a key of the block on. Each store of eight runs two over, into what the next key or nobody owns."""
    for _ in range(count):
        for d in range(0, dim, 16):
            store_f32x16(spare + 4 * d, load(values, d, dim))
        to = packed
        for d in range(0, dim, SIX):
            store_f32x8(to, load_f32x8(spare + 4 * d))
            to += 4 * SIX * BLOCK + 32
        values += row_bytes
        packed += 4 * SIX


@njit
def score_block(queries, width, keys, begin, end, scores):
    """S^T of keys begin..end-1 of the block, and up to five more."""
    for j in range(begin, end, SIX):
        tile = tile_zero()
        q, k = queries, keys + 4 * width * j
        for _ in range(0, width, 4):
            tile = tile_outer(tile, q, k, 4 * width)
            tile = tile_outer(tile, q + LINE, k + 4, 4 * width)
            tile = tile_outer(tile, q + 2 * LINE, k + 8, 4 * width)
            tile = tile_outer(tile, q + 3 * LINE, k + 12, 4 * width)
            q += 4 * LINE
            k += 16
        tile_store(tile, scores + LINE * j, LINE)


@njit
def mask(scores, base, begin, end, first, last):
    """Keys begin..end-1 of 16 lanes: LOWEST where a lane does not see them."""
    lowest = splat_f32x16(LOWEST)
    for j in range(begin, end):
        key = splat_i32x16(base + j)
        s = scores + LINE * j
        store_f32x16(s, select_less(load_i32x16(last), key, lowest, select_less(key, load_i32x16(first), lowest, load_f32x16(s))))


@njit
def softmax(scores, begin, end, largest, total, factor):
    """16 lanes: scores -> weights relative to the largest so far, in place; updates f32x16 at largest and total; factor: for what was summed before."""
    old = load_f32x16(largest)
    new = old
    for j in range(begin, end):
        new = maximum(new, load_f32x16(scores + LINE * j))
    sums = zero_f32x16()
    for j in range(begin, end):
        weight = exp_negative(sub(load_f32x16(scores + LINE * j), new))
        sums = add(sums, weight)
        store_f32x16(scores + LINE * j, weight)
    change = exp_negative(sub(old, new))
    store_f32x16(largest, new)
    store_f32x16(factor, change)
    store_f32x16(total, add(mul(load_f32x16(total), change), sums))


@njit
def cap_scores(scores, begin, end, softcap):
    cap, inverse = splat_f32x16(np.float32(softcap)), splat_f32x16(np.float32(1 / softcap))
    for j in range(begin * TILES, end * TILES):
        store_f32x16(scores + 64 * j, mul(tanh(mul(load_f32x16(scores + 64 * j), inverse)), cap))


@njit
def slope_scores(scores, base, begin, end, slopes, last):
    """ALiBi (Press et al. 2021): 16 lanes gain slope * (key - query position)."""
    slope, position = load_f32x16(slopes), to_f32(load_i32x16(last))
    for j in range(begin, end):
        far = sub(splat_f32x16(np.float32(base + j)), position)
        store_f32x16(scores + LINE * j, fma(far, slope, load_f32x16(scores + LINE * j)))


@njit
def add_values(weights, begin, end, values, dim, factor, result):
    """O^T = O^T * factor + V^T weights, over keys begin..end-1 of the block."""
    values += 4 * SIX * begin
    for _ in range(0, dim, SIX):
        tile = tile_load_scaled(result, factor)
        w, v = weights + LINE * begin, values
        for _ in range(begin, end - 3, 4):
            tile = tile_outer(tile, w, v, 4)
            tile = tile_outer(tile, w + LINE, v + 4 * SIX, 4)
            tile = tile_outer(tile, w + 2 * LINE, v + 8 * SIX, 4)
            tile = tile_outer(tile, w + 3 * LINE, v + 12 * SIX, 4)
            w += 4 * LINE
            v += 16 * SIX
        for _ in range((end - begin) % 4):
            tile = tile_outer(tile, w, v, 4)
            w += LINE
            v += 4 * SIX
        tile_store(tile, result, LINE)
        result += SIX * LINE
        values += 4 * SIX * BLOCK + 32


@njit
def one_group(op, base, count, queries, keys, values, scores, first, last, slopes, state, result):
    """A block of `count` keys from position `base` on, for one group of LANES rows. state: f32[3, LANES], largest, total, factor."""
    # Positions rise from lane to lane.
    low_first, high_first = load_i32(first), load_i32(first + LINE - 4)
    low_last, high_last = load_i32(last), load_i32(last + LINE - 4)
    begin, end = max(0, low_first - base), min(count, high_last + 1 - base)
    if begin >= end:
        return
    width = pad(op.key_dim)
    score_block(queries, width, keys, begin, end, scores)
    if op.softcap != 0:
        cap_scores(scores, begin, end, op.softcap)
    if op.slopes:
        for t in range(TILES):
            slope_scores(scores + 64 * t, base, begin, end, slopes + 64 * t, last + 64 * t)
    for t in range(TILES):
        mask(scores + 64 * t, base, begin, min(end, high_first - base), first + 64 * t, last + 64 * t)
        mask(scores + 64 * t, base, max(begin, low_last + 1 - base), end, first + 64 * t, last + 64 * t)
    for t in range(TILES):
        softmax(scores + 64 * t, begin, end, state + 64 * t, state + LINE + 64 * t, state + 2 * LINE + 64 * t)
    add_values(scores, begin, end, values, op.value_dim, state + 2 * LINE, result)


@njit
def put_results(op, start_token, kv_head, first_row, n, spare, result, result_bytes, state, sinks):
    """O^T / total -> rows of y; a sink adds to the total."""
    group = op.n_heads // op.n_kv_heads
    width = pad(op.value_dim)
    for r0 in range(0, n, 16):
        lanes = result + result_bytes * (r0 // LANES) + r0 % LANES * 4
        at = state + 3 * LINE * (r0 // LANES) + r0 % LANES * 4
        largest, sink = load_f32x16(at), load_f32x16(sinks + 4 * r0)
        top = maximum(largest, sink)
        factor = exp_negative(sub(largest, top))
        inverse = divide(factor, fma(load_f32x16(at + LINE), factor, exp_negative(sub(sink, top))))
        for d in range(op.value_dim):
            store_f32x16(lanes + LINE * d, mul(load_f32x16(lanes + LINE * d), inverse))
        for d in range(0, width, 8):
            for i in range(0, 16, 8):
                transpose_8x8(lanes + LINE * d + 4 * i, LINE, spare + 4 * width * i + 4 * d, 4 * width)
        for r in range(r0, min(n, r0 + 16)):
            row = first_row + r
            y = op.y + 4 * (op.y_stride * (start_token + row // group) + op.value_dim * (kv_head * group + row % group))
            source = spare + 4 * width * (r - r0)
            put_row(source, op.value_dim, y)


@njit
def put_row(source, dim, y):
    """A head's result to y, whose next head follows at once."""
    whole = dim // 16 * 16
    for d in range(0, whole, 16):
        store_f32x16(y + 4 * d, load_f32x16(source + 4 * d))
    for d in range(whole, dim):
        store_i32(y + 4 * d, load_i32(source + 4 * d))


@njit
def many_rows(op, batch, load_key, load_value, sequence, kv_head, first_row, end_row, scratch):
    """Query rows first_row..end_row-1 of a sequence and KV head; row r is token r // group, head r % group of the group."""
    start_token = load_i32(batch.query_starts + 4 * sequence)
    pages = batch.page_tables + 4 * batch.page_table_stride * sequence
    n = end_row - first_row
    groups = (n + LANES - 1) // LANES
    key_width = pad(op.key_dim)
    result_bytes = LINE * (pad(op.value_dim) + 16)
    first = scratch
    last = first + 4 * ROWS
    state = last + 4 * ROWS
    slopes = state + 12 * ROWS
    sinks = slopes + 4 * ROWS
    scores = sinks + 4 * ROWS
    queries = scores + LINE * (BLOCK + SIX)
    result = queries + LINE * key_width * groups
    keys = result + result_bytes * groups
    values = keys + 4 * key_width * (BLOCK + SIX)
    spare = values + (4 * SIX * BLOCK + 32) * (op.value_dim + SIX) // SIX + 64
    load_queries(op, start_token, kv_head, first_row, n, spare, queries, first, last, slopes, sinks, batch.positions)
    for i in range(0, result_bytes * groups, 64):
        store_f32x16(result + i, zero_f32x16())
    for g in range(groups):
        for t in range(TILES):
            store_f32x16(state + 3 * LINE * g + 64 * t, splat_f32x16(LOWEST))
            store_f32x16(state + 3 * LINE * g + LINE + 64 * t, zero_f32x16())
    end = load_i32(last + 4 * (n - 1)) + 1
    base = load_i32(first) // BLOCK * BLOCK
    while base < end:
        count = min(BLOCK, end - base)
        for j in range(max(0, load_i32(first) // PAGE * PAGE - base), count, PAGE):
            place = load_i32(pages + 4 * ((base + j) // PAGE)) * op.n_kv_heads + kv_head
            here = min(PAGE, count - j)
            unpack_keys(load_key, op.keys + op.key_row_bytes * PAGE * place, op.key_row_bytes, here, op.key_dim, keys + 4 * key_width * j)
            unpack_values(load_value, op.values + op.value_row_bytes * PAGE * place, op.value_row_bytes, here, op.value_dim, spare, values + 4 * SIX * j)
        for g in range(groups):
            lanes = 4 * LANES * g
            group_state, group_result = state + 3 * LINE * g, result + result_bytes * g
            group_queries = queries + LINE * key_width * g
            one_group(op, base, count, group_queries, keys, values, scores, first + lanes, last + lanes, slopes + lanes, group_state, group_result)
        base += BLOCK
    put_results(op, start_token, kv_head, first_row, n, spare, result, result_bytes, state, sinks)
