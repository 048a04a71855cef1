"""Ops and the values they work on. An op's arguments carry the names of its record's fields (kernels/records.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.gguf import TensorInfo

# Which arguments an op writes; all others are read. A matmul that accumulates and the in-place ops read what they write too.
WRITES: dict[str, tuple[str, ...]] = {
    "embedding": ("y",),
    "norm": ("y", "q"),
    "quantize": ("q",),
    "matmul": ("y",),
    "rope_table": ("table",),
    "rope": ("x",),
    "head_norm": ("x",),
    "store_kv": ("cache",),
    "attention": ("y",),
    "activate": ("y", "q"),
    "add": ("y",),
    "softcap": ("x",),
    "route": ("y",),
    "gather": ("y",),
    "combine": ("y",),
    "columns": ("y",),
}
# These split (token, head) items in order among the threads, all in the same way, so one may follow another on the same heads without a barrier.
SPLIT_BY_HEADS = ("head_norm", "rope", "store_kv")


@dataclass(eq=False)
class Buffer:
    """[rows, columns] of f32, or of Q8 activations. per_logit_row: rows are those whose logits are wanted. routing: rows are slots, in groups by expert."""

    name: str
    columns: int
    kind: str = "f32"
    per_logit_row: bool = False
    routing: Routing | None = None

    def __repr__(self) -> str:
        return f"{self.name}[{self.columns}]{':q8' if self.kind == 'q8' else ''}"


@dataclass(eq=False)
class Routing:
    """How tokens were dealt out to experts: kernels/experts.py. slots: the buffer that route writes; groups: i64[2 + EXPERT_COUNTERS, n_experts]."""

    n_experts: int
    n_used: int
    slots: Buffer
    groups: np.ndarray
    products: int = 0  # so far; each has a row counter of its own


@dataclass(frozen=True, eq=False)
class ExpertTensors:
    """The experts' matrices of one product, alike in type and shape; biases: f32[n_experts, rows] or None."""

    tensors: list[TensorInfo]
    biases: np.ndarray | None


@dataclass(frozen=True)
class CacheRef:
    """Keys or values of a layer in the KV cache."""

    part: str  # "keys" or "values"
    layer: int


@dataclass(frozen=True)
class KVLayer:
    """What one layer keeps of a token: n_kv_heads keys of key_dim and values of value_dim."""

    n_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(eq=False)
class Op:
    """One step of a program. args: record field name -> Buffer, TensorInfo, array, CacheRef, number or None."""

    kind: str
    label: str
    args: dict[str, Any]
    variants: tuple[str, ...] = ()
    per_logit_row: bool = False
    sync: bool = True
    routing: Routing | None = None  # the op runs expert by expert

    def writes(self) -> list[Any]:
        """Buffers and caches that this op changes."""
        return [v for name in WRITES[self.kind] if isinstance(v := self.args.get(name), (Buffer, CacheRef))]

    def reads(self) -> list[Any]:
        """Buffers and caches whose old contents this op uses."""
        written = WRITES[self.kind]
        found = [v for name, v in self.args.items() if name not in written and isinstance(v, (Buffer, CacheRef))]
        if self.routing:
            found.append(self.routing.slots)
        if self.kind in ("rope", "head_norm", "softcap") or self.args.get("accumulate"):
            found += self.writes()
        return found

    def replace(self, old: Buffer, new: Buffer) -> None:
        """Use another buffer wherever `old` is used."""
        for name, value in self.args.items():
            if value is old:
                self.args[name] = new

    def __repr__(self) -> str:
        return f"{self.kind}({self.label}: {', '.join(f'{k}={v!r}' for k, v in self.args.items() if isinstance(v, (Buffer, CacheRef)))}){'|' if self.sync else ''}"
