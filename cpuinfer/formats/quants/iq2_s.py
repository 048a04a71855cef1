"""IQ2_S: 256 weights in 82 bytes, 16 groups of 16. weight = scale * (scales[g] + 1/2) / 4 * sign * magnitude.

Eight weights are a point of a grid of 1024: bits 0-7 of its number are points[i], bits 8-9 two bits of high_bits, lowest first. signs has a bit a weight. Scales have four
bits, low nibbles first.
"""

from __future__ import annotations

import numpy as np

from . import Format, grid_codes
from .grids import points
from .iq2_xs import build_nibble_scales, nibble_scales

IQ2_S = Format(
    "IQ2_S",
    weights=256,
    layout=[("scale", "<f2"), ("points", "u1", 32), ("signs", "u1", 32), ("high_bits", "u1", 8), ("scales", "u1", 8)],
    codes=86,
    zero=43,
    group=16,
)


@IQ2_S.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    high = (blocks["high_bits"][:, :, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 32)
    signed = points("IQ2_S")[blocks["points"] | high.astype(np.uint16) << 8] * grid_codes.signs(blocks["signs"])
    return (nibble_scales(blocks)[:, :, None] * signed.reshape(-1, 16, 16)).reshape(-1, 256)


@IQ2_S.scales
def build_scales(simd):
    return build_nibble_scales(simd, 74)


@IQ2_S.kernel
def build(simd):
    codes, scales_of = grid_codes.build_signed(simd, "IQ2_S", 43), build_scales(simd)

    @simd.register_jitable
    def four(address, high):
        """Indices of four points; bits 0-7 of `high` are their upper bits."""
        return (
            simd.load_u8(address) | high << 8 & 768,
            simd.load_u8(address + 1) | high << 6 & 768,
            simd.load_u8(address + 2) | high << 4 & 768,
            simd.load_u8(address + 3) | high << 2 & 768,
        )

    def strip(unit, part):
        a, high = unit + 2 + 8 * part, unit + 66 + 2 * part
        indices = four(a, simd.load_u8(high)) + four(a + 4, simd.load_u8(high + 1))
        scales, zeros = scales_of(unit)
        return codes(indices, simd.load_i64(unit + 34 + 8 * part)), simd.quarter_of(scales, part), zeros

    return strip
