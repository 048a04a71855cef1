"""Q2_K: 256 weights in 84 bytes, 16 groups of 16. weight = scale * (scales[g] & 15) * code - minimum * (scales[g] >> 4), code in 0..3.

Each half of 128 weights has 32 bytes: bits 2q and 2q + 1 of byte j are the code of weight 32q + j.
"""

from __future__ import annotations

import numpy as np

from . import Format

Q2_K = Format(
    "Q2_K",
    weights=256,
    layout=[("scales", "u1", 16), ("codes", "u1", (2, 32)), ("scale", "<f2"), ("minimum", "<f2")],
    codes=3,
    group=16,
    minimum=True,
)


@Q2_K.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    codes = blocks["codes"][:, :, None, :] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scale = blocks["scale"].astype(np.float32)[:, None] * (blocks["scales"] & 15)
    minimum = blocks["minimum"].astype(np.float32)[:, None] * (blocks["scales"] >> 4)
    return (scale[:, :, None] * codes.reshape(-1, 16, 16) - minimum[:, :, None]).reshape(-1, 256)


@Q2_K.scales
def build_scales(simd):
    @simd.register_jitable
    def scales(block):
        fields = simd.load_u8x16(block)
        scale, minimum = simd.splat_f32x16(simd.load_f16(block + 80)), simd.splat_f32x16(-simd.load_f16(block + 82))
        return (
            simd.mul(simd.to_f32(simd.zero_extend(simd.and_constant(fields, 15))), scale),
            simd.mul(simd.to_f32(simd.zero_extend(simd.shift_right(fields, 4))), minimum),
        )

    return scales


@Q2_K.kernel
def build(simd):
    scales_of = build_scales(simd)

    def strip(unit, part):
        bits = simd.shift_right_each(simd.load_u8x32(unit + 16 + 32 * (part >> 1)), simd.splat_u8x32(4 * (part & 1)))
        codes = simd.and_constant(simd.join_u8x32(bits, simd.shift_right(bits, 2)), 3)
        scales, minimums = scales_of(unit)
        return codes, simd.quarter_of(scales, part), simd.quarter_of(minimums, part)

    return strip
