"""IQ1_M: 256 weights in 56 bytes, 16 groups of 16. weight = scale * (2 * scales[g] + 1) * (point + shift), a coordinate of the point is -1, 0 or 1, the shift 1/8 or -1/8.

Eight weights are a point of a grid of 2048: bits 0-7 of its number are points[i]; nibble i of high, low ones first, holds bits 8-10 in bits 0-2, and in bit 3 a 1 if the shift is
negative. Each of the four words of scales has those of four groups, three bits each, lowest first, and in bits 12-15 a quarter of the half that is the scale. Codes are
eighths.
"""

from __future__ import annotations

import numpy as np

from . import Format, grid_codes
from .grids import points

IQ1_M = Format("IQ1_M", weights=256, layout=[("points", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)], codes=18, zero=9, group=16)


@IQ1_M.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    nibbles = np.stack([blocks["high"] & 15, blocks["high"] >> 4], axis=2).reshape(-1, 32)
    quarters = (blocks["scales"] >> 12).astype(np.uint16) << np.array([0, 4, 8, 12], np.uint16)
    halves = np.bitwise_or.reduce(quarters, axis=1).view(np.float16).astype(np.float32)
    factors = (blocks["scales"][:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    scale = halves[:, None] * (2 * factors.astype(np.float32) + 1)
    shift = np.where(nibbles & 8, np.float32(-0.125), np.float32(0.125))
    shifted = points("IQ1")[blocks["points"] | (nibbles & 7).astype(np.uint16) << 8] + shift[:, :, None]
    return (scale[:, :, None] * shifted.reshape(-1, 16, 16)).reshape(-1, 256)


@IQ1_M.scales
def build_scales(simd):
    own_words = simd.shuffle(simd.u8x16, simd.u8x64, [8 + 2 * (i // 16) + i % 2 for i in range(64)])
    shifts = simd.constant(simd.i32x16, [3 * (i % 4) for i in range(16)])

    @simd.register_jitable
    def scales(block):
        words = simd.load_i64(block + 48)
        scale = simd.f16_of_bits(words >> 12 & 0xF | words >> 24 & 0xF0 | words >> 36 & 0xF00 | words >> 48 & 0xF000) * np.float32(1 / 8)
        fields = simd.and_constant(simd.shift_right_each(simd.as_i32x16(own_words(simd.load_u8x16(block + 40))), shifts()), 7)
        factors = simd.to_f32(simd.add(simd.add(fields, fields), simd.splat_i32x16(1)))
        return simd.mul(factors, simd.splat_f32x16(scale)), simd.zero_f32x16()

    return scales


@IQ1_M.kernel
def build(simd):
    codes, scales_of = grid_codes.build_shifted(simd, [4 * (i // 2) + 3 for i in range(16)]), build_scales(simd)

    @simd.register_jitable
    def two(address, high):
        return simd.load_u8(address) | high << 8 & 1792, simd.load_u8(address + 1) | high << 4 & 1792

    def strip(unit, part):
        a, high = unit + 8 * part, unit + 32 + 4 * part
        first, second = two(a, simd.load_u8(high)), two(a + 2, simd.load_u8(high + 1))
        third, fourth = two(a + 4, simd.load_u8(high + 2)), two(a + 6, simd.load_u8(high + 3))
        scales, zeros = scales_of(unit)
        return codes(first + second + third + fourth, high), simd.quarter_of(scales, part), zeros

    return strip
