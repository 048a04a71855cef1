"""What the types of `grids` share: signs and shifts that a grid's points get.

IQ2 and IQ3 keep magnitudes in a grid and signs apart, one bit a weight, 1 is negative. Some store only seven signs of each eight: a point of the lattice E8 has an even
number of negative coordinates, so the eighth follows. IQ1 has a grid of -1, 0 and 1 and moves whole groups by 1/8 up or down.

Codes are unsigned, with zero in the middle: products of signed bytes cost AVX2 and AVX-512 two operations more than those of unsigned ones.
"""

from __future__ import annotations

import numpy as np

from .grids import points


def signs(bits: np.ndarray) -> np.ndarray:
    """u1[...] -> float32[..., 8]: -1 where the bit is set, lowest first."""
    return 1 - 2 * np.unpackbits(bits[..., None], axis=-1, bitorder="little").astype(np.float32)


def with_eighth(sevens: np.ndarray) -> np.ndarray:
    """Seven signs of eight, u1[...] below 128 -> u1[...] with bit 7 such that the number of set bits is even."""
    parity = sevens ^ sevens >> 4
    parity ^= parity >> 2
    return sevens | (parity ^ parity >> 1) << 7


def build_signed(simd, name: str, zero: int):
    """codes(indices, signs): points of a grid, signed by the integer's 64 bits, plus zero."""
    grid, zeros = simd.table(points(name)), simd.constant(simd.u8x64, [zero] * 64)

    @simd.register_jitable
    def codes(indices, signs):
        negative = simd.join_u8x32(simd.mask_of_bits(signs), simd.mask_of_bits(signs >> 32))
        return simd.add(simd.xor(grid(indices), negative), simd.sub(zeros(), negative))  # -x is ~x + 1, and -negative is 1 or 0

    return codes


def build_with_eighth(simd):
    """eighths(sevens): with_eighth for the eight bytes of an integer."""

    @simd.register_jitable
    def eighths(sevens):
        parity = sevens ^ sevens >> 4  # what comes in from a neighbour byte never reaches bit 0
        parity ^= parity >> 2
        return sevens | ((parity ^ parity >> 1) & 0x0101010101010101) << 7

    return eighths


def build_four_sevens(simd):
    """four_sevens(word): four fields of seven bits, lowest first, in a byte each."""

    @simd.register_jitable
    def four_sevens(word):
        return word & 0x7F | (word & 0x3F80) << 1 | (word & 0x1FC000) << 2 | (word & 0xFE00000) << 3

    return four_sevens


def build_shifted(simd, down_bits):
    """codes(indices, word): 8 * (points of IQ1's grid) + 9, plus 1 or, where the word at that address has bit down_bits[i // 4] set, minus 1 for code i."""
    grid = simd.table(8 * points("IQ1") + 10)
    bits = simd.constant(simd.i32x16, [1 << bit if bit < 31 else -(1 << 31) for bit in down_bits])
    twos = simd.constant(simd.i32x16, [0x02020202] * 16)

    @simd.register_jitable
    def codes(indices, word):
        up = simd.select_equal(simd.and_(simd.broadcast_i32(word), bits()), simd.zero_i32x16(), simd.zero_i32x16(), twos())
        return simd.sub(grid(indices), simd.as_u8x64(up))

    return codes
