"""Keys or values of the batch's tokens -> their slots in the paged cache."""

from __future__ import annotations

from .cache_rows import STORE
from .records import PAGE
from .registry import op_kernel
from .simd import load_i32

store_row = None  # the cache type's, filled in by bind


def bind(variants: tuple[str, ...]) -> dict:
    return {"store_row": STORE[variants[0]]}


@op_kernel("store_kv", variants="cache")
def store_kv(op, batch, rank, size):
    """Items (token, head) are split in order, as head_norm and rope split them."""
    items = batch.n_tokens * op.n_heads
    share = (items + size - 1) // size
    spare = op.scratch + rank * op.scratch_bytes
    for item in range(rank * share, min(items, rank * share + share)):
        token, head = item // op.n_heads, item % op.n_heads
        slot = load_i32(batch.slots + 4 * token)
        row = op.cache + op.row_bytes * ((slot // PAGE * op.n_heads + head) * PAGE + slot % PAGE)
        store_row(op.x + 4 * (op.x_stride * token + op.head_dim * head), op.head_dim, row, spare)
