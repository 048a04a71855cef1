"""Rotary position embedding and its ways of reaching longer contexts, as GGUF files describe them.

Pair i of a head is rotated by position * frequency[i], frequency[i] = base^(-2i/dim) (Su et al. 2021), then scaled: linear divides all frequencies; a factors tensor (Llama 3,
LongRoPE) divides each; YaRN (Peng et al. 2023) divides low frequencies, keeps high ones and blends between. `magnitude` multiplies cosine and sine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GGUFError, UnsupportedModel

INTERLEAVED, HALVES = 0, 1  # pairs (0, 1), (2, 3) ... or (0, dim/2), (1, dim/2 + 1) ...


@dataclass(frozen=True, eq=False)
class Rope:
    """dim: rotated elements of a head. frequencies: float64[dim/2], radians per position. growth: with each `span` of positions the magnitude grows by its logarithm."""

    dim: int
    style: int
    frequencies: np.ndarray
    magnitude: float = 1.0
    growth: float = 0.0
    span: int = 1


def make_rope(dim: int, style: int, base: float, scale: float = 1.0, factors: np.ndarray | None = None, magnitude: float = 1.0) -> Rope:
    """frequencies = base^(-2i/dim) / factors * scale"""
    frequencies = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim) * scale
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    return Rope(dim, style, frequencies, magnitude)


def read_rope(keys: Any, key_dim: int, style: int, context_length: int, base_key: str = "rope.freq_base", scaled: bool = True, base: float = 10000.0) -> Rope:
    """The rope that a file's metadata and factor tensors describe. scaled=False: without its scaling (local layers)."""
    dim = keys.count("rope.dimension_count", key_dim)
    base = keys.real(base_key, base)
    if dim > key_dim or dim % 2 or base <= 0:
        raise GGUFError(f"{keys.file.path}: rope of {dim} dimensions with base {base} cannot be applied to heads of {key_dim}; the file is damaged")
    if not scaled:
        return make_rope(dim, style, base)
    kind = keys.get("rope.scaling.type", str, "linear")  # a file that names no kind but a factor means this one
    legacy = keys.real("rope.scale_linear", 0.0)
    factor = keys.real("rope.scaling.factor", 0.0) or legacy or 1.0
    attention_factor = keys.real("rope.scaling.attn_factor", 1.0)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedModel(f"{keys.file.path}: rope scaling {kind!r} is not supported; supported: none, linear, yarn, longrope")
    if factor <= 0:
        raise GGUFError(f"{keys.file.path}: rope scaling factor is {factor}; the file is damaged")
    if kind == "yarn":
        return yarn(keys, dim, style, base, factor, attention_factor)
    keys.irrelevant(r"rope\.scaling\.(yarn_.*|original_context_length)")
    scale = 1.0 if kind == "none" else 1 / factor
    return make_rope(dim, style, base, scale, factors_tensor(keys, dim, context_length), attention_factor)


SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def original_context(keys: Any) -> int:
    """Of a file with LongRoPE's factors: the longest context for the short ones. 0 where there are none."""
    if LONG not in keys.file.tensors and SHORT not in keys.file.tensors:
        return 0
    return keys.count("rope.scaling.original_context_length", keys.count("context_length"))


def factors_tensor(keys: Any, dim: int, context_length: int) -> np.ndarray | None:
    """rope_freqs, or LongRoPE's factors: the long ones only for a context that is longer than the original one."""
    from ..formats import quants

    tensors = keys.file.tensors
    name = "rope_freqs.weight" if "rope_freqs.weight" in tensors else LONG if context_length > original_context(keys) else SHORT
    tensor = tensors.get(name)
    if tensor is None:
        if LONG in tensors or SHORT in tensors:
            raise GGUFError(f"{keys.file.path}: tensor {name} is missing; the file is incomplete, download or convert it again")
        return None
    if tensor.n_elements != dim // 2:
        raise GGUFError(f"{keys.file.path}: tensor {name} has {tensor.n_elements} elements, {dim // 2} are needed; the file is damaged")
    keys.file.tensors_read |= {"rope_freqs.weight", SHORT, LONG}
    return quants.get(tensor.type.name).dequantize(tensor.data).reshape(-1)


def yarn(keys: Any, dim: int, style: int, base: float, factor: float, attention_factor: float) -> Rope:
    original = keys.get("rope.scaling.original_context_length", int, keys.count("context_length"))
    fast, slow = keys.real("rope.scaling.yarn_beta_fast", 32.0), keys.real("rope.scaling.yarn_beta_slow", 1.0)
    extrapolation = keys.real("rope.scaling.yarn_ext_factor", 1.0)

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0.0, math.floor(dimension_of(fast))), min(dim - 1.0, math.ceil(dimension_of(slow)))
    pairs = np.arange(dim // 2, dtype=np.float64)
    ramp = (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)) * extrapolation
    plain = base ** (-2 * pairs / dim)
    frequencies = plain / factor * (1 - ramp) + plain * ramp
    return Rope(dim, style, frequencies, attention_factor * (1 + 0.1 * math.log(factor) if factor > 1 else 1.0))
