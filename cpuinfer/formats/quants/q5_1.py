"""Q5_1: 32 weights in 24 bytes. weight = scale * code + minimum, code in 0..31; bits of the codes as in Q5_0."""

from __future__ import annotations

import numpy as np

from . import Format
from .q5_0 import five_bit_codes

Q5_1 = Format(
    "Q5_1",
    weights=32,
    layout=[("scale", "<f2"), ("minimum", "<f2"), ("high_bits", "u1", 4), ("low_bits", "u1", 16)],
    codes=31,
    minimum=True,
)


@Q5_1.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    scale, minimum = (blocks[name].astype(np.float32)[:, None] for name in ("scale", "minimum"))
    return scale * five_bit_codes(blocks) + minimum


@Q5_1.kernel
def build(simd):
    sixteens = simd.constant(simd.u8x64, [16] * 64)

    def strip(unit, part):
        other = unit + 24
        low = simd.nibbles_of_two_blocks(simd.load_u8x16(unit + 8), simd.load_u8x16(other + 8))
        high = simd.join_u8x32(simd.mask_of_bits(simd.load_u32(unit + 4)), simd.mask_of_bits(simd.load_u32(other + 4)))
        codes = simd.or_(low, simd.and_(high, sixteens()))
        scale = simd.halves(simd.load_f16(unit), simd.load_f16(other))
        minimum = simd.halves(simd.load_f16(unit + 2), simd.load_f16(other + 2))
        return codes, scale, minimum

    return strip


@Q5_1.scales
def build_scales(simd):
    def scales(address):
        return simd.gather_f16_pairs(address, 24)

    return scales
