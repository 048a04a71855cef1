"""NVFP4: 64 weights in 36 bytes, 4 groups of 16. weight = scales[g] / 2 * VALUES[code], VALUES of MXFP4.

A scale is an unsigned float of 4 bits of exponent (bias 7) and 3 of mantissa in bits 0-6; bit 7 means nothing, but the
byte 127 stands for 0. Group g has 8 bytes of codes, low nibbles first.
"""

from __future__ import annotations

import numpy as np

from . import SIGNED, Format
from .mxfp4 import VALUES

NVFP4 = Format("NVFP4", weights=64, layout=[("scales", "u1", 4), ("codes", "u1", (4, 8))], codes=SIGNED, group=16)


@NVFP4.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    field = blocks["scales"] & 127
    exponent, mantissa = field.astype(np.int32) >> 3, (field & 7).astype(np.float32) / 8
    scale = np.where(exponent == 0, np.ldexp(mantissa, -7), np.ldexp(1 + mantissa, exponent - 8))
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=2)
    weights = np.where(blocks["scales"] == 127, 0, scale).astype(np.float32)[:, :, None] * np.array(VALUES, np.float32)[codes]
    return weights.reshape(-1, 64)


def build_scale_of(simd):
    """scale_of(field): bytes in i32x16 -> what they mean in f32x16, halved."""

    @simd.register_jitable
    def scale_of(field):
        field = simd.select_equal(field, simd.splat_i32x16(127), simd.zero_i32x16(), simd.and_constant(field, 127))
        # Its bits in place are an IEEE float 2^120 times too small, subnormals included; the halving makes that 2^119.
        return simd.mul(simd.f32_of_bits(simd.shift_left(field, 20)), simd.splat_f32x16(np.float32(2.0**119)))

    return scale_of


@NVFP4.kernel
def build(simd):
    scale_of, values = build_scale_of(simd), simd.constant(simd.u8x16, VALUES)
    shifts = simd.constant(simd.i32x16, [8 * (i // 4) for i in range(16)])
    each_twice = simd.shuffle(simd.u8x32, simd.u8x64, [8 * (i // 16) + i % 8 for i in range(64)])
    nibble_shifts = simd.constant(simd.i32x16, [i // 2 % 2 * 4 for i in range(16)])

    def strip(unit, part):
        pairs = simd.as_i32x16(each_twice(simd.load_u8x32(unit + 4)))
        codes = simd.and_constant(simd.as_u8x64(simd.shift_right_each(pairs, nibble_shifts())), 15)
        scale = scale_of(simd.and_constant(simd.shift_right_each(simd.broadcast_i32(unit), shifts()), 255))
        return simd.lookup16(values(), codes), scale, simd.zero_f32x16()

    return strip


@NVFP4.scales
def build_scales(simd):
    scale_of = build_scale_of(simd)

    def scales(address):
        first = simd.load_u32(address) | simd.load_u32(address + 36) << 32
        second = simd.load_u32(address + 72) | simd.load_u32(address + 108) << 32
        return scale_of(simd.zero_extend(simd.bytes_of(first, second))), simd.zero_f32x16()

    return scales
