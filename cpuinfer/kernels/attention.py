"""Softmax attention over the paged KV cache: causal, grouped-query, with sliding window and soft cap; online softmax page by page (Dao et al. 2022, Milakov 2018).

Two ways, chosen per sequence by its number of query rows (tokens x query heads of one KV head). Few rows, as in decode: a task is one query head of one token, keys are read
straight from the page. Many rows, as in prefill: a task is up to ROWS query rows of one KV head; a page's keys are converted and transposed once into the
thread's scratch, so that scores and weighted values are register tiles of multiply-adds (tiles.py), as in a matrix product. Threads claim tasks dynamically.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .cache_rows import LOAD, head_16
from .records import PAGE
from .registry import op_kernel
from .simd import (
    add,
    atomic_add,
    fma,
    load_f32,
    load_f32x16,
    load_i32,
    max_lanes,
    maximum,
    mul,
    splat_f32x16,
    store_f32,
    store_f32x16,
    sub,
    sum_lanes,
    zero_f32x16,
)
from .tiles import TILES, TOKENS, tile_columns_f32, tile_store, tile_zero, transpose_8x8
from .vector_math import exp, tanh

load_key, load_value = None, None  # the cache types', filled in by bind

ROWS = 32  # query rows of a prefill task
FEW_ROWS = 8  # up to this many query rows per KV head a sequence is done head by head
WIDE = 16 * TILES
LOWEST = np.float32(-1e30)  # score of a masked key: its weight becomes exactly 0 beside any real score


def bind(variants: tuple[str, ...]) -> dict:
    return {"load_key": LOAD[variants[0]], "load_value": LOAD[variants[1]]}


@njit
def pad(n):
    return (n + 15) // 16 * 16


@njit
def capped(scores, softcap):
    if softcap != 0:
        cap = np.float32(softcap)
        return mul(tanh(mul(scores, splat_f32x16(np.float32(1) / cap))), splat_f32x16(cap))
    return scores


@njit
def mask(scores, base, first, last, softcap):
    """Cap the 32 scores of keys base..base+31 at an address, and mask those outside first..last."""
    store_f32x16(scores, capped(load_f32x16(scores), softcap))
    store_f32x16(scores + 64, capped(load_f32x16(scores + 64), softcap))
    for j in range(0, first - base):
        store_f32(scores + 4 * j, LOWEST)
    for j in range(last + 1 - base, PAGE):
        store_f32(scores + 4 * j, LOWEST)


@njit
def online_softmax(scores, largest, total):
    """32 scores -> their weights relative to the largest so far, in place. Gives (new largest, new total, factor for what was summed before)."""
    low, high = load_f32x16(scores), load_f32x16(scores + 64)
    new = max(largest, max_lanes(maximum(low, high)))
    shift = splat_f32x16(new)
    low, high = exp(sub(low, shift)), exp(sub(high, shift))
    store_f32x16(scores, low)
    store_f32x16(scores + 64, high)
    factor = np.float32(0)
    if largest > LOWEST:
        factor = scalar_exp(largest - new)
    return new, total * factor + sum_lanes(add(low, high)), factor


@njit
def scalar_exp(x):
    return max_lanes(exp(splat_f32x16(x)))


# ---- few query rows --------------------------------------------------------------------------------------------------------------------


@njit
def page_scores(q, keys, row_bytes, count, dim, scores):
    """Dot products of the query at q (padded f32) with the first `count` keys of a page."""
    for j in range(count):
        row = keys + row_bytes * j
        a = zero_f32x16()
        for d in range(0, dim, 16):
            a = fma(load_f32x16(q + 4 * d), load_key(row, d, dim), a)
        store_f32(scores + 4 * j, sum_lanes(a))


@njit
def add_page_values(weights, values, row_bytes, count, dim, factor, result):
    """result = result * factor + weights . values"""
    f = splat_f32x16(factor)
    for d in range(0, dim, 16):
        a, b = mul(load_f32x16(result + 4 * d), f), zero_f32x16()
        row = values
        for j in range(0, count - 1, 2):
            a = fma(splat_f32x16(load_f32(weights + 4 * j)), load_value(row, d, dim), a)
            b = fma(splat_f32x16(load_f32(weights + 4 * j + 4)), load_value(row + row_bytes, d, dim), b)
            row += 2 * row_bytes
        if count % 2:
            a = fma(splat_f32x16(load_f32(weights + 4 * (count - 1))), load_value(row, d, dim), a)
        store_f32x16(result + 4 * d, add(a, b))


@njit
def one_head(op, batch, sequence, token, head, scratch):
    """One query head of one token."""
    kv_head = head // (op.n_heads // op.n_kv_heads)
    last = load_i32(batch.positions + 4 * token)
    first = max(0, last + 1 - op.window) if op.window else 0
    pages = batch.page_tables + 4 * batch.page_table_stride * sequence
    q = scratch
    scores = q + 4 * pad(op.key_dim)
    result = scores + 4 * PAGE
    spare = result + 4 * pad(op.value_dim)
    source = op.q + 4 * (op.q_stride * token + op.key_dim * head)
    scale = splat_f32x16(np.float32(op.scale))
    for d in range(0, op.key_dim, 16):
        store_f32x16(q + 4 * d, mul(head_16(source, d, op.key_dim, spare), scale))
    for d in range(0, op.value_dim, 16):
        store_f32x16(result + 4 * d, zero_f32x16())
    largest, total = LOWEST, np.float32(0)
    for page in range(first // PAGE, last // PAGE + 1):
        base = page * PAGE
        place = load_i32(pages + 4 * page) * op.n_kv_heads + kv_head
        count = min(PAGE, last + 1 - base)
        page_scores(q, op.keys + op.key_row_bytes * PAGE * place, op.key_row_bytes, count, op.key_dim, scores)
        mask(scores, base, first, last, op.softcap)
        largest, total, factor = online_softmax(scores, largest, total)
        add_page_values(scores, op.values + op.value_row_bytes * PAGE * place, op.value_row_bytes, count, op.value_dim, factor, result)
    put_head(op, token, head, result, total)


@njit
def put_head(op, token, head, result, total):
    y = op.y + 4 * (op.y_stride * token + op.value_dim * head)
    inverse = np.float32(1) / total
    whole = op.value_dim // 16 * 16
    for d in range(0, whole, 16):
        store_f32x16(y + 4 * d, mul(load_f32x16(result + 4 * d), splat_f32x16(inverse)))
    for d in range(whole, op.value_dim):
        store_f32(y + 4 * d, load_f32(result + 4 * d) * inverse)


# ---- many query rows -------------------------------------------------------------------------------------------------------------------


@njit
def unpack_keys(keys, row_bytes, dim, rows, panel):
    """A page's keys -> f32[PAGE / WIDE, padded dim, WIDE]; rows: room for f32[PAGE, padded dim]."""
    width = pad(dim)
    for j in range(PAGE):
        for d in range(0, width, 16):
            store_f32x16(rows + 4 * (width * j + d), load_key(keys + row_bytes * j, d, dim))
    for j in range(0, PAGE, 8):
        block = panel + 4 * (j // WIDE * width * WIDE + j % WIDE)
        for d in range(0, width, 8):
            transpose_8x8(rows + 4 * (width * j + d), 4 * width, block + 4 * WIDE * d, 4 * WIDE)


@njit
def unpack_values(values, row_bytes, dim, count, panel):
    """A page's values -> f32[padded dim / WIDE, PAGE, WIDE]. Rows from `count` on are zero: what another sequence left there may be NaN, and NaN times a weight of
    zero is NaN. Columns beyond the padded dim stay as they were: nobody reads their results."""
    for j in range(PAGE):
        for d in range(0, pad(dim), 16):
            value = load_value(values + row_bytes * j, d, dim) if j < count else zero_f32x16()
            store_f32x16(panel + 4 * (d // WIDE * PAGE * WIDE + WIDE * j + d % WIDE), value)


@njit
def product(x, x_stride, panel, columns):
    """A register tile: TOKENS rows at x (byte stride x_stride) times a panel f32[columns, WIDE]."""
    tile = tile_zero()
    for k in range(0, columns, 4):
        tile = tile_columns_f32(tile, panel + 4 * WIDE * k, x + 4 * k, x_stride)
    return tile


@njit
def many_rows(op, batch, sequence, kv_head, first_row, end_row, scratch):
    """Query rows first_row..end_row-1 of a sequence and KV head; row r is token r // group, head r % group of the group."""
    group = op.n_heads // op.n_kv_heads
    start_token = load_i32(batch.query_starts + 4 * sequence)
    pages = batch.page_tables + 4 * batch.page_table_stride * sequence
    n = end_row - first_row
    key_width, value_width = pad(op.key_dim), (op.value_dim + WIDE - 1) // WIDE * WIDE
    q = scratch
    result = q + 4 * 64 * key_width
    scores = result + 4 * 64 * value_width
    state = scores + 4 * 64 * PAGE  # per row: largest, total, factor, first position, last position
    stored = state + 4 * 64 * 8
    keys = stored + 4096
    key_rows = keys + 4 * PAGE * key_width
    values = key_rows  # keys are transposed before the values need the room
    scale = splat_f32x16(np.float32(op.scale))
    lowest, highest = np.int64(1 << 60), np.int64(0)
    for r in range(n):
        token, head = start_token + (first_row + r) // group, kv_head * group + (first_row + r) % group
        source = op.q + 4 * (op.q_stride * token + op.key_dim * head)
        for d in range(0, op.key_dim, 16):
            store_f32x16(q + 4 * (key_width * r + d), mul(head_16(source, d, op.key_dim, stored), scale))
        for d in range(0, value_width, 16):
            store_f32x16(result + 4 * (value_width * r + d), zero_f32x16())
        last = load_i32(batch.positions + 4 * token)
        first = max(0, last + 1 - op.window) if op.window else 0
        lowest, highest = min(lowest, first), max(highest, last)
        store_f32(state + 32 * r, LOWEST)
        store_f32(state + 32 * r + 4, np.float32(0))
    for page in range(lowest // PAGE, highest // PAGE + 1):
        base = page * PAGE
        place = load_i32(pages + 4 * page) * op.n_kv_heads + kv_head
        unpack_keys(op.keys + op.key_row_bytes * PAGE * place, op.key_row_bytes, op.key_dim, key_rows, keys)
        for r in range(0, n, TOKENS):
            for part in range(PAGE // WIDE):
                tile_store(product(q + 4 * key_width * r, 4 * key_width, keys + 4 * part * key_width * WIDE, key_width), stored)
                for i in range(TOKENS):
                    for d in range(0, WIDE, 16):
                        store_f32x16(scores + 4 * (PAGE * (r + i) + WIDE * part + d), load_f32x16(stored + 4 * (WIDE * i + d)))
        for r in range(n):
            last = load_i32(batch.positions + 4 * (start_token + (first_row + r) // group))
            first = max(0, last + 1 - op.window) if op.window else 0
            row = scores + 4 * PAGE * r
            if base > last or base + PAGE <= first:
                # nothing of this page belongs to the row: weights of zero
                store_f32x16(row, zero_f32x16())
                store_f32x16(row + 64, zero_f32x16())
                store_f32(state + 32 * r + 8, np.float32(1))
                continue
            mask(row, base, first, last, op.softcap)
            largest, total, factor = online_softmax(row, load_f32(state + 32 * r), load_f32(state + 32 * r + 4))
            store_f32(state + 32 * r, largest)
            store_f32(state + 32 * r + 4, total)
            store_f32(state + 32 * r + 8, factor)
        unpack_values(op.values + op.value_row_bytes * PAGE * place, op.value_row_bytes, op.value_dim, highest + 1 - base, values)
        for r in range(0, n, TOKENS):
            for d in range(0, value_width, WIDE):
                tile_store(product(scores + 4 * PAGE * r, 4 * PAGE, values + 4 * PAGE * d, PAGE), stored)
                for i in range(TOKENS):
                    factor = splat_f32x16(load_f32(state + 32 * (r + i) + 8))
                    for e in range(0, WIDE, 16):
                        to = result + 4 * (value_width * (r + i) + d + e)
                        store_f32x16(to, fma(load_f32x16(to), factor, load_f32x16(stored + 4 * (WIDE * i + e))))
    for r in range(n):
        token, head = start_token + (first_row + r) // group, kv_head * group + (first_row + r) % group
        put_head(op, token, head, result + 4 * value_width * r, load_f32(state + 32 * r + 4))


# ---- tasks -----------------------------------------------------------------------------------------------------------------------------


@njit
def tasks_of(op, tokens):
    """Tasks of a sequence with this many query tokens."""
    rows = tokens * (op.n_heads // op.n_kv_heads)
    if rows <= FEW_ROWS:
        return tokens * op.n_heads
    return (rows + ROWS - 1) // ROWS * op.n_kv_heads


@njit
def do_task(op, batch, sequence, task, scratch):
    start, stop = load_i32(batch.query_starts + 4 * sequence), load_i32(batch.query_starts + 4 * sequence + 4)
    rows = (stop - start) * (op.n_heads // op.n_kv_heads)
    if rows <= FEW_ROWS:
        one_head(op, batch, sequence, start + task // op.n_heads, task % op.n_heads, scratch)
    else:
        # The last rows have the most keys: they go first, so that no thread is left alone with one at the end.
        tile = (rows + ROWS - 1) // ROWS - 1 - task // op.n_kv_heads
        many_rows(op, batch, sequence, task % op.n_kv_heads, tile * ROWS, min(rows, tile * ROWS + ROWS), scratch)


@op_kernel("attention", variants="cache")
def attention(op, batch, rank, size):
    scratch = op.scratch + rank * op.scratch_bytes
    task = atomic_add(op.counter, 1)
    before = 0
    for sequence in range(batch.n_sequences):
        tokens = load_i32(batch.query_starts + 4 * sequence + 4) - load_i32(batch.query_starts + 4 * sequence)
        count = tasks_of(op, tokens)
        while task < before + count:
            do_task(op, batch, sequence, task - before, scratch)
            task = atomic_add(op.counter, 1)
        before += count
