"""F16: IEEE halves of 2 bytes, little-endian. weight = value."""

from __future__ import annotations

import numpy as np

from . import FLOAT, Format

F16 = Format("F16", weights=1, layout=[("value", "<f2")], codes=FLOAT)


@F16.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    return blocks["value"].astype(np.float32)[:, None]


@F16.kernel
def build(simd):
    def strip(unit, part):
        return simd.load_f16x16(unit)

    return strip
