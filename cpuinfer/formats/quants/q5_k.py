"""Q5_K: 256 weights in 176 bytes, 8 groups of 32. weight = scale * scales[g] * code - minimum * minimums[g], code in 0..31.

Bits 0-3 of the codes lie as in Q4_K; bit 4 of weight i of group g is bit g of high_bits[i]. The scales and minimums of 6 bits are packed as
in six_bit_scales.py.
"""

from __future__ import annotations

import numpy as np

from . import Format, six_bit_scales

Q5_K = Format(
    "Q5_K",
    weights=256,
    layout=[("scale", "<f2"), ("minimum", "<f2"), ("scales", "u1", 12), ("high_bits", "u1", 32), ("low_bits", "u1", (4, 32))],
    codes=31,
    minimum=True,
)


@Q5_K.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    scales, minimums = six_bit_scales.unpack(blocks["scales"])
    low = np.stack([blocks["low_bits"] & 15, blocks["low_bits"] >> 4], axis=2).reshape(-1, 8, 32)
    codes = low | (blocks["high_bits"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    scale = blocks["scale"].astype(np.float32)[:, None] * scales
    minimum = blocks["minimum"].astype(np.float32)[:, None] * minimums
    return (scale[:, :, None] * codes - minimum[:, :, None]).reshape(-1, 256)


@Q5_K.kernel
def build(simd):
    scales_and_minimums = six_bit_scales.build_scales(simd)

    def strip(unit, part):
        run = simd.load_u8x32(unit + 48 + 32 * part)
        bits = simd.shift_right_each(simd.load_u8x32(unit + 16), simd.splat_u8x32(2 * part))
        first = simd.or_(simd.and_constant(run, 15), simd.shift_left(simd.and_constant(bits, 1), 4))
        second = simd.or_(simd.shift_right(run, 4), simd.shift_left(simd.and_constant(bits, 2), 3))
        scales, minimums = scales_and_minimums(unit)
        scale = simd.halves(simd.lane(scales, 2 * part), simd.lane(scales, 2 * part + 1))
        minimum = simd.halves(simd.lane(minimums, 2 * part), simd.lane(minimums, 2 * part + 1))
        return simd.join_u8x32(first, second), scale, minimum

    return strip


Q5_K.scales(six_bit_scales.build_scales)
