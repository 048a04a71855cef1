"""Q4_0: 32 weights in 18 bytes. weight = scale * (code - 8), code in 0..15; byte i holds weight i (low nibble) and i + 16 (high)."""

from __future__ import annotations

import numpy as np

from . import Format

Q4_0 = Format("Q4_0", weights=32, layout=[("scale", "<f2"), ("codes", "u1", 16)], codes=15, zero=8)


@Q4_0.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
    return blocks["scale"].astype(np.float32)[:, None] * (codes.astype(np.float32) - 8)


@Q4_0.kernel
def build(simd):
    def strip(unit, part):
        other = unit + 18
        codes = simd.nibbles_of_two_blocks(simd.load_u8x16(unit + 2), simd.load_u8x16(other + 2))
        return codes, simd.halves(simd.load_f16(unit), simd.load_f16(other)), simd.zero_f32x16()

    return strip


@Q4_0.scales
def build_scales(simd):
    def scales(address):
        return simd.gather_f16(address, 18), simd.zero_f32x8()

    return scales
