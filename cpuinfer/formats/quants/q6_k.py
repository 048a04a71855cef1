"""Q6_K: 256 weights in 210 bytes, 16 groups of 16. weight = scale * scales[g] * (code - 32), code in 0..63, scales signed bytes.

Each half of 128 weights has 64 bytes of low bits and 32 of high bits. With i = 0..63 and j = 0..31 in a half: the low nibble of low_bits[i]
is bits 0-3 of weight i, its high nibble those of weight 64 + i; bits 2q and 2q + 1 of high_bits[j] are bits 4-5 of weight 32q + j.
"""

from __future__ import annotations

import numpy as np

from . import Format

Q6_K = Format(
    "Q6_K",
    weights=256,
    layout=[("low_bits", "u1", (2, 64)), ("high_bits", "u1", (2, 32)), ("scales", "i1", 16), ("scale", "<f2")],
    codes=63,
    zero=32,
    group=16,
)


@Q6_K.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    low = np.stack([blocks["low_bits"] & 15, blocks["low_bits"] >> 4], axis=2).reshape(-1, 2, 4, 32)
    codes = low | (blocks["high_bits"][:, :, None, :] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3) << 4
    scale = blocks["scale"].astype(np.float32)[:, None] * blocks["scales"]
    return (scale[:, :, None] * (codes.reshape(-1, 16, 16).astype(np.float32) - 32)).reshape(-1, 256)


@Q6_K.scales
def build_scales(simd):
    @simd.register_jitable
    def scales(block):
        scale = simd.splat_f32x16(simd.load_f16(block + 208))
        return simd.mul(simd.to_f32(simd.sign_extend(simd.load_u8x16(block + 192))), scale), simd.zero_f32x16()

    return scales


@Q6_K.kernel
def build(simd):
    scales_of = build_scales(simd)

    def strip(unit, part):
        half, odd = part >> 1, part & 1
        low = simd.shift_right_each(simd.load_u8x64(unit + 64 * half), simd.splat_u8x64(4 * odd))
        bits = simd.shift_right_each(simd.load_u8x32(unit + 128 + 32 * half), simd.splat_u8x32(4 * odd))
        high = simd.join_u8x32(simd.shift_left(simd.and_constant(bits, 3), 4), simd.shift_left(simd.and_constant(bits, 12), 2))
        scales, zeros = scales_of(unit)
        return simd.or_(simd.and_constant(low, 15), high), simd.quarter_of(scales, part), zeros

    return strip
