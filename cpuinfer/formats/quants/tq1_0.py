"""TQ1_0: 256 weights in 54 bytes. weight = scale * (code - 1), code in 0..2, five codes a byte.

A byte is a fraction of 256 whose first digits in base 3 are codes: digit n of byte b is 3 * (b * 3^n mod 256) >> 8. Weights in order: digit
0 of the first 32 bytes, then digit 1 of them, up to digit 4; digits 0-4 of the next 16 bytes likewise; digits 0-3 of the last 4.
"""

from __future__ import annotations

import numpy as np

from . import Format

TQ1_0 = Format("TQ1_0", weights=256, layout=[("first", "u1", 32), ("second", "u1", 16), ("third", "u1", 4), ("scale", "<f2")], codes=2, zero=1)
POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


@TQ1_0.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    shifted = [blocks[name][:, None, :] * POWERS[:digits, None] for name, digits in (("first", 5), ("second", 5), ("third", 4))]
    codes = np.concatenate([part.reshape(len(blocks), -1) for part in shifted], axis=1).astype(np.uint16) * 3 >> 8
    return blocks["scale"].astype(np.float32)[:, None] * (codes.astype(np.float32) - 1)


@TQ1_0.kernel
def build(simd):
    def powers(*runs):
        return simd.constant(simd.u8x64, [power for power, count in runs for _ in range(count)])

    powers_0, powers_1 = powers((1, 32), (3, 32)), powers((9, 32), (27, 32))
    powers_2, powers_3 = powers((81, 32), (1, 16), (3, 16)), powers((9, 16), (27, 16), (81, 16), (1, 4), (3, 4), (9, 4), (27, 4))
    low_16 = simd.shuffle(simd.u8x64, simd.u8x16, range(16))
    second_and_third = simd.shuffle(simd.u8x16, simd.u8x64, [*range(16)] * 3 + [*range(16, 32)], operands=2)
    zeros, ones = simd.constant(simd.u8x64, [0] * 64), simd.constant(simd.u8x64, [1] * 64)
    signs = simd.constant(simd.u8x64, [128] * 64)
    one_from, two_from = (simd.constant(simd.u8x64, [limit ^ 128] * 64) for limit in (86, 171))  # 3 * 86 >= 256, 3 * 171 >= 512

    @simd.register_jitable
    def first_digit(fraction):
        biased = simd.xor(fraction, signs())  # so that a signed comparison orders unsigned bytes
        one = simd.select_less(biased, one_from(), zeros(), ones())
        return simd.add(one, simd.select_less(biased, two_from(), zeros(), ones()))

    def strip(unit, part):
        if part == 0:
            fraction = simd.mul(simd.twice_u8x32(simd.load_u8x32(unit)), powers_0())
        elif part == 1:
            fraction = simd.mul(simd.twice_u8x32(simd.load_u8x32(unit)), powers_1())
        elif part == 2:
            bytes_ = simd.join_u8x32(simd.load_u8x32(unit), simd.twice_u8x16(simd.load_u8x16(unit + 32)))
            fraction = simd.mul(bytes_, powers_2())
        else:
            bytes_ = second_and_third(simd.load_u8x16(unit + 32), low_16(simd.broadcast_4bytes(unit + 48)))
            fraction = simd.mul(bytes_, powers_3())
        return first_digit(fraction), simd.splat_f32x16(simd.load_f16(unit + 52)), simd.zero_f32x16()

    return strip


@TQ1_0.scales
def build_scales(simd):
    def scales(block):
        return simd.splat_f32x8(simd.load_f16(block + 52)), simd.zero_f32x8()

    return scales
