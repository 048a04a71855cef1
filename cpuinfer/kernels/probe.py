"""The machine's limits, measured with the vocabulary that kernels use: how fast all threads read memory, and how many 8-bit multiply-adds a register tile does."""

from __future__ import annotations

from .registry import op_kernel
from .simd import as_i32x16, lane, load_u8x64, store_i64, xor, zero_u8x64
from .tiles import TILES, tile_group, tile_store, tile_zero

GROUP = 32


@op_kernel("probe", name="probe_read")
def probe_read(op, batch, rank, size):
    """Each thread reads its share of op.bytes at op.data, in four streams; op.result keeps the loads alive."""
    share = op.bytes // size // 256 * 256
    start = op.data + rank * share
    a, b, c, d = zero_u8x64(), zero_u8x64(), zero_u8x64(), zero_u8x64()
    quarter = share // 256 * 64
    for i in range(0, quarter, 64):
        a = xor(a, load_u8x64(start + i))
        b = xor(b, load_u8x64(start + quarter + i))
        c = xor(c, load_u8x64(start + 2 * quarter + i))
        d = xor(d, load_u8x64(start + 3 * quarter + i))
    store_i64(op.result + 64 * rank, lane(as_i32x16(xor(xor(a, b), xor(c, d))), 0))


@op_kernel("probe", name="probe_dot4")
def probe_dot4(op, batch, rank, size):
    """op.repeats times a register tile over 32 groups of 4-bit codes from the first-level cache; each group is GROUP * 16 * TILES * TOKENS multiply-adds."""
    for _ in range(op.repeats):
        tile = tile_zero()
        for g in range(32):
            tile = tile_group(tile, op.data + g * GROUP * 16 * TILES % 8192, op.data, op.data, op.data + 8192, op.data, op.data, 32, 0, False, 15)
        tile_store(tile, op.result + rank * 4096)
