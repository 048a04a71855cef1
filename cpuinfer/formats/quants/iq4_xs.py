"""IQ4_XS: 256 weights in 136 bytes, 8 groups of 32. weight = scale * (scales[g] - 32) * VALUES[code], scales of 6 bits, VALUES of IQ4_NL.

Group g has 16 bytes of codes, low nibbles first. Bits 0-3 of its scale are nibble g of low_scales (lowest first), bits 4-5 are bits 2g and
2g + 1 of high_scales.
"""

from __future__ import annotations

import numpy as np

from . import SIGNED, Format
from .iq4_nl import VALUES

IQ4_XS = Format(
    "IQ4_XS",
    weights=256,
    layout=[("scale", "<f2"), ("high_scales", "<u2"), ("low_scales", "<u4"), ("codes", "u1", (8, 16))],
    codes=SIGNED,
)


@IQ4_XS.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    group = np.arange(8, dtype=np.uint32)
    scales = blocks["low_scales"][:, None] >> 4 * group & 15 | (blocks["high_scales"].astype(np.uint32)[:, None] >> 2 * group & 3) << 4
    scale = blocks["scale"].astype(np.float32)[:, None] * (scales.astype(np.float32) - 32)
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=2)
    return (scale[:, :, None] * np.array(VALUES, np.float32)[codes]).reshape(-1, 256)


@IQ4_XS.scales
def build_scales(simd):
    low_shifts = simd.constant(simd.i32x16, [4 * (i % 8) for i in range(16)])
    high_shifts = simd.constant(simd.i32x16, [2 * (i % 8) for i in range(16)])

    @simd.register_jitable
    def scales(block):
        low = simd.shift_right_each(simd.broadcast_i32(block + 4), low_shifts())
        high = simd.shift_right_each(simd.splat_i32x16(simd.load_u16(block + 2)), high_shifts())
        fields = simd.or_(simd.and_constant(low, 15), simd.shift_left(simd.and_constant(high, 3), 4))
        factors = simd.mul(simd.to_f32(simd.sub(fields, simd.splat_i32x16(32))), simd.splat_f32x16(simd.load_f16(block)))
        return simd.low_f32x8(factors), simd.zero_f32x8()

    return scales


@IQ4_XS.kernel
def build(simd):
    values, scales_of = simd.constant(simd.u8x16, VALUES), build_scales(simd)

    def strip(unit, part):
        run = unit + 8 + 32 * part
        codes = simd.nibbles_of_two_blocks(simd.load_u8x16(run), simd.load_u8x16(run + 16))
        scales, _ = scales_of(unit)
        scale = simd.halves(simd.lane(scales, 2 * part), simd.lane(scales, 2 * part + 1))
        return simd.lookup16(values(), codes), scale, simd.zero_f32x16()

    return strip
