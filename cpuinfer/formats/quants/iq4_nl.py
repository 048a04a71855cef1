"""IQ4_NL: 32 weights in 18 bytes. weight = scale * VALUES[code], code in 0..15; byte i holds weight i (low nibble) and i + 16 (high)."""

from __future__ import annotations

import numpy as np

from . import SIGNED, Format

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

IQ4_NL = Format("IQ4_NL", weights=32, layout=[("scale", "<f2"), ("codes", "u1", 16)], codes=SIGNED)


@IQ4_NL.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
    return blocks["scale"].astype(np.float32)[:, None] * np.array(VALUES, np.float32)[codes]


@IQ4_NL.kernel
def build(simd):
    values = simd.constant(simd.u8x16, VALUES)

    def strip(unit, part):
        other = unit + 18
        codes = simd.nibbles_of_two_blocks(simd.load_u8x16(unit + 2), simd.load_u8x16(other + 2))
        return simd.lookup16(values(), codes), simd.halves(simd.load_f16(unit), simd.load_f16(other)), simd.zero_f32x16()

    return strip


@IQ4_NL.scales
def build_scales(simd):
    def scales(address):
        return simd.gather_f16(address, 18), simd.zero_f32x8()

    return scales
