"""Quantized tensor types: one file each, found by discovery. A Format is a layout, a numpy definition and a fast decode for kernels.

Every type reads as weight = scale * (code - zero) + minimum: an 8-bit code, an integer zero of the type, and a scale and minimum that are constant over
groups of 16 or 32 weights. Kernels see 64 weights at a time, a strip:

    @Q4_1.kernel
    def build(simd):                      # simd is kernels.simd; called only where kernels are compiled, so this package imports no numba
        def strip(unit, part):            # unit: address of a unit; part: which 64 weights of it, a constant
            return codes, scale, minimum  # u8x64 in the order of the weights, f32x16, f32x16: lane i belongs to weights 4i..4i+3
        return strip

and, for the drivers of few tokens, which spend much of their time on scales, the scales of the next 256 weights at once:

    @Q4_1.scales
    def build_scales(simd):
        def scales(address):              # of one block of 256 weights, or of eight blocks of 32
            return scale, minimum         # f32x8 where group is 32, f32x16 where it is 16
        return scales

A unit is one block, or two where a block has 32 weights; its strips are parts 0..PARTS-1. A strip reads only inside its unit: beyond may lie the end of the file. A format
without a minimum returns zeros for it (simd.zero_f32x16(), zero_f32x8()). Float types (activations "f32") have strips of 16 weights: `strip(address, 0) -> f32x16`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

import numpy as np

from ...errors import UnsupportedModel
from ..types import GGML_TYPES

SIGNED = -1  # codes are signed bytes -127..127, not -128
FLOAT = 0


class Format:
    """One tensor type.

    name: as GGUF spells it. weights: per block. layout: numpy fields of a block. codes: the largest code (below 128), or SIGNED, or FLOAT for types that are
    not codes. zero: what is subtracted from a code. group: weights that share a scale and minimum, 32 or 16. minimum: whether there is one.
    """

    def __init__(self, name: str, *, weights: int, layout: list, codes: int, zero: int = 0, group: int = 32, minimum: bool = False):
        self.name, self.weights, self.codes, self.zero, self.group, self.minimum = name, weights, codes, zero, group, minimum
        self.dtype = np.dtype(layout)
        self.block_bytes = self.dtype.itemsize
        self.activations = "f32" if codes == FLOAT else "q8"
        self.unit_weights = 16 if codes == FLOAT else max(64, weights)
        self.unit_bytes = self.block_bytes * self.unit_weights // weights
        self._reference: Callable[[np.ndarray], np.ndarray] | None = None
        self._build: Callable | None = None
        self._build_scales: Callable | None = None

    def __str__(self) -> str:
        return self.name

    def reference(self, function: Callable[[np.ndarray], np.ndarray]):
        """Decorator of the definition: structured blocks [n] -> float32 [n, weights]."""
        self._reference = function
        return function

    def kernel(self, build: Callable):
        """Decorator of `build(simd) -> strip`."""
        self._build = build
        return build

    def scales(self, build: Callable):
        """Decorator of `build_scales(simd) -> scales`."""
        self._build_scales = build
        return build

    @property
    def has_kernel(self) -> bool:
        """Whether matrices may have this format. Without kernels it can only be dequantized: plain data as norms and biases are."""
        return self._build is not None

    def dequantize(self, rows: np.ndarray) -> np.ndarray:
        """u1[..., row_bytes] -> float32[..., columns], by the definition."""
        assert self._reference is not None
        blocks = np.ascontiguousarray(rows).reshape(-1).view(self.dtype)
        return self._reference(blocks).astype(np.float32, copy=False).reshape(*rows.shape[:-1], -1)

    def bindings(self) -> dict[str, object]:
        """What a kernel module's placeholders become for this format."""
        from numba import njit

        from ...kernels import simd

        assert self._build is not None
        assert self._build_scales is not None or self.codes == FLOAT, f"{self.name} has no scales of 256 weights"
        return {
            "strip": njit(self._build(simd)),
            "scales_of_256": njit(self._build_scales(simd)) if self._build_scales else None,
            "UNIT_WEIGHTS": self.unit_weights,
            "UNIT_BYTES": self.unit_bytes,
            "BLOCK_WEIGHTS": self.weights,
            "BLOCK_BYTES": self.block_bytes,
            "PARTS": 1 if self.codes == FLOAT else self.unit_weights // 64,
            "GROUP": self.group,
            "ZERO": self.zero,
            "HAS_MINIMUM": self.minimum,
            "LARGEST_CODE": self.codes,
        }


@functools.cache
def _of_module(name: str) -> dict[str, Format]:
    """The formats of one file of this package, by name."""
    found = {value.name: value for value in vars(importlib.import_module(f"{__name__}.{name}")).values() if isinstance(value, Format)}
    known = {t.name: t for t in GGML_TYPES.values()}
    for fmt in found.values():
        assert (known[fmt.name].block_weights, known[fmt.name].block_bytes) == (fmt.weights, fmt.block_bytes), fmt.name
    return found


@functools.cache
def all() -> dict[str, Format]:  # noqa: A001  (formats.quants.all() reads well)
    """Every format by name, those without kernels included."""
    found: dict[str, Format] = {}
    for info in pkgutil.iter_modules(__path__):
        found |= _of_module(info.name)
    return dict(sorted(found.items()))


def matrix_types() -> list[str]:
    """Names of the formats that matrices may have."""
    return [fmt.name for fmt in all().values() if fmt.has_kernel]


@functools.cache
def get(name: str) -> Format:
    """The format of that GGUF type name. UnsupportedModel if there is none."""
    if name.lower() in {info.name for info in pkgutil.iter_modules(__path__)}:  # importing one file instead of all saves 10 ms
        found = _of_module(name.lower())
        if name in found:
            return found[name]
    if name not in all():
        raise UnsupportedModel(f"tensor type {name} is not supported; supported: {', '.join(matrix_types())}")
    return all()[name]


def for_matrix(name: str) -> Format:
    """The format of that name, which must be one that matrices can be multiplied with."""
    fmt = get(name)
    if not fmt.has_kernel:
        raise UnsupportedModel(f"tensor type {name} is supported for norms and biases, not for matrices; supported there: {', '.join(matrix_types())}")
    return fmt
