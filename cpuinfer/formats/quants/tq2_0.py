"""TQ2_0: 256 weights in 66 bytes. weight = scale * (code - 1), code in 0..3, of which quantizers write 0, 1 and 2.

Each half of 128 weights has 32 bytes: bits 2q and 2q + 1 of byte j are the code of weight 32q + j.
"""

from __future__ import annotations

import numpy as np

from . import Format

TQ2_0 = Format("TQ2_0", weights=256, layout=[("codes", "u1", (2, 32)), ("scale", "<f2")], codes=3, zero=1)


@TQ2_0.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    codes = blocks["codes"][:, :, None, :] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return blocks["scale"].astype(np.float32)[:, None] * (codes.reshape(-1, 256).astype(np.float32) - 1)


@TQ2_0.kernel
def build(simd):
    def strip(unit, part):
        bits = simd.shift_right_each(simd.load_u8x32(unit + 32 * (part >> 1)), simd.splat_u8x32(4 * (part & 1)))
        codes = simd.and_constant(simd.join_u8x32(bits, simd.shift_right(bits, 2)), 3)
        return codes, simd.splat_f32x16(simd.load_f16(unit + 64)), simd.zero_f32x16()

    return strip


@TQ2_0.scales
def build_scales(simd):
    def scales(block):
        return simd.splat_f32x8(simd.load_f16(block + 64)), simd.zero_f32x8()

    return scales
