"""Moving columns of heads: between rows of tokens [T, n_heads * head columns] and rows grouped by head [n_heads, T and some spare rows, columns].

Grouped by head, each head's rows can have a matrix of their own (multi-head latent attention): the op `experts` runs over heads then.
"""

from __future__ import annotations

from numba import njit

from .records import EXPERT_COUNTERS, EXPERT_SPARE_ROWS
from .registry import op_kernel
from .simd import load_f32, load_f32x16, store_f32, store_f32x16, store_i64


@njit
def place(address, stride, head_columns, first, by_head, head, token, tokens):
    """Address of a head's columns of a token in either layout."""
    row = head * (tokens + EXPERT_SPARE_ROWS) + token if by_head else token
    return address + 4 * (stride * row + first + (0 if by_head else head * head_columns))


@op_kernel("columns")
def columns(op, batch, rank, size):
    tokens = batch.n_tokens
    if rank == 0 and op.groups:
        for i in range(EXPERT_COUNTERS * op.n_heads):
            store_i64(op.groups + 8 * (2 * op.n_heads + i), 0)
        for head in range(op.n_heads):
            store_i64(op.groups + 8 * head, tokens)
            store_i64(op.groups + 8 * (op.n_heads + head), head * (tokens + EXPERT_SPARE_ROWS))
    items = tokens * op.n_heads
    for item in range(rank, items, size):
        token, head = item // op.n_heads, item % op.n_heads
        x = place(op.x, op.x_stride, op.x_head_columns, op.x_first, op.x_by_head, head, token, tokens)
        y = place(op.y, op.y_stride, op.y_head_columns, op.y_first, op.y_by_head, head, token, tokens)
        whole = op.columns // 16 * 16
        for i in range(0, whole, 16):
            store_f32x16(y + 4 * i, load_f32x16(x + 4 * i))
        for i in range(whole, op.columns):
            store_f32(y + 4 * i, load_f32(x + 4 * i))
