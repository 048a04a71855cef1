"""Hyperparameters of a decoder, read from GGUF metadata and checked. What differs between layers is a tuple with one entry per layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GGUFError, UnsupportedModel
from ..formats.gguf import GGUFFile
from ..program.builder import RMS
from .rope import Rope, read_rope

MAXIMUM_LAYERS = 4096


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each token uses n_used of n_experts feed-forwards of width ffn_dim. The rest as in Builder.route."""

    n_experts: int
    n_used: int
    ffn_dim: int
    sigmoid: bool = False
    normalize: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class Hyperparameters:
    """Sizes are counts of elements. windows: attention window per layer, None for the whole context. Softcaps of 0 are absent.

    norm_kind: builder.RMS or LAYER, of all norms. whole_row_qk_norm: query and key norms run over all heads of a row at once. alibi: largest bias of a key's distance, 0 for
    none. rope_before_norm: queries and keys are rotated, then normed. query_ropes: where they differ from
    those of keys. residual_scale: of what each block adds. logit_scale: of the logits.
    """

    n_layers: int
    dim: int
    n_heads: tuple[int, ...]
    n_kv_heads: tuple[int, ...]
    key_dim: int
    value_dim: int
    ffn_dim: tuple[int, ...]
    vocab_size: int
    context_length: int
    norm_eps: float
    activation: str
    ropes: tuple[Rope | None, ...]
    windows: tuple[int | None, ...]
    attention_scale: float | None = None
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    norm_kind: int = RMS
    whole_row_qk_norm: bool = False
    rope_before_norm: bool = False
    query_ropes: tuple[Rope | None, ...] | None = None
    alibi: float = 0.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    experts: Experts | None = None


class Keys:
    """Metadata under an architecture's prefix, with checks that name the key."""

    def __init__(self, file: GGUFFile):
        self.file = file
        self.prefix = file.get("general.architecture", str)

    def get(self, name: str, kind: Any, default: Any = ...) -> Any:
        return self.file.get(f"{self.prefix}.{name}", kind, default)

    def count(self, name: str, default: Any = ..., maximum: int = 1 << 31) -> int:
        """A positive integer."""
        value = self.get(name, int, default)
        if value is not None and not 0 < value <= maximum:
            raise GGUFError(f"{self.file.path}: metadata {self.prefix}.{name} is {value}, not between 1 and {maximum}; the file is damaged")
        return value

    def real(self, name: str, default: Any = ...) -> float:
        value = self.get(name, float, default)
        if value is not None and not math.isfinite(value):
            raise GGUFError(f"{self.file.path}: metadata {self.prefix}.{name} is {value}; the file is damaged")
        return value

    def per_layer(self, name: str, n_layers: int, default: Any = ...) -> tuple[int, ...]:
        """A positive integer for all layers, or an array with one for each."""
        value = self.get(name, (int, np.ndarray), default)
        values = (value,) * n_layers if isinstance(value, int) else tuple(int(v) for v in value)
        if len(values) != n_layers or not all(0 < v < 1 << 31 for v in values):
            raise GGUFError(f"{self.file.path}: metadata {self.prefix}.{name} must be positive, one value or {n_layers}; it is {values[:8]}")
        return values

    def require(self, *names: str) -> None:
        """All of these keys, or an error that lists every missing one."""
        missing = [f"{self.prefix}.{n}" for n in names if f"{self.prefix}.{n}" not in self.file.metadata]
        if missing:
            raise GGUFError(f"{self.file.path}: the metadata lacks {', '.join(missing)}; the file is incomplete, download or convert it again")


def read(file: GGUFFile, context_length: int, rope_style: int | None, activation: str = "silu", **changes: Any) -> Hyperparameters:
    """The usual keys of a decoder. context_length 0 means the model's own, rope_style None that positions are not rotated.

    changes replace fields (functions are called with (keys, hyperparameters))."""
    keys = Keys(file)
    keys.require("block_count", "embedding_length", "attention.head_count", "context_length")
    n_layers, dim = keys.count("block_count", maximum=MAXIMUM_LAYERS), keys.count("embedding_length")
    n_heads = keys.per_layer("attention.head_count", n_layers)
    key_dim = keys.count("attention.key_length", max(1, dim // n_heads[0]))
    trained = keys.count("context_length")
    rope = None if rope_style is None else read_rope(keys, key_dim, rope_style, context_length or trained)
    fields: dict[str, Any] = {
        "n_layers": n_layers,
        "dim": dim,
        "n_heads": n_heads,
        "n_kv_heads": keys.per_layer("attention.head_count_kv", n_layers, n_heads[0]),
        "key_dim": key_dim,
        "value_dim": keys.count("attention.value_length", key_dim),
        "ffn_dim": keys.per_layer("feed_forward_length", n_layers, 4 * dim),
        "vocab_size": vocabulary_size(file),
        "context_length": trained,
        "norm_eps": keys.real("attention.layer_norm_rms_epsilon", None) or keys.real("attention.layer_norm_epsilon", 1e-5),
        "activation": activation,
        "ropes": (rope,) * n_layers,
        "windows": (None,) * n_layers,
    }
    if keys.get("expert_count", int, 0):
        fields["experts"] = read_experts(keys)
    base = Hyperparameters(**fields)
    return Hyperparameters(**fields | {name: value(keys, base) if callable(value) else value for name, value in changes.items()})


def read_experts(keys: Keys) -> Experts:
    """Routed experts as the metadata describes them; by default a softmax whose chosen weights sum to one."""
    function = keys.get("expert_gating_func", int, 0)
    if function not in (0, 1, 2, 3):
        raise UnsupportedModel(f"{keys.file.path}: expert gating function {function} is not supported; supported: 1 softmax, 2 sigmoid, 3 softmax over the chosen")
    if keys.get("expert_group_count", int, 1) > 1 and keys.get("expert_group_used_count", int, 1) < keys.get("expert_group_count", int, 1):
        raise UnsupportedModel(f"{keys.file.path}: choosing experts by groups ({keys.prefix}.expert_group_count) is not supported")
    return Experts(
        keys.count("expert_count", maximum=1 << 16),
        keys.count("expert_used_count", maximum=1 << 16),
        keys.count("expert_feed_forward_length", None) or keys.per_layer("feed_forward_length", keys.count("block_count"))[-1],
        sigmoid=function == 2,
        normalize=keys.get("expert_weights_norm", bool, True) or function == 3,
        scale=keys.real("expert_weights_scale", 1.0) or 1.0,
    )


def vocabulary_size(file: GGUFFile) -> int:
    """Rows of the token embedding: at least the tokenizer's length. Files often have more, so that the count is a round one."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise GGUFError(f"{file.path}: tensor token_embd.weight is missing; the file is incomplete")
    rows = embedding.shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and len(tokens) > rows:
        raise GGUFError(f"{file.path}: the tokenizer has {len(tokens)} tokens, but token_embd.weight has only {rows} rows; convert the model again")
    return rows


def window_pattern(period: int, length: int | None = None):  # type: ignore[no-untyped-def]
    """Windows for a field of `read`: all layers but each period-th have the file's sliding window (or `length` where it gives none)."""

    def windows(keys: Keys, h: Hyperparameters) -> tuple[int | None, ...]:
        window = keys.get("attention.sliding_window", int, length)
        every = keys.get("attention.sliding_window_pattern", (int, np.ndarray), period)
        if isinstance(every, np.ndarray):
            return tuple(window if every[i % len(every)] else None for i in range(h.n_layers))
        return tuple(window if i % every < every - 1 else None for i in range(h.n_layers)) if window else (None,) * h.n_layers

    return windows
