"""MXFP4: 32 weights in 17 bytes. weight = 2^(exponent - 128) * VALUES[code]; byte i holds weight i (low nibble) and i + 16 (high).

The codes are floats of a sign, 2 bits of exponent and 1 of mantissa (0, 0.5, 1, 1.5, 2, 3, 4, 6); VALUES are twice that, so they are whole.
"""

from __future__ import annotations

import numpy as np

from . import SIGNED, Format

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

MXFP4 = Format("MXFP4", weights=32, layout=[("exponent", "u1"), ("codes", "u1", 16)], codes=SIGNED)


@MXFP4.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
    return np.ldexp(np.float32(1), blocks["exponent"].astype(np.int32) - 128)[:, None] * np.array(VALUES, np.float32)[codes]


@MXFP4.kernel
def build(simd):
    values = simd.constant(simd.u8x16, VALUES)

    def strip(unit, part):
        other = unit + 17
        codes = simd.nibbles_of_two_blocks(simd.load_u8x16(unit + 1), simd.load_u8x16(other + 1))
        scale = simd.halves(simd.power_of_two(simd.load_u8(unit) - 128), simd.power_of_two(simd.load_u8(other) - 128))
        return simd.lookup16(values(), codes), scale, simd.zero_f32x16()

    return strip


@MXFP4.scales
def build_scales(simd):
    def scales(address):
        exponents = simd.gather_u8(address, 17)
        normal = simd.shift_left(simd.sub(exponents, simd.splat_i32x16(1)), 23)
        subnormal = simd.shift_left_each(simd.splat_i32x16(1 << 21), simd.and_constant(exponents, 1))
        scale = simd.f32_of_bits(simd.select_less(exponents, simd.splat_i32x16(2), subnormal, normal))
        return simd.low_f32x8(scale), simd.zero_f32x8()

    return scales
