"""IQ3_XXS: 256 weights in 98 bytes, 8 groups of 32. weight = scale * (scales[g] + 1/2) / 2 * sign * magnitude.

Each of 64 bytes numbers a point of the grid, four magnitudes. Then each group has a word of 32 bits: four fields of seven signs (see grid_codes), lowest first, and in the
highest four bits its scale.
"""

from __future__ import annotations

import numpy as np

from . import Format, grid_codes
from .grids import points

IQ3_XXS = Format("IQ3_XXS", weights=256, layout=[("scale", "<f2"), ("points", "u1", (8, 8)), ("signs", "<u4", 8)], codes=124, zero=62)


@IQ3_XXS.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    words = blocks["signs"]
    sevens = (words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127).astype(np.uint8)
    scale = blocks["scale"].astype(np.float32)[:, None] * ((words >> 28).astype(np.float32) + 0.5) / 2
    signed = points("IQ3_XXS")[blocks["points"]].reshape(-1, 8, 4, 8) * grid_codes.signs(grid_codes.with_eighth(sevens))
    return (scale[:, :, None, None] * signed).reshape(-1, 256)


@IQ3_XXS.scales
def build_scales(simd):
    @simd.register_jitable
    def scales(block):
        fields = simd.shift_right(simd.gather_u8(block + 69, 4), 4)  # the highest byte of each word
        doubled = simd.to_f32(simd.add(simd.add(fields, fields), simd.splat_i32x16(1)))
        return simd.low_f32x8(simd.mul(doubled, simd.splat_f32x16(simd.load_f16(block) * np.float32(1 / 4)))), simd.zero_f32x8()

    return scales


@IQ3_XXS.kernel
def build(simd):
    codes, eighths, four_sevens = grid_codes.build_signed(simd, "IQ3_XXS", 62), grid_codes.build_with_eighth(simd), grid_codes.build_four_sevens(simd)
    scales_of = build_scales(simd)

    @simd.register_jitable
    def four(address):
        return simd.load_u8(address), simd.load_u8(address + 1), simd.load_u8(address + 2), simd.load_u8(address + 3)

    def strip(unit, part):
        a, words = unit + 2 + 16 * part, unit + 66 + 8 * part
        signs = eighths(four_sevens(simd.load_u32(words)) | four_sevens(simd.load_u32(words + 4)) << 32)
        scales, _ = scales_of(unit)
        scale = simd.halves(simd.lane(scales, 2 * part), simd.lane(scales, 2 * part + 1))
        return codes(four(a) + four(a + 4) + four(a + 8) + four(a + 12), signs), scale, simd.zero_f32x16()

    return strip
