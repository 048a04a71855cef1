"""I8, I16, I32, I64 and F64: plain little-endian numbers, weight = value. Files carry them as small data beside the matrices; there are no kernels."""

from __future__ import annotations

import numpy as np

from . import FLOAT, Format

I8, I16, I32, I64, F64 = (
    Format(name, weights=1, layout=[("value", kind)], codes=FLOAT) for name, kind in (("I8", "i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8"), ("F64", "<f8"))
)


@I8.reference
@I16.reference
@I32.reference
@I64.reference
@F64.reference
def dequantize(blocks: np.ndarray) -> np.ndarray:
    return blocks["value"].astype(np.float32)[:, None]
