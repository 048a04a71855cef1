"""The 12 bytes of Q4_K and Q5_K that hold 8 scales and 8 minimums of 6 bits each.

bytes 0-3    bits 0-5: scales 0-3         bits 6-7: upper bits of scales 4-7
bytes 4-7    bits 0-5: minimums 0-3       bits 6-7: upper bits of minimums 4-7
bytes 8-11   low nibbles: lower bits of scales 4-7; high nibbles: lower bits of minimums 4-7
"""

from __future__ import annotations

import numpy as np


def unpack(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u1[n, 12] -> scales u1[n, 8], minimums u1[n, 8]."""
    scales, minimums, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    return (
        np.concatenate([scales & 63, rest & 15 | scales >> 6 << 4], axis=1),
        np.concatenate([minimums & 63, rest >> 4 | minimums >> 6 << 4], axis=1),
    )


def build_scales(simd):
    """scales_and_minimums(block) -> f32x8, f32x8: what the block's 8 groups multiply their codes with, and what they add.

    The block starts with scale and minimum as halves, then the 12 bytes. Four fields at a time in general registers: the vector units are
    busier.
    """

    @simd.register_jitable
    def scales_and_minimums(block):
        low_scales, low_minimums, rest = simd.load_u32(block + 4), simd.load_u32(block + 8), simd.load_u32(block + 12)
        high_scales = (rest & 0x0F0F0F0F) | (low_scales >> 2 & 0x30303030)
        high_minimums = (rest >> 4 & 0x0F0F0F0F) | (low_minimums >> 2 & 0x30303030)
        fields = simd.bytes_of(low_scales & 0x3F3F3F3F | high_scales << 32, low_minimums & 0x3F3F3F3F | high_minimums << 32)
        factors = simd.halves(simd.load_f16(block), -simd.load_f16(block + 2))
        products = simd.mul(simd.to_f32(simd.zero_extend(fields)), factors)
        return simd.low_f32x8(products), simd.high_f32x8(products)

    return scales_and_minimums
