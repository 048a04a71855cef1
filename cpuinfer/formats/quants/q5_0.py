"""Q5_0: 32 weights in 22 bytes. weight = scale * (code - 16), code in 0..31.

Byte i of low_bits holds bits 0-3 of weight i (low nibble) and of weight i + 16 (high); bit i of high_bits (32 bits, little-endian) is bit 4
of weight i.
"""

from __future__ import annotations

import numpy as np

from . import Format

Q5_0 = Format("Q5_0", weights=32, layout=[("scale", "<f2"), ("high_bits", "u1", 4), ("low_bits", "u1", 16)], codes=31, zero=16)


def five_bit_codes(blocks: np.ndarray) -> np.ndarray:
    """Structured blocks [n] with high_bits and low_bits -> u1[n, 32]."""
    low = np.concatenate([blocks["low_bits"] & 15, blocks["low_bits"] >> 4], axis=1)
    return low | np.unpackbits(blocks["high_bits"], axis=1, bitorder="little") << 4


@Q5_0.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    return blocks["scale"].astype(np.float32)[:, None] * (five_bit_codes(blocks).astype(np.float32) - 16)


@Q5_0.kernel
def build(simd):
    sixteens = simd.constant(simd.u8x64, [16] * 64)

    def strip(unit, part):
        other = unit + 22
        low = simd.nibbles_of_two_blocks(simd.load_u8x16(unit + 6), simd.load_u8x16(other + 6))
        high = simd.join_u8x32(simd.mask_of_bits(simd.load_u32(unit + 2)), simd.mask_of_bits(simd.load_u32(other + 2)))
        codes = simd.or_(low, simd.and_(high, sixteens()))
        return codes, simd.halves(simd.load_f16(unit), simd.load_f16(other)), simd.zero_f32x16()

    return strip


@Q5_0.scales
def build_scales(simd):
    def scales(address):
        return simd.gather_f16(address, 22), simd.zero_f32x8()

    return scales
