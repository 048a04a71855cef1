"""Q2_0: 64 weights in 18 bytes. weight = scale * (code - 1), code in 0..3: bits 2q and 2q + 1 of byte j are the code of weight 4j + q."""

from __future__ import annotations

import numpy as np

from . import Format

Q2_0 = Format("Q2_0", weights=64, layout=[("scale", "<f2"), ("codes", "u1", 16)], codes=3, zero=1)


@Q2_0.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    codes = (blocks["codes"][:, :, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 64)
    return blocks["scale"].astype(np.float32)[:, None] * (codes.astype(np.float32) - 1)


@Q2_0.kernel
def build(simd):
    def strip(unit, part):
        fields = simd.zero_extend(simd.load_u8x16(unit + 2))
        pairs = simd.or_(fields, simd.shift_left(fields, 6))  # byte q of a lane shall have bits 2q and 2q + 1 as its lowest
        codes = simd.and_constant(simd.as_u8x64(simd.or_(pairs, simd.shift_left(pairs, 12))), 3)
        return codes, simd.splat_f32x16(simd.load_f16(unit)), simd.zero_f32x16()

    return strip


@Q2_0.scales
def build_scales(simd):
    two_each = simd.shuffle(simd.f32x16, simd.f32x8, [0, 1, 4, 5, 8, 9, 12, 13])

    def scales(address):
        blocks = simd.load_f16(address), simd.load_f16(address + 18), simd.load_f16(address + 36), simd.load_f16(address + 54)
        return two_each(simd.quarters(blocks[0], blocks[1], blocks[2], blocks[3])), simd.zero_f32x8()

    return scales
