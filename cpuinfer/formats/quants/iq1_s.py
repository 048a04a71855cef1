"""IQ1_S: 256 weights in 50 bytes, 8 groups of 32. weight = scale * (2 * scales[g] + 1) * (point + shift), a coordinate of the point is -1, 0 or 1, the shift 1/8 or -1/8.

Eight weights are a point of a grid of 2048: bits 0-7 of its number are points[i]. A group's word in `high` holds bits 8-10 of its four points in bits 0-11, its scale in bits
12-14, and in bit 15 a 1 if the shift is negative. Codes are eighths.
"""

from __future__ import annotations

import numpy as np

from . import Format, grid_codes
from .grids import points

IQ1_S = Format("IQ1_S", weights=256, layout=[("scale", "<f2"), ("points", "u1", (8, 4)), ("high", "<u2", 8)], codes=18, zero=9)


@IQ1_S.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    high = blocks["high"]
    indices = blocks["points"] | (high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7) << 8
    scale = blocks["scale"].astype(np.float32)[:, None] * (2 * (high >> 12 & 7).astype(np.float32) + 1)
    shift = np.where(high >> 15, np.float32(-0.125), np.float32(0.125))
    return (scale[:, :, None, None] * (points("IQ1")[indices] + shift[:, :, None, None])).reshape(-1, 256)


@IQ1_S.scales
def build_scales(simd):
    upper_bytes = simd.shuffle(simd.u8x16, simd.u8x16, [2 * (i % 8) + 1 for i in range(16)])

    @simd.register_jitable
    def scales(block):
        fields = simd.zero_extend(simd.and_constant(simd.shift_right(upper_bytes(simd.load_u8x16(block + 34)), 4), 7))
        factors = simd.to_f32(simd.add(simd.add(fields, fields), simd.splat_i32x16(1)))
        return simd.low_f32x8(simd.mul(factors, simd.splat_f32x16(simd.load_f16(block) * np.float32(1 / 8)))), simd.zero_f32x8()

    return scales


@IQ1_S.kernel
def build(simd):
    codes, scales_of = grid_codes.build_shifted(simd, [15] * 8 + [31] * 8), build_scales(simd)

    @simd.register_jitable
    def four(address, high):
        return (
            simd.load_u8(address) | high << 8 & 1792,
            simd.load_u8(address + 1) | high << 5 & 1792,
            simd.load_u8(address + 2) | high << 2 & 1792,
            simd.load_u8(address + 3) | high >> 1 & 1792,
        )

    def strip(unit, part):
        a, words = unit + 2 + 8 * part, unit + 34 + 4 * part
        indices = four(a, simd.load_u16(words)) + four(a + 4, simd.load_u16(words + 2))
        scales, _ = scales_of(unit)
        return codes(indices, words), simd.halves(simd.lane(scales, 2 * part), simd.lane(scales, 2 * part + 1)), simd.zero_f32x16()

    return strip
