"""Attention of one token and the query heads of one KV head over some of its keys, as in decode: memory speed matters, so each key and value is read and converted once for
up to four query heads.

The keys of a long context are shared out in chunks of pages among threads. A chunk leaves, per query head, its largest score m, the sum s of exp(score - m) and the sum r of
exp(score - m) * value; chunks are merged as y = sum of exp(m - M) r / sum of exp(m - M) s with M the largest m.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .cache_rows import head_16
from .float_tiles import sums_of_eight, tile_operations
from .records import PAGE
from .simd import (
    add,
    constant,
    fma,
    load_f32,
    load_f32x16,
    load_i32,
    max_lanes,
    maximum,
    mul,
    prefetch,
    splat_f32x16,
    store_f32,
    store_f32x8,
    store_f32x16,
    sub,
    sum_lanes,
    zero_f32x16,
)
from .vector_math import exp_negative, tanh
from .vectors import f32x16

BLOCK = 4 * PAGE  # keys whose scores are kept before their values are read
HEADS = 4  # query heads at a time; heads of zeros fill up the last four. Conversion and memory set the pace, so fillers cost little
LOWEST = np.float32(-1e30)
COUNT = constant(f32x16, range(16))


@njit
def pad(n):
    return (n + 15) // 16 * 16


@njit
def softmax(scores, begin, end, softcap, slope, distance, state, stride):
    """Scores at keys begin..end-1 of a block -> weights in place, 0 before and up to the next 16. state: largest, sum, and the factor for what was summed before.

    slope: of ALiBi (Press et al. 2021), or 0; distance: from the query to the block's first key.
    """
    width = pad(end)
    if softcap != 0:
        cap, inverse = splat_f32x16(np.float32(softcap)), splat_f32x16(np.float32(1 / softcap))
        for j in range(0, width, 16):
            store_f32x16(scores + 4 * j, mul(tanh(mul(load_f32x16(scores + 4 * j), inverse)), cap))
    if slope != 0:
        for j in range(0, width, 16):
            far = add(COUNT(), splat_f32x16(np.float32(distance + j)))
            store_f32x16(scores + 4 * j, fma(far, splat_f32x16(slope), load_f32x16(scores + 4 * j)))
    for j in range(begin):
        store_f32(scores + 4 * j, LOWEST)
    for j in range(end, width):
        store_f32(scores + 4 * j, LOWEST)
    old = load_f32(state)
    top = splat_f32x16(old)
    for j in range(0, width, 16):
        top = maximum(top, load_f32x16(scores + 4 * j))
    new = max_lanes(top)
    top, sums = splat_f32x16(new), zero_f32x16()
    for j in range(0, width, 16):
        weight = exp_negative(sub(load_f32x16(scores + 4 * j), top))
        sums = add(sums, weight)
        store_f32x16(scores + 4 * j, weight)
    factor = scalar_exp(old - new)
    store_f32(state, new)
    store_f32(state + stride, load_f32(state + stride) * factor + sum_lanes(sums))
    store_f32(state + 2 * stride, factor)


@njit
def scalar_exp(x):
    return max_lanes(exp_negative(splat_f32x16(x)))


_tile = tile_operations(HEADS, 1)
tile_zero, tile_inner, tile_outer, tile_store_folded = _tile.zero, _tile.inner, _tile.outer_by_value, _tile.store_folded
tile_load_scaled, tile_store = _tile.load_rows_scaled, _tile.store_rows


@njit
def page_scores(load, q, keys, row_bytes, begin, end, dim, scores, spare, values, value_row_bytes):
    """scores[h, j] = q[h] . key j of a page, for keys begin..end-1 and those that share a group of eight with them. Asks for the values meanwhile."""
    width = pad(dim)
    for group in range(begin // 8 * 8, end, 8):
        for j in range(group, group + 8):
            row, value_row = keys + row_bytes * j, values + value_row_bytes * j
            for i in range(0, value_row_bytes, 64):
                prefetch(value_row + i)
            sums = tile_zero()
            for d in range(0, width, 16):
                sums = tile_inner(sums, load(row, d, dim), q + 4 * d, 4 * width)
            tile_store_folded(sums, spare + 32 * (j - group), 256)
        for h in range(HEADS):
            store_f32x8(scores + 4 * (BLOCK * h + group), sums_of_eight(spare + 256 * h))


@njit
def add_values(load, op, pages, kv_head, start, first, end, weights, factors, result):
    """result[h] = result[h] * factors[h] + weights[h] . values of keys first..end-1; weights begin with key `start`."""
    width = pad(op.value_dim)
    for d in range(0, width, 16):
        sums = tile_load_scaled(result + 4 * d, 4 * width, factors)
        for base in range(start, end, PAGE):
            place = load_i32(pages + 4 * (base // PAGE)) * op.n_kv_heads + kv_head
            here = max(first, base)
            row = op.values + op.value_row_bytes * (PAGE * place + here - base)
            w = weights + 4 * (here - start)
            for _ in range(min(end, base + PAGE) - here):
                sums = tile_outer(sums, load(row, d, op.value_dim), w, 4 * BLOCK)
                row += op.value_row_bytes
                w += 4
        tile_store(sums, result + 4 * d, 4 * width)


@njit
def add_block(op, load_key, load_value, pages, kv_head, head, position, start, first, end, q, real_heads, state, stride, result, scratch):
    """Keys first..end-1 of a block that begins with position `start`, for four heads. scratch: 1 KiB, then scores f32[HEADS, BLOCK]."""
    scores = scratch + 1024
    for base in range(start, end, PAGE):
        place = (load_i32(pages + 4 * (base // PAGE)) * op.n_kv_heads + kv_head) * PAGE
        keys, values = op.keys + op.key_row_bytes * place, op.values + op.value_row_bytes * place
        begin, stop = max(0, first - base), min(PAGE, end - base)
        at = scores + 4 * (base - start)
        page_scores(load_key, q, keys, op.key_row_bytes, begin, stop, op.key_dim, at, scratch, values, op.value_row_bytes)
    for h in range(real_heads):
        slope = load_f32(op.slopes + 4 * (head + h)) if op.slopes else np.float32(0)
        softmax(scores + 4 * BLOCK * h, first - start, end - start, op.softcap, slope, start - position, state + 4 * h, stride)
    add_values(load_value, op, pages, kv_head, start, first, end, scores, state + 2 * stride, result)


@njit
def filled(op):
    """Query heads of a KV head, fillers included."""
    return (op.n_heads // op.n_kv_heads + HEADS - 1) // HEADS * HEADS


@njit
def load_heads(op, token, kv_head, spare, q):
    """The token's query heads of a KV head, scaled -> f32[filled, padded key_dim]."""
    group, width = op.n_heads // op.n_kv_heads, pad(op.key_dim)
    scale = splat_f32x16(np.float32(op.scale))
    for i in range(group * width, filled(op) * width, 16):
        store_f32x16(q + 4 * i, zero_f32x16())
    for h in range(group):
        source = op.q + 4 * (op.q_stride * token + op.key_dim * (kv_head * group + h))
        for d in range(0, width, 16):
            store_f32x16(q + 4 * (width * h + d), mul(head_16(source, d, op.key_dim, spare), scale))


