"""Q4_1: 32 weights in 20 bytes. weight = scale * code + minimum, code in 0..15; byte i holds weight i (low nibble) and i + 16 (high)."""

from __future__ import annotations

import numpy as np

from . import Format

Q4_1 = Format("Q4_1", weights=32, layout=[("scale", "f2"), ("minimum", "f2"), ("codes", "u1", 16)], codes=15, minimum=True)


@Q4_1.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
    return codes * blocks["scale"].astype(np.float32)[:, None] + blocks["minimum"].astype(np.float32)[:, None]


@Q4_1.kernel
def build(simd):
    def strip(unit, part):
        other = unit + 20
        codes = simd.nibbles_of_two_blocks(simd.load_u8x16(unit + 4), simd.load_u8x16(other + 4))
        scale = simd.halves(simd.load_f16(unit), simd.load_f16(other))
        minimum = simd.halves(simd.load_f16(unit + 2), simd.load_f16(other + 2))
        return codes, scale, minimum

    return strip


@Q4_1.scales
def build_scales(simd):
    def scales(address):
        return simd.gather_f16_pairs(address, 20)

    return scales
