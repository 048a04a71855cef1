"""Q8_0: 32 weights in 34 bytes. weight = scale * code, code a signed byte.

Quantizers write -127..127. A file that holds -128 all the same is read right by `dequantize`; the AVX2 product may then be off, no worse.
"""

from __future__ import annotations

import numpy as np

from . import SIGNED, Format

Q8_0 = Format("Q8_0", weights=32, layout=[("scale", "<f2"), ("codes", "i1", 32)], codes=SIGNED)


@Q8_0.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    return blocks["scale"].astype(np.float32)[:, None] * blocks["codes"]


@Q8_0.kernel
def build(simd):
    def strip(unit, part):
        other = unit + 34
        codes = simd.join_u8x32(simd.load_u8x32(unit + 2), simd.load_u8x32(other + 2))
        return codes, simd.halves(simd.load_f16(unit), simd.load_f16(other)), simd.zero_f32x16()

    return strip


@Q8_0.scales
def build_scales(simd):
    def scales(address):
        return simd.gather_f16(address, 34), simd.zero_f32x8()

    return scales
