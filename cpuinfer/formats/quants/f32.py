"""F32: plain IEEE floats of 4 bytes, little-endian. weight = value."""

from __future__ import annotations

import numpy as np

from . import FLOAT, Format

F32 = Format("F32", weights=1, layout=[("value", "<f4")], codes=FLOAT)


@F32.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    return blocks["value"][:, None]


@F32.kernel
def build(simd):
    def strip(unit, part):
        return simd.load_f32x16(unit)

    return strip
