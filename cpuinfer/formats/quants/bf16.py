"""BF16: the upper 2 bytes of an IEEE float, little-endian. weight = float whose bits are value << 16."""

from __future__ import annotations

import numpy as np

from . import FLOAT, Format

BF16 = Format("BF16", weights=1, layout=[("bits", "<u2")], codes=FLOAT)


@BF16.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    return (blocks["bits"].astype(np.uint32) << 16).view(np.float32)[:, None]


@BF16.kernel
def build(simd):
    def strip(unit, part):
        return simd.load_bf16x16(unit)

    return strip