@njit
def few_rows(op, load_key, load_value, pages, token, position, kv_head, first, last, share, scratch):
    """A token's query heads of a KV head over keys first..last -> a share: f32[filled, padded value_dim], then largest, sum and a factor, [filled] each."""
    group, heads = op.n_heads // op.n_kv_heads, filled(op)
    key_width, value_width = pad(op.key_dim), pad(op.value_dim)
    state, stride = share + 4 * heads * value_width, 4 * heads
    q = scratch + 1024 + 4 * HEADS * BLOCK
    load_heads(op, token, kv_head, scratch, q)
    for i in range(0, heads * value_width, 16):
        store_f32x16(share + 4 * i, zero_f32x16())
    for h in range(heads):
        store_f32(state + 4 * h, LOWEST)
        store_f32(state + stride + 4 * h, np.float32(0))
        store_f32(state + 2 * stride + 4 * h, np.float32(0))
    for start in range(first // PAGE * PAGE, last + 1, BLOCK):
        begin, end = max(first, start), min(start + BLOCK, last + 1)
        for h in range(0, heads, HEADS):
            heads_q, real, at, to = q + 4 * key_width * h, min(HEADS, group - h), state + 4 * h, share + 4 * value_width * h
            add_block(op, load_key, load_value, pages, kv_head, kv_head * group + h, position, start, begin, end, heads_q, real, at, stride, to, scratch)


@njit
def merge(into, share, group, heads, width):
    """Add one share to another. Sums stay relative to the larger of the two largest scores."""
    for h in range(group):
        a, b = into + 4 * (heads * width + h), share + 4 * (heads * width + h)
        largest = max(load_f32(a), load_f32(b))
        keep, more = scalar_exp(load_f32(a) - largest), scalar_exp(load_f32(b) - largest)
        store_f32(a, largest)
        store_f32(a + 4 * heads, load_f32(a + 4 * heads) * keep + load_f32(b + 4 * heads) * more)
        for d in range(0, width, 16):
            to = into + 4 * (width * h + d)
            store_f32x16(to, add(mul(load_f32x16(to), splat_f32x16(keep)), mul(load_f32x16(share + 4 * (width * h + d)), splat_f32x16(more))))


@njit
def put_share(op, token, kv_head, share):
    """A whole share -> the token's rows of y."""
    group, heads, width = op.n_heads // op.n_kv_heads, filled(op), pad(op.value_dim)
    whole = op.value_dim // 16 * 16
    for h in range(group):
        y = op.y + 4 * (op.y_stride * token + op.value_dim * (kv_head * group + h))
        total, factor = load_f32(share + 4 * (heads * width + heads + h)), np.float32(1)
        if op.sinks:
            largest, sink = load_f32(share + 4 * (heads * width + h)), load_f32(op.sinks + 4 * (kv_head * group + h))
            factor = scalar_exp(largest - max(largest, sink))
            total = total * factor + scalar_exp(sink - max(largest, sink))
        inverse = factor / total
        for d in range(0, whole, 16):
            store_f32x16(y + 4 * d, mul(load_f32x16(share + 4 * (width * h + d)), splat_f32x16(inverse)))
        for d in range(whole, op.value_dim):
            store_f32(y + 4 * d, load_f32(share + 4 * (width * h + d)) * inverse)
