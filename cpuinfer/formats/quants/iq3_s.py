"""IQ3_S: 256 weights in 110 bytes, 8 groups of 32. weight = scale * (2 * scales[g] + 1) * sign * magnitude.

Four weights are a point of a grid of 512: bits 0-7 of its number are points[i], bit 8 is bit i of high_bits. signs has a bit a weight. Scales have four bits, low nibbles
first.
"""

from __future__ import annotations

import numpy as np

from . import Format, grid_codes
from .grids import points

IQ3_S = Format(
    "IQ3_S",
    weights=256,
    layout=[("scale", "<f2"), ("points", "u1", 64), ("high_bits", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)],
    codes=30,
    zero=15,
)


@IQ3_S.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    high = np.unpackbits(blocks["high_bits"], axis=1, bitorder="little").astype(np.uint16)
    nibbles = np.stack([blocks["scales"] & 15, blocks["scales"] >> 4], axis=2).reshape(-1, 8)
    scale = blocks["scale"].astype(np.float32)[:, None] * (2 * nibbles.astype(np.float32) + 1)
    signed = points("IQ3_S")[blocks["points"] | high << 8].reshape(-1, 8, 4, 8) * grid_codes.signs(blocks["signs"]).reshape(-1, 8, 4, 8)
    return (scale[:, :, None, None] * signed).reshape(-1, 256)


@IQ3_S.scales
def build_scales(simd):
    shifts = simd.constant(simd.i32x16, [4 * (i % 8) for i in range(16)])

    @simd.register_jitable
    def scales(block):
        fields = simd.and_constant(simd.shift_right_each(simd.broadcast_i32(block + 106), shifts()), 15)
        factors = simd.to_f32(simd.add(simd.add(fields, fields), simd.splat_i32x16(1)))
        return simd.low_f32x8(simd.mul(factors, simd.splat_f32x16(simd.load_f16(block)))), simd.zero_f32x8()

    return scales


@IQ3_S.kernel
def build(simd):
    codes, scales_of = grid_codes.build_signed(simd, "IQ3_S", 15), build_scales(simd)

    @simd.register_jitable
    def four(address, high):
        """Indices of four points; bits 0-3 of `high` are their upper bits."""
        return (
            simd.load_u8(address) | high << 8 & 256,
            simd.load_u8(address + 1) | high << 7 & 256,
            simd.load_u8(address + 2) | high << 6 & 256,
            simd.load_u8(address + 3) | high << 5 & 256,
        )

    def strip(unit, part):
        a, high = unit + 2 + 16 * part, simd.load_u16(unit + 66 + 2 * part)
        indices = four(a, high) + four(a + 4, high >> 4) + four(a + 8, high >> 8) + four(a + 12, high >> 12)
        scales, _ = scales_of(unit)
        scale = simd.halves(simd.lane(scales, 2 * part), simd.lane(scales, 2 * part + 1))
        return codes(indices, simd.load_i64(unit + 74 + 8 * part)), scale, simd.zero_f32x16()

    return strip
