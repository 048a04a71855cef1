"""IQ2_XS: 256 weights in 74 bytes, 16 groups of 16. weight = scale * (scales[g] + 1/2) / 4 * sign * magnitude.

Each of 32 words of 16 bits stands for eight weights: bits 0-8 number a point of the grid, bits 9-15 are seven signs (see grid_codes). Scales have four bits, low
nibbles first.
"""

from __future__ import annotations

import numpy as np

from . import Format, grid_codes
from .grids import points

IQ2_XS = Format("IQ2_XS", weights=256, layout=[("scale", "<f2"), ("words", "<u2", 32), ("scales", "u1", 8)], codes=86, zero=43, group=16)


def nibble_scales(blocks: np.ndarray) -> np.ndarray:
    """float32[n, 16]: scale * (scales[g] + 1/2) / 4."""
    nibbles = np.stack([blocks["scales"] & 15, blocks["scales"] >> 4], axis=2).reshape(-1, 16)
    return blocks["scale"].astype(np.float32)[:, None] * (nibbles.astype(np.float32) + 0.5) / 4


@IQ2_XS.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    signs = grid_codes.signs(grid_codes.with_eighth((blocks["words"] >> 9).astype(np.uint8)))
    signed = (points("IQ2_XS")[blocks["words"] & 511] * signs).reshape(-1, 16, 16)
    return (nibble_scales(blocks)[:, :, None] * signed).reshape(-1, 256)


def build_nibble_scales(simd, offset: int):
    """scales(block): nibble_scales of a block that has its nibbles at `offset`."""
    interleaved = simd.shuffle(simd.u8x16, simd.u8x16, [i // 2 + 8 * (i % 2) for i in range(16)])
    ones = simd.constant(simd.i32x16, [1] * 16)

    @simd.register_jitable
    def scales(block):
        nibbles = simd.load_i64(block + offset)
        fields = simd.zero_extend(interleaved(simd.bytes_of(nibbles & 0x0F0F0F0F0F0F0F0F, nibbles >> 4 & 0x0F0F0F0F0F0F0F0F)))
        doubled = simd.to_f32(simd.add(simd.add(fields, fields), ones()))
        return simd.mul(doubled, simd.splat_f32x16(simd.load_f16(block) * np.float32(1 / 8))), simd.zero_f32x16()

    return scales


@IQ2_XS.scales
def build_scales(simd):
    return build_nibble_scales(simd, 66)


@IQ2_XS.kernel
def build(simd):
    codes, eighths, scales_of = grid_codes.build_signed(simd, "IQ2_XS", 43), grid_codes.build_with_eighth(simd), build_scales(simd)

    @simd.register_jitable
    def point(address):
        return simd.load_u16(address) & 511

    @simd.register_jitable
    def sevens(address):
        fields = simd.load_i64(address) >> 9 & 0x007F007F007F007F
        fields = (fields | fields >> 8) & 0x0000FFFF0000FFFF
        return (fields | fields >> 16) & 0xFFFFFFFF

    def strip(unit, part):
        a = unit + 2 + 16 * part
        indices = (point(a), point(a + 2), point(a + 4), point(a + 6), point(a + 8), point(a + 10), point(a + 12), point(a + 14))
        scales, zeros = scales_of(unit)
        return codes(indices, eighths(sevens(a) | sevens(a + 8) << 32)), simd.quarter_of(scales, part), zeros

    return strip
