"""Q4_K: 256 weights in 144 bytes, 8 groups of 32. weight = scale * scales[g] * code - minimum * minimums[g], code in 0..15.

The codes are four runs of 32 bytes: run r holds group 2r in its low nibbles and group 2r + 1 in its high ones. The scales and minimums of 6
bits are packed as in six_bit_scales.py.
"""

from __future__ import annotations

import numpy as np

from . import Format, six_bit_scales

Q4_K = Format(
    "Q4_K",
    weights=256,
    layout=[("scale", "<f2"), ("minimum", "<f2"), ("scales", "u1", 12), ("codes", "u1", (4, 32))],
    codes=15,
    minimum=True,
)


@Q4_K.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    scales, minimums = six_bit_scales.unpack(blocks["scales"])
    codes = np.stack([blocks["codes"] & 15, blocks["codes"] >> 4], axis=2).reshape(-1, 8, 32)
    scale = blocks["scale"].astype(np.float32)[:, None] * scales
    minimum = blocks["minimum"].astype(np.float32)[:, None] * minimums
    return (scale[:, :, None] * codes - minimum[:, :, None]).reshape(-1, 256)


@Q4_K.kernel
def build(simd):
    scales_and_minimums = six_bit_scales.build_scales(simd)

    def strip(unit, part):
        run = simd.load_u8x32(unit + 16 + 32 * part)
        codes = simd.join_u8x32(simd.and_constant(run, 15), simd.shift_right(run, 4))
        scales, minimums = scales_and_minimums(unit)
        scale = simd.halves(simd.lane(scales, 2 * part), simd.lane(scales, 2 * part + 1))
        minimum = simd.halves(simd.lane(minimums, 2 * part), simd.lane(minimums, 2 * part + 1))
        return codes, scale, minimum

    return strip


Q4_K.scales(six_bit_scales.build_scales)
