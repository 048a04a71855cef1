"""Softmax attention over the paged KV cache: causal, grouped-query, with sliding window and soft cap; online softmax (Milakov and Gimelshein 2018).

y[t, h] = sum over keys of softmax(cap(scale * q[t, h] . k)) v, over the keys at positions first..last of the token's own sequence: last is the token's position, first 0
or last + 1 - window.

Tasks are claimed by threads as they go. Sequences with many query rows (tokens x query heads of one KV head) are cut into tiles of rows, attention_many.py. In the others
each token and KV head is a task, attention_few.py; long ones are cut into shares of some pages each. Who finishes the last share of the op merges them all: the word after
the op's counter counts finished shares. Share i lies in the scratch of thread i % size.
"""

from __future__ import annotations

from numba import njit

from .attention_few import few_rows, filled, merge, pad, put_share
from .attention_many import LANES, many_rows
from .cache_rows import LOAD
from .records import ATTENTION_ROWS, ATTENTION_SHARES, PAGE
from .registry import op_kernel
from .simd import atomic_add, load_i32, store_i64

load_key, load_value = None, None  # the cache types', filled in by bind

FEW_ROWS = 8  # a sequence of several tokens with more rows per KV head is done in tiles
LEAST_PAGES = 4  # a share's: below this, merging costs more than it gains
TASKS = 4  # per thread, that there should be: more balance better


def bind(variants: tuple[str, ...]) -> dict:
    return {"load_key": LOAD[variants[0]], "load_value": LOAD[variants[1]]}


@njit
def tokens_of(batch, sequence):
    return load_i32(batch.query_starts + 4 * sequence + 4) - load_i32(batch.query_starts + 4 * sequence)


@njit
def is_few(op, tokens):
    return tokens == 1 or tokens * (op.n_heads // op.n_kv_heads) <= FEW_ROWS


@njit
def seen(op, batch, token):
    """(first, last) key position of a token."""
    last = load_i32(batch.positions + 4 * token)
    return max(0, last + 1 - op.window) if op.window else 0, last


@njit
def pages_seen(op, batch, token):
    first, last = seen(op, batch, token)
    return last // PAGE - first // PAGE + 1


@njit
def pages_of_share(op, batch, size):
    """Pages of a share, so that all few-row tasks together make about TASKS a thread, and never more shares than there is room for."""
    pages = 0
    for sequence in range(batch.n_sequences):
        if is_few(op, tokens_of(batch, sequence)):
            for token in range(load_i32(batch.query_starts + 4 * sequence), load_i32(batch.query_starts + 4 * sequence + 4)):
                pages += pages_seen(op, batch, token)
    # A cut task has more than one share of pages, so at most 2 * TASKS * size = ATTENTION_SHARES * size shares come of it.
    return max(LEAST_PAGES, (pages * op.n_kv_heads + TASKS * size - 1) // (TASKS * size))


@njit
def rows_of_tile(op, tokens, size):
    """Query rows of a prefill task: as many as fit, fewer where there would be too few tasks for the threads."""
    rows = tokens * (op.n_heads // op.n_kv_heads)
    tile = ATTENTION_ROWS // LANES * LANES
    while tile > LANES and (rows + tile - 1) // tile * op.n_kv_heads < TASKS * size:
        tile -= LANES
    return tile


@njit
def share_bytes(op):
    """records.attention_share_bytes"""
    return filled(op) * 4 * (pad(op.value_dim) + 16)


@njit
def share_address(op, share, size):
    return op.scratch + share % size * op.scratch_bytes + share // size * share_bytes(op)


@njit
def do_share(op, batch, sequence, token, kv_head, part, share_pages, share, scratch):
    first, last = seen(op, batch, token)
    start = (first // PAGE + part * share_pages) * PAGE
    pages = batch.page_tables + 4 * batch.page_table_stride * sequence
    few_rows(op, load_key, load_value, pages, token, last, kv_head, max(first, start), min(last, start + share_pages * PAGE - 1), share, scratch)


@njit
def merge_shares(op, batch, share_pages, size):
    """All cut tasks, in the order in which shares are numbered."""
    share = 0
    for sequence in range(batch.n_sequences):
        if not is_few(op, tokens_of(batch, sequence)):
            continue
        for token in range(load_i32(batch.query_starts + 4 * sequence), load_i32(batch.query_starts + 4 * sequence + 4)):
            parts = (pages_seen(op, batch, token) + share_pages - 1) // share_pages
            if parts == 1:
                continue
            for kv_head in range(op.n_kv_heads):
                into = share_address(op, share, size)
                for part in range(1, parts):
                    merge(into, share_address(op, share + part, size), op.n_heads // op.n_kv_heads, filled(op), pad(op.value_dim))
                put_share(op, token, kv_head, into)
                share += parts


@njit
def count_shares(op, batch, share_pages):
    shares = 0
    for sequence in range(batch.n_sequences):
        if is_few(op, tokens_of(batch, sequence)):
            for token in range(load_i32(batch.query_starts + 4 * sequence), load_i32(batch.query_starts + 4 * sequence + 4)):
                parts = (pages_seen(op, batch, token) + share_pages - 1) // share_pages
                if parts > 1:
                    shares += parts * op.n_kv_heads
    return shares


@op_kernel("attention", variants="cache")
def attention(op, batch, rank, size):
    scratch = op.scratch + rank * op.scratch_bytes
    own_share = scratch + ATTENTION_SHARES * share_bytes(op)
    room = own_share + share_bytes(op)
    share_pages = pages_of_share(op, batch, size)
    shares = count_shares(op, batch, share_pages)
    before = shares_before = 0
    task = atomic_add(op.counter, 1)
    for sequence in range(batch.n_sequences):
        tokens = tokens_of(batch, sequence)
        start = load_i32(batch.query_starts + 4 * sequence)
        if not is_few(op, tokens):
            rows, tile = tokens * (op.n_heads // op.n_kv_heads), rows_of_tile(op, tokens, size)
            tiles = (rows + tile - 1) // tile
            while task < before + tiles * op.n_kv_heads:
                # The last rows have the most keys: they go first, so that no thread is left alone with one at the end.
                at = (tiles - 1 - (task - before) // op.n_kv_heads) * tile
                many_rows(op, batch, load_key, load_value, sequence, (task - before) % op.n_kv_heads, at, min(rows, at + tile), room)
                task = atomic_add(op.counter, 1)
            before += tiles * op.n_kv_heads
            continue
        for token in range(start, start + tokens):
            parts = (pages_seen(op, batch, token) + share_pages - 1) // share_pages
            while task < before + parts * op.n_kv_heads:
                kv_head, part = (task - before) // parts, (task - before) % parts
                share = share_address(op, shares_before + task - before, size) if parts > 1 else own_share
                do_share(op, batch, sequence, token, kv_head, part, share_pages, share, room)
                if parts == 1:
                    put_share(op, token, kv_head, share)
                elif atomic_add(op.counter + 8, 1) == shares - 1:
                    store_i64(op.counter + 8, 0)
                    merge_shares(op, batch, share_pages, size)
                task = atomic_add(op.counter, 1)
            before += parts * op.n_kv_heads
            if parts > 1:
                shares_before += parts * op.n_kv_heads
