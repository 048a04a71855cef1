"""IQ2_XXS: 256 weights in 66 bytes, 8 groups of 32. weight = scale * (scales[g] + 1/2) / 4 * sign * magnitude.

Each group has 8 bytes: four bytes that number points of the grid, eight magnitudes each, then four fields of seven signs (see grid_codes), lowest first, and in the
highest four bits its scale.
"""

from __future__ import annotations

import numpy as np

from . import Format, grid_codes
from .grids import points

IQ2_XXS = Format("IQ2_XXS", weights=256, layout=[("scale", "<f2"), ("groups", [("points", "u1", 4), ("signs", "<u4")], 8)], codes=86, zero=43)


@IQ2_XXS.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    words = blocks["groups"]["signs"]
    sevens = (words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127).astype(np.uint8)
    scale = blocks["scale"].astype(np.float32)[:, None] * ((words >> 28).astype(np.float32) + 0.5) / 4
    signed = points("IQ2_XXS")[blocks["groups"]["points"]] * grid_codes.signs(grid_codes.with_eighth(sevens))
    return (scale[:, :, None, None] * signed).reshape(-1, 256)


@IQ2_XXS.scales
def build_scales(simd):
    @simd.register_jitable
    def scales(block):
        fields = simd.shift_right(simd.gather_u8(block + 9, 8), 4)  # the highest byte of each group
        doubled = simd.to_f32(simd.add(simd.add(fields, fields), simd.splat_i32x16(1)))
        return simd.low_f32x8(simd.mul(doubled, simd.splat_f32x16(simd.load_f16(block) * np.float32(1 / 8)))), simd.zero_f32x8()

    return scales


@IQ2_XXS.kernel
def build(simd):
    codes, eighths, four_sevens = grid_codes.build_signed(simd, "IQ2_XXS", 43), grid_codes.build_with_eighth(simd), grid_codes.build_four_sevens(simd)
    scales_of = build_scales(simd)

    def strip(unit, part):
        a = unit + 2 + 16 * part
        b = a + 8
        first = (simd.load_u8(a), simd.load_u8(a + 1), simd.load_u8(a + 2), simd.load_u8(a + 3))
        second = (simd.load_u8(b), simd.load_u8(b + 1), simd.load_u8(b + 2), simd.load_u8(b + 3))
        signs = eighths(four_sevens(simd.load_u32(a + 4)) | four_sevens(simd.load_u32(b + 4)) << 32)
        scales, _ = scales_of(unit)
        return codes(first + second, signs), simd.halves(simd.lane(scales, 2 * part), simd.lane(scales, 2 * part + 1)), simd.zero_f32x16()

    return strip
