"""Hyperparameters of a decoder, read from GGUF metadata and checked. What differs between layers is a tuple with one entry per layer."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GGUFError, UnsupportedModel
from ..formats.gguf import GGUFFile
from ..program.builder import RMS
from .rope import Rope, original_context, read_rope

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
    those of keys. residual_scale: of what each block adds. logit_scale: of the logits. original_context: with LongRoPE, the longest context for its short factors, else 0.
    gated: feed-forwards multiply by a gate.
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
    original_context: int = 0
    gated: bool = True


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

    def per_layer(self, name: str, n_layers: int, default: Any = ..., low: int = 1) -> tuple[int, ...]:
        """A whole number (at least `low`) for all layers, or an array with one for each; the only place that reads arrays per layer."""
        value = self.get(name, (int, bool, np.ndarray), default)
        whole = not isinstance(value, np.ndarray) or value.dtype.kind in "biu"
        values = tuple(int(v) for v in value) if whole and isinstance(value, np.ndarray) else (value,) if whole else ()
        if len(values) == 1:
            values *= n_layers
        # Files with draft layers count these too.
        if len(values) not in (n_layers, self.block_count()) or not all(low <= v < 1 << 31 for v in values):
            raise GGUFError(f"{self.file.path}: metadata {self.prefix}.{name} must be whole numbers from {low} on, one or {n_layers}, a layer each; it is {str(value)[:60]}")
        return values[:n_layers]

    def block_count(self) -> int:
        """Layers in the file, those for drafts included."""
        return self.count("block_count", maximum=MAXIMUM_LAYERS)

    def n_layers(self) -> int:
        """Layers of the model: the last ones may only make drafts."""
        drafts = self.get("nextn_predict_layers", int, 0)
        if not 0 <= drafts < self.block_count():
            raise GGUFError(f"{self.file.path}: metadata {self.prefix}.nextn_predict_layers is {drafts} of {self.block_count()} layers; the file is damaged")
        return self.block_count() - drafts

    def window(self, default: int | None = None) -> int | None:
        """attention.sliding_window; None where it is 0 or absent."""
        value = self.get("attention.sliding_window", int, default)
        if value is not None and not 0 <= value < 1 << 31:
            raise GGUFError(f"{self.file.path}: metadata {self.prefix}.attention.sliding_window is {value}; the file is damaged")
        return value or None

    def irrelevant(self, pattern: str) -> None:
        """Keys that mean nothing beside what others say count as read."""
        self.file.keys_read |= {key for key in self.file.metadata if re.fullmatch(re.escape(self.prefix) + r"\." + pattern, key)}

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
    n_layers, dim = keys.n_layers(), keys.count("embedding_length")
    n_heads = keys.per_layer("attention.head_count", n_layers)
    key_dim = keys.count("attention.key_length", max(1, dim // n_heads[0]))
    trained = keys.count("context_length")
    original = 0 if rope_style is None else original_context(keys)
    rope = None if rope_style is None else read_rope(keys, key_dim, rope_style, context_length)
    if rope is None:
        keys.irrelevant(r"rope\..*")
    fields: dict[str, Any] = {
        "n_layers": n_layers,
        "dim": dim,
        "n_heads": n_heads,
        "n_kv_heads": keys.per_layer("attention.head_count_kv", n_layers, n_heads[0]),
        "key_dim": key_dim,
        "value_dim": keys.count("attention.value_length", key_dim),
        "ffn_dim": keys.per_layer("feed_forward_length", n_layers, 4 * dim),
        "vocab_size": vocabulary_size(file),
        "context_length": original if original and context_length <= original else trained,
        "norm_eps": norm_eps(keys, changes.get("norm_kind", RMS)),
        "activation": activation,
        "ropes": (rope,) * n_layers,
        "windows": (None,) * n_layers,
        "original_context": original,
    }
    if keys.get("expert_count", int, 0):
        fields["experts"] = read_experts(keys)
    else:
        keys.irrelevant("expert_.*")
    base = Hyperparameters(**fields)
    return Hyperparameters(**fields | {name: value(keys, base) if callable(value) else value for name, value in changes.items()})


def norm_eps(keys: Keys, kind: int) -> float:
    """The epsilon of the architecture's kind of norm; some files name it by the other kind."""
    own, other = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")[:: 1 if kind == RMS else -1]
    return keys.real(own, None) or keys.real(other, 1e-5)


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
        keys.count("expert_feed_forward_length", None) or keys.per_layer("feed_forward_length", keys.n_layers())[-1],
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
        window, name = keys.window(length), "attention.sliding_window_pattern"
        if isinstance(keys.get(name, (int, bool, np.ndarray), period), np.ndarray):
            local = keys.per_layer(name, h.n_layers, low=0)
        else:
            every = keys.count(name, period)
            local = tuple(int(i % every < every - 1) for i in range(h.n_layers))
        return tuple(window if here else None for here in local)

    return windows
