"""Q3_K: 256 weights in 110 bytes, 16 groups of 16. weight = scale * (scales[g] - 32) * (code - 4), code in 0..7, scales of 6 bits.

low_bits    two halves of 32 bytes for 128 weights each: bits 2q and 2q + 1 of byte j are bits 0-1 of weight 32q + j
high_bits   bit q of byte j is bit 2 of weight 32q + j, q = 0..7
scales      bytes 0-7: low nibbles are bits 0-3 of scales 0-7, high nibbles those of scales 8-15;
            bytes 8-11: bits 2q and 2q + 1 of byte j are bits 4-5 of scale 4q + j
"""

from __future__ import annotations

import numpy as np

from . import Format

Q3_K = Format(
    "Q3_K",
    weights=256,
    layout=[("high_bits", "u1", 32), ("low_bits", "u1", (2, 32)), ("scales", "u1", 12), ("scale", "<f2")],
    codes=7,
    zero=4,
    group=16,
)


@Q3_K.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    packed, pairs = blocks["scales"], np.array([0, 2, 4, 6], np.uint8)[:, None]
    scales = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1) | (packed[:, None, 8:] >> pairs & 3).reshape(-1, 16) << 4
    low = (blocks["low_bits"][:, :, None, :] >> pairs & 3).reshape(-1, 8, 32)
    codes = low | (blocks["high_bits"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 2
    scale = blocks["scale"].astype(np.float32)[:, None] * (scales.astype(np.float32) - 32)
    return (scale[:, :, None] * (codes.reshape(-1, 16, 16).astype(np.float32) - 4)).reshape(-1, 256)


@Q3_K.scales
def build_scales(simd):
    @simd.register_jitable
    def scales(block):
        low, high = simd.load_i64(block + 96), simd.load_u32(block + 104)
        first = low & 0x0F0F0F0F0F0F0F0F | (high & 0x03030303) << 4 | (high & 0x0C0C0C0C) << 34
        second = low >> 4 & 0x0F0F0F0F0F0F0F0F | high & 0x30303030 | (high & 0xC0C0C0C0) << 30
        fields = simd.sub(simd.zero_extend(simd.bytes_of(first, second)), simd.splat_i32x16(32))
        return simd.mul(simd.to_f32(fields), simd.splat_f32x16(simd.load_f16(block + 108))), simd.zero_f32x16()

    return scales


@Q3_K.kernel
def build(simd):
    scales_of = build_scales(simd)

    def strip(unit, part):
        pairs = simd.shift_right_each(simd.load_u8x32(unit + 32 + 32 * (part >> 1)), simd.splat_u8x32(4 * (part & 1)))
        low = simd.and_constant(simd.join_u8x32(pairs, simd.shift_right(pairs, 2)), 3)
        bits = simd.shift_right_each(simd.load_u8x32(unit), simd.splat_u8x32(2 * part))
        high = simd.join_u8x32(simd.shift_left(simd.and_constant(bits, 1), 2), simd.shift_left(simd.and_constant(bits, 2), 1))
        scales, zeros = scales_of(unit)
        return simd.or_(low, high), simd.quarter_of(scales, part), zeros

    return strip
