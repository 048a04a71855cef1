"""Mixtures of experts: routing, gathering rows by expert, running an op expert by expert, and combining the results.

Each token is routed to n_used of n_experts. The rows of an expert stand together in arrays of slot rows: `groups` tells how many it has and where they start, and
any kernel over rows (a matrix product, an activation, a quantization) runs on each expert's rows through `experts`, with the driver that their number asks for. So only
the routed experts' weights are read, and many rows of one expert are a product over many tokens.

    groups i64[2 + EXPERT_COUNTERS, n_experts]: rows, first slot row, row counters of up to EXPERT_COUNTERS products (zeroed by route)
    slots  of a token: n_used slot rows (i32), then n_used weights (f32)
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .records import BATCH, EXPERT_COUNTERS, EXPERT_SPARE_ROWS
from .registry import op_kernel
from .simd import call_kernel, fma, load_f32, load_f32x16, load_i32, load_i64, mul, splat_f32x16, store_f32, store_f32x16, store_i32, store_i64, zero_f32x16

BATCH_WORDS = BATCH.itemsize // 8
TAKEN = np.float32(-3e38)  # score of an expert that is chosen already


@njit
def choose(op, logits, scores, slots):
    """The n_used best of one token, ties by lowest index: experts and weights to its slots."""
    top = np.float64(-1e300)
    for e in range(op.n_experts):
        value = np.float64(load_f32(logits + 4 * e))
        top = max(top, value)
        if op.sigmoid:
            value = 1 / (1 + math.exp(-value))
        if op.bias:
            value += load_f32(op.bias + 4 * e)
        store_f32(scores + 4 * e, np.float32(value))
    total = np.float64(0)
    if not op.sigmoid:
        for e in range(op.n_experts):
            total += math.exp(load_f32(logits + 4 * e) - top)
    chosen = np.float64(0)
    for k in range(op.n_used):
        best = 0
        for e in range(1, op.n_experts):
            if load_f32(scores + 4 * e) > load_f32(scores + 4 * best):
                best = e
        store_f32(scores + 4 * best, TAKEN)
        value = np.float64(load_f32(logits + 4 * best))
        weight = 1 / (1 + math.exp(-value)) if op.sigmoid else math.exp(value - top) / total
        chosen += weight
        store_i32(slots + 4 * k, best)
        store_f32(slots + 4 * (op.n_used + k), np.float32(weight))
    factor = np.float32(op.scale / max(chosen, 1e-20)) if op.normalize else np.float32(op.scale)
    for k in range(op.n_used):
        at = slots + 4 * (op.n_used + k)
        own = load_f32(op.scales + 4 * load_i32(slots + 4 * k)) if op.scales else np.float32(1)
        store_f32(at, load_f32(at) * factor * own)


@op_kernel("route")
def route(op, batch, rank, size):
    """One thread does it all: some hundred thousand comparisons for a whole prompt."""
    if rank != 0:
        return
    counts, starts = op.groups, op.groups + 8 * op.n_experts
    for i in range((2 + EXPERT_COUNTERS) * op.n_experts):
        store_i64(op.groups + 8 * i, 0)
    for t in range(batch.n_tokens):
        slots = op.y + 4 * op.y_stride * t
        choose(op, op.x + 4 * op.x_stride * t, op.scratch, slots)
        for k in range(op.n_used):
            e = load_i32(slots + 4 * k)
            store_i64(counts + 8 * e, load_i64(counts + 8 * e) + 1)
    start = np.int64(0)
    for e in range(op.n_experts):
        store_i64(starts + 8 * e, start)
        if load_i64(counts + 8 * e):
            start += load_i64(counts + 8 * e) + EXPERT_SPARE_ROWS
    # starts serve as cursors while rows are dealt out, and go back afterwards.
    for t in range(batch.n_tokens):
        slots = op.y + 4 * op.y_stride * t
        for k in range(op.n_used):
            e = load_i32(slots + 4 * k)
            row = load_i64(starts + 8 * e)
            store_i64(starts + 8 * e, row + 1)
            store_i32(slots + 4 * k, row)
    for e in range(op.n_experts):
        store_i64(starts + 8 * e, load_i64(starts + 8 * e) - load_i64(counts + 8 * e))


@op_kernel("gather")
def gather(op, batch, rank, size):
    """y[slot row] = x[t] for every slot of every token."""
    items = batch.n_tokens * op.n_used
    for item in range(rank, items, size):
        t, k = item // op.n_used, item % op.n_used
        source = op.x + 4 * op.x_stride * t
        target = op.y + 4 * op.y_stride * load_i32(op.slots + 4 * (op.slots_stride * t + k))
        for i in range(0, op.columns, 16):
            store_f32x16(target + 4 * i, load_f32x16(source + 4 * i))


@op_kernel("combine")
def combine(op, batch, rank, size):
    """y[t] = sum over its slots of weight * x[slot row], plus shared[t], the latter times sigmoid(gate[t, 0]) if there is one."""
    spans = (op.columns + 63) // 64
    tasks = batch.n_tokens * spans
    share = (tasks + size - 1) // size
    for task in range(rank * share, min(tasks, rank * share + share)):
        t, start = task // spans, task % spans * 64
        slots = op.slots + 4 * op.slots_stride * t
        factor = np.float32(1)
        if op.gate:
            factor = np.float32(1 / (1 + math.exp(-np.float64(load_f32(op.gate + 4 * op.gate_stride * t)))))
        for i in range(start, min(start + 64, op.columns), 16):
            v = zero_f32x16()
            if op.shared:
                v = mul(load_f32x16(op.shared + 4 * (op.shared_stride * t + i)), splat_f32x16(factor))
            for k in range(op.n_used):
                x = op.x + 4 * (op.x_stride * load_i32(slots + 4 * k) + i)
                v = fma(load_f32x16(x), splat_f32x16(load_f32(slots + 4 * (op.n_used + k))), v)
            store_f32x16(op.y + 4 * (op.y_stride * t + i), v)


@op_kernel("experts")
def experts(op, batch, rank, size):
    """Run op.record's kernel on the rows of each expert that has any: a copy of the record, patched, and of the batch with the number of rows.

    A patch is (offset of a field, kind, value): kind 0 adds value bytes for each row before the expert's first, kind 1 takes the field from the table i64[n_experts] at value.
    """
    record = op.scratch + rank * op.scratch_bytes + op.scratch_bytes - 1024
    rows_batch = record + op.record_bytes
    for e in range(op.n_experts):
        rows = load_i64(op.groups + 8 * e)
        if rows == 0:
            continue
        start = load_i64(op.groups + 8 * (op.n_experts + e))
        for i in range(0, op.record_bytes, 8):
            store_i64(record + i, load_i64(op.record + i))
        for p in range(op.n_patches):
            patch = op.patches + 24 * p
            field, value = record + load_i64(patch), load_i64(patch + 16)
            if load_i64(patch + 8) == 0:
                store_i64(field, load_i64(field) + value * start)
            else:
                store_i64(field, load_i64(value + 8 * e))
        for i in range(BATCH_WORDS):
            store_i64(rows_batch + 8 * i, 0)
        store_i64(rows_batch, rows)
        driver = 0
        if rows > 1:
            driver = 1
        if rows > op.few:
            driver = 2
        call_kernel(load_i64(op.kernels + 8 * driver), record, rows_batch, rank, size)
