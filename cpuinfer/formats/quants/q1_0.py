"""Q1_0: 128 weights in 18 bytes. weight = scale * (code - 1), code 0 or 2. Bit i of signs (128 bits, little-endian): 1 makes code i a 2."""

from __future__ import annotations

import numpy as np

from . import Format

Q1_0 = Format("Q1_0", weights=128, layout=[("scale", "<f2"), ("signs", "u1", 16)], codes=2, zero=1)
Q1_0.unit_weights, Q1_0.unit_bytes = 256, 36  # two blocks: drivers know units of 64 and of 256 weights


@Q1_0.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    signs = np.unpackbits(blocks["signs"], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    return blocks["scale"].astype(np.float32)[:, None] * signs


@Q1_0.kernel
def build(simd):
    twos = simd.constant(simd.u8x64, [2] * 64)

    def strip(unit, part):
        block = unit + 18 * (part >> 1)
        signs = block + 2 + 8 * (part & 1)
        mask = simd.join_u8x32(simd.mask_of_bits(simd.load_u32(signs)), simd.mask_of_bits(simd.load_u32(signs + 4)))
        return simd.and_(mask, twos()), simd.splat_f32x16(simd.load_f16(block)), simd.zero_f32x16()

    return strip


@Q1_0.scales
def build_scales(simd):
    def scales(address):
        first, second = simd.load_f16(address), simd.load_f16(address + 18)
        return simd.low_f32x8(simd.quarters(first, second, first, second)), simd.zero_f32x8()

    return scales
