"""What architectures are written in: one method per operation of the math, each emits an op.

Conventions: a missing tensor is the identity (norm(x, None) is x, an absent bias adds nothing). `linear` takes float values; where the weights' format wants Q8
activations the builder quantizes them once, and the patterns of fuse.py move that into the producer. Values are Buffers of all tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GGUFError, UnsupportedModel
from ..formats import quants
from ..formats.gguf import GGUFFile, TensorInfo
from ..kernels.records import ACTIVATIONS, EXPERT_COUNTERS, round_up
from .fuse import fuse
from .ops import Buffer, CacheRef, ExpertTensors, KVLayer, Op, Routing
from .program import Program

RMS, LAYER = 0, 1
INTERLEAVED, HALVES = 0, 1


@dataclass(frozen=True)
class Weight:
    """A named weight and its bias, either of which may be absent from the file."""

    name: str
    tensor: TensorInfo | None
    bias: TensorInfo | None

    def __bool__(self) -> bool:
        return self.tensor is not None

    def rows(self, start: int, stop: int) -> Weight:
        """A view of some rows: fused tensors are split without a copy."""
        if self.tensor is None:
            return self
        t = self.tensor
        part = TensorInfo(f"{t.name}[{start}:{stop}]", t.type, (stop - start, t.shape[-1]), t.data[start:stop])
        bias = self.bias
        if bias is not None:
            bias = TensorInfo(f"{bias.name}[{start}:{stop}]", bias.type, (stop - start,), bias.data.reshape(bias.shape[0], -1)[start:stop].reshape(1, -1))
        return Weight(self.name, part, bias)

    def as_matrix(self) -> Weight:
        """A vector as a matrix of one row."""
        t = self.tensor
        if t is None or len(t.shape) != 1:
            return self
        return Weight(self.name, TensorInfo(t.name, t.type, (1, t.shape[0]), t.data.reshape(1, -1)), self.bias)


class Weights:
    """Tensors under a prefix by attribute: layer.attn_q is Weight(blk.3.attn_q.weight, blk.3.attn_q.bias). The file remembers what was asked for (`tensors_read`)."""

    def __init__(self, file: GGUFFile, prefix: str = ""):
        self._file, self._prefix = file, prefix

    def layer(self, i: int) -> Weights:
        return Weights(self._file, f"blk.{i}.")

    def __getattr__(self, name: str) -> Weight:
        if name.startswith("_"):
            raise AttributeError(name)
        full = self._prefix + name
        found = [self._file.tensors.get(f"{full}.{part}") for part in ("weight", "bias")]
        self._file.tensors_read |= {t.name for t in found if t}
        return Weight(f"{full}.weight", *found)

    def tensor(self, name: str) -> TensorInfo | None:
        """Any tensor by its full name under the prefix, such as ffn_gate_inp.scale."""
        found = self._file.tensors.get(self._prefix + name)
        if found:
            self._file.tensors_read.add(found.name)
        return found


def alibi_slopes(n_heads: int, largest_bias: float) -> np.ndarray:
    """f32[n_heads]: a geometric series over the largest power of two of heads, the others in between (Press et al. 2021)."""
    whole = 1 << (n_heads.bit_length() - 1)
    series = [2 ** (-largest_bias * (h + 1) / whole) for h in range(whole)]
    series += [2 ** (-largest_bias / 2 * (2 * h + 1) / whole) for h in range(n_heads - whole)]
    return np.array(series, np.float32)


class Builder:
    """Collects the ops of one model. n_vocab, kv_layers and logits become the Program's."""

    def __init__(self, file: GGUFFile, architecture: str):
        self.file, self.architecture = file, architecture
        self.ops: list[Op] = []
        self.kv_layers: list[KVLayer] = []
        self.scope = ""
        self._quantized: dict[Buffer, Buffer] = {}
        self._tables: dict[int, Buffer] = {}
        self._vectors: dict[str, np.ndarray] = {}
        self._groups: dict[int, np.ndarray] = {}

    # ---- helpers -------------------------------------------------------------------------------------------------------------------

    def _emit(self, kind: str, label: str, args: dict[str, Any], variants: tuple[str, ...] = (), like: Buffer | None = None) -> None:
        """like: the buffer whose rows the op runs over, where they are not the batch's tokens."""
        self.ops.append(Op(kind, self.scope + label, args, variants, like is not None and like.per_logit_row, routing=like.routing if like else None))

    def _buffer(self, label: str, columns: int, kind: str = "f32", like: Buffer | None = None) -> Buffer:
        return Buffer(self.scope + label, columns, kind, like.per_logit_row if like else False, like.routing if like else None)

    def format_of(self, tensor: TensorInfo) -> quants.Format:
        """The format of a matrix."""
        try:
            return quants.for_matrix(tensor.type.name)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{self.file.path}: tensor {tensor.name}: {error}") from None

    def vector(self, tensor: TensorInfo | None, length: int) -> np.ndarray | None:
        """A small tensor (norm weight, bias) as f32, zero-padded to whole vectors."""
        if tensor is None:
            return None
        if tensor.n_elements != length:
            raise GGUFError(f"{self.file.path}: tensor {tensor.name} has {tensor.n_elements} elements, {length} are needed; the file is damaged or of another variant")
        if tensor.name not in self._vectors:
            padded = np.zeros(round_up(length, 64), np.float32)
            padded[:length] = quants.get(tensor.type.name).dequantize(tensor.data).reshape(-1)
            self._vectors[tensor.name] = padded
        return self._vectors[tensor.name]

    def matrix(self, weight: Weight, columns: int, rows: int | None = None) -> TensorInfo:
        """The weight's tensor, present and of this shape."""
        t = weight.tensor
        if t is None:
            raise GGUFError(f"{self.file.path}: tensor {weight.name} is missing; the file is incomplete or of another variant of {self.architecture}")
        if len(t.shape) != 2 or t.shape[1] != columns or (rows is not None and t.shape[0] != rows):
            wanted = f"({'any' if rows is None else rows}, {columns})"
            raise GGUFError(f"{self.file.path}: tensor {t.name} has shape {t.shape}, {wanted} is needed; the file is damaged or of another variant")
        return t

    # ---- operations ----------------------------------------------------------------------------------------------------------------

    def embedding(self, weight: Weight, columns: int, scale: float = 1.0, by_position: bool = False) -> Buffer:
        """The rows of the tokens (or of their positions) of an embedding, times scale."""
        tensor = self.matrix(weight, columns)
        label = weight.name.removesuffix(".weight")
        y = self._buffer(label, columns)
        self._emit("embedding", label, {"weights": tensor, "y": y, "by_position": int(by_position), "scale": scale}, (self.format_of(tensor).name,))
        return y

    def norm(self, x: Buffer, weight: Weight, eps: float, kind: int = RMS, gather: bool = False, always: bool = False) -> Buffer:
        """RMS or layer norm of rows; the identity if the file has no such weight, unless always. gather: only the rows whose logits are wanted."""
        if not (weight or gather or always):
            return x
        y = Buffer(self.scope + "norm", x.columns, "f32", per_logit_row=gather)
        vectors = {"weight": self.vector(weight.tensor, x.columns), "bias": self.vector(weight.bias, x.columns)}
        label = weight.name.removesuffix(".weight").removeprefix(self.scope)
        args = {"x": x, "columns": x.columns, "y": y, "q": None, "kind": kind, "gather": int(gather), "residual": None, "eps": eps, **vectors}
        self._emit("norm", label, args, like=y)
        return y

    def _activations(self, x: Buffer, kind: str) -> Buffer:
        if kind == "f32":
            return x
        if x not in self._quantized:
            q = self._buffer("q8", x.columns, "q8", like=x)
            self._emit("quantize", f"{x.name}.q8".removeprefix(self.scope), {"x": x, "columns": x.columns, "q": q}, like=x)
            self._quantized[x] = q
        return self._quantized[x]

    def linear(self, x: Buffer, *weights: Weight, rows: tuple[int | None, ...] | None = None) -> Any:
        """x times each weight, plus its bias: one Buffer, or a list for several weights (their products need no barrier between)."""
        results = []
        tensors = [self.matrix(w, x.columns, rows[i] if rows else None) for i, w in enumerate(weights)]
        for weight, tensor in zip(weights, tensors):
            fmt = self.format_of(tensor)
            activations = self._activations(x, fmt.activations)
            label = weight.name.removesuffix(".weight").removeprefix(self.scope)
            y = self._buffer(label, tensor.shape[0], like=x)
            args = {"weights": tensor, "x": activations, "y": y, "bias": self.vector(weight.bias, tensor.shape[0]), "accumulate": 0}
            self._emit("matmul", label, args, (fmt.name,), like=x)
            results.append(y)
        return results if len(weights) > 1 else results[0]

    def head_norm(self, x: Buffer, weight: Weight, n_heads: int, eps: float, kind: int = RMS, always: bool = False) -> Buffer:
        """Norm of each head, in place; the weight has one value per element of a head, or one set per head. Without weight the identity, unless always."""
        if not (weight or always):
            return x
        head_dim = x.columns // n_heads
        per_head = weight.tensor is not None and weight.tensor.n_elements != head_dim
        length = x.columns if per_head else head_dim
        vectors = {"weight": self.vector(weight.tensor, length), "bias": self.vector(weight.bias, length)}
        args = {"x": x, "n_heads": n_heads, "head_dim": head_dim, "kind": kind, "per_head": int(per_head), "eps": eps, **vectors}
        self._emit("head_norm", weight.name.removesuffix(".weight").removeprefix(self.scope), args)
        return x

    def rope(self, x: Buffer, n_heads: int, rope: Any, label: str) -> Buffer:
        """Rotates the first rope.dim elements of every head, in place; the identity if rope is None."""
        if rope is None:
            return x
        if id(rope) not in self._tables:
            table = Buffer(f"rope_table{len(self._tables)}", rope.dim)
            table_args = {"frequencies": rope.frequencies, "dimensions": rope.dim, "table": table, "magnitude": rope.magnitude, "growth": rope.growth, "span": rope.span}
            op = Op("rope_table", table.name, table_args)
            self.ops.insert(0, op)
            self._tables[id(rope)] = table
        args = {"x": x, "n_heads": n_heads, "head_dim": x.columns // n_heads, "dimensions": rope.dim, "style": rope.style, "table": self._tables[id(rope)]}
        self._emit("rope", label, args)
        return x

    def store_kv(self, k: Buffer, v: Buffer, n_kv_heads: int) -> int:
        """Appends keys and values to the cache; gives the layer's number there."""
        layer = len(self.kv_layers)
        self.kv_layers.append(KVLayer(n_kv_heads, k.columns // n_kv_heads, v.columns // n_kv_heads))
        for part, x in (("keys", k), ("values", v)):
            args = {"x": x, "n_heads": n_kv_heads, "head_dim": x.columns // n_kv_heads, "cache": CacheRef(part, layer)}
            self._emit("store_kv", f"store_{part}", args)
        return layer

    def attention(
        self,
        q: Buffer,
        layer: int,
        n_heads: int,
        scale: float | None = None,
        window: int | None = None,
        softcap: float = 0.0,
        alibi: float = 0.0,
        sinks: TensorInfo | None = None,
    ) -> Buffer:
        """softmax(scale * q k) v over the cache, causal; scale defaults to 1/sqrt(key_dim), window counts the query's own position.

        alibi: the largest bias, 0 for none. sinks: per head, a score that takes part in the softmax without a value.
        """
        kv = self.kv_layers[layer]
        if q.columns != n_heads * kv.key_dim or n_heads % kv.n_kv_heads:
            raise GGUFError(f"{self.file.path}: {n_heads} query heads of {kv.key_dim} do not fit {q.columns} columns and {kv.n_kv_heads} key heads; the head counts are damaged")
        y = self._buffer("attention", n_heads * kv.value_dim)
        args = {"q": q, "y": y, "keys": CacheRef("keys", layer), "values": CacheRef("values", layer), "n_heads": n_heads, "n_kv_heads": kv.n_kv_heads}
        args |= {"key_dim": kv.key_dim, "value_dim": kv.value_dim, "window": window or 0}
        args |= {"scale": 1 / math.sqrt(kv.key_dim) if scale is None else scale, "softcap": softcap}
        args |= {"slopes": alibi_slopes(n_heads, alibi) if alibi else None, "sinks": self.vector(sinks, n_heads)}
        self._emit("attention", "attention", args)
        return y

    def activate(self, gate: Buffer, up: Buffer | None, activation: str) -> Buffer:
        """activation(gate) * up, or activation(gate) alone."""
        y = self._buffer("activated", gate.columns, like=gate)
        args = {"gate": gate, "up": up, "columns": gate.columns, "activation": ACTIVATIONS[activation], "y": y, "q": None}
        self._emit("activate", activation, args, like=gate)
        return y

    def add(self, a: Buffer, b: Buffer, scale: float = 1.0, b_scale: float = 1.0) -> Buffer:
        """a * scale + b * b_scale"""
        y = self._buffer("sum", a.columns, like=a)
        self._emit("add", "add", {"a": a, "b": b, "columns": a.columns, "y": y, "scale": scale, "b_scale": b_scale})
        return y

    def scale(self, x: Buffer, factor: float) -> Buffer:
        """x * factor"""
        y = self._buffer("scaled", x.columns, like=x)
        self._emit("add", "scale", {"a": x, "b": None, "columns": x.columns, "y": y, "scale": factor, "b_scale": 0.0})
        return y

    # ---- experts -------------------------------------------------------------------------------------------------------------------

    def route(
        self, logits: Buffer, n_used: int, sigmoid: bool = False, bias: TensorInfo | None = None, normalize: bool = True, scale: float = 1.0, scales: TensorInfo | None = None
    ) -> Routing:
        """Deals each token out to its n_used best experts. logits: the router's, [tokens, n_experts]; scales: of each expert's result. See kernels/experts.py."""
        n_experts = logits.columns
        if not 0 < n_used <= n_experts:
            raise GGUFError(f"{self.file.path}: {n_used} of {n_experts} experts cannot be used; the expert counts are damaged")
        slots = self._buffer("slots", 2 * n_used)
        if n_experts not in self._groups:
            self._groups[n_experts] = np.zeros((2 + EXPERT_COUNTERS, n_experts), np.int64)
        routing = Routing(n_experts, n_used, slots, self._groups[n_experts])
        args = {"x": logits, "y": slots, "n_experts": n_experts, "n_used": n_used, "sigmoid": int(sigmoid), "normalize": int(normalize)}
        self._emit("route", "route", args | {"bias": self.vector(bias, n_experts), "scales": self.vector(scales, n_experts), "groups": routing.groups, "scale": scale})
        return routing

    def gather(self, x: Buffer, routing: Routing) -> Buffer:
        """Each token's row once for each of its experts, grouped by expert."""
        y = Buffer(self.scope + "gathered", x.columns, routing=routing)
        self._emit("gather", "gather", {"x": x, "columns": x.columns, "n_used": routing.n_used, "slots": routing.slots, "y": y})
        return y

    def expert_tensors(self, w: Weights, name: str, rows: int, columns: int, n_experts: int, part: int = 0, parts: int = 1) -> ExpertTensors:
        """Matrices [rows, columns] of all experts: one tensor `name_exps`, or one each, `name.0` and so on. part of parts: these rows of a tensor with more of them."""
        merged = getattr(w, f"{name}_exps")
        if merged:
            t = merged.tensor
            if t.shape != (n_experts, parts * rows, columns):
                raise GGUFError(f"{self.file.path}: tensor {t.name} has shape {t.shape}, {(n_experts, parts * rows, columns)} is needed; the file is damaged")
            starts = [(parts * e + part) * rows for e in range(n_experts)]
            tensors = [TensorInfo(f"{t.name}[{e}]", t.type, (rows, columns), t.data[start : start + rows]) for e, start in enumerate(starts)]
            biases = None
            if merged.bias is not None and parts == 1:
                biases = np.zeros((n_experts, round_up(rows, 16)), np.float32)
                biases[:, :rows] = self.vector(merged.bias, n_experts * rows)[: n_experts * rows].reshape(n_experts, rows)  # type: ignore[index]
            return ExpertTensors(tensors, biases)
        return ExpertTensors([self.matrix(getattr(w, f"{name}.{e}"), columns, rows) for e in range(n_experts)], None)

    def expert_linear(self, x: Buffer, w: Weights, name: str, rows: int, part: int = 0, parts: int = 1) -> Buffer:
        """Each expert's rows times its own matrix; see expert_tensors."""
        routing = x.routing
        assert routing is not None and routing.products < EXPERT_COUNTERS
        tensors = self.expert_tensors(w, name, rows, x.columns, routing.n_experts, part, parts)
        fmt = self.format_of(tensors.tensors[0])
        y = self._buffer(name, rows, like=x)
        args = {"weights": tensors, "x": self._activations(x, fmt.activations), "y": y, "bias": tensors.biases, "accumulate": 0, "product": routing.products}
        self._emit("matmul", f"{name}_exps", args, (fmt.name,), like=x)
        routing.products += 1
        return y

    def combine(self, x: Buffer, shared: Buffer | None = None, gate: Buffer | None = None) -> Buffer:
        """The weighted sum of each token's slots, plus shared (times sigmoid(gate), gate: [tokens, 1])."""
        routing = x.routing
        assert routing is not None
        y = Buffer(self.scope + "combined", x.columns)
        args = {"x": x, "columns": x.columns, "n_used": routing.n_used, "slots": routing.slots, "shared": shared, "gate": gate, "y": y}
        self._emit("combine", "combine", args)
        return y

    # ---- columns of heads ----------------------------------------------------------------------------------------------------------

    def _copy(self, x: Buffer, y: Buffer, n_heads: int, columns: int, first: int, y_first: int, same_for_all: bool = False, groups: np.ndarray | None = None) -> None:
        """Columns of each head of x to those of y; same_for_all: x has one head, which every head of y gets."""
        args: dict[str, Any] = {"x": x, "n_heads": n_heads, "columns": columns, "x_first": first, "y": y, "y_first": y_first, "groups": groups}
        for name, buffer in (("x", x), ("y", y)):
            args[f"{name}_by_head"] = int(buffer.routing is not None)
            args[f"{name}_head_columns"] = 0 if same_for_all and name == "x" else buffer.columns // n_heads
        self._emit("columns", f"columns_{y.name.removeprefix(self.scope)}", args)

    def columns(self, x: Buffer, n_heads: int, columns: int, first: int = 0) -> Buffer:
        """Columns first.. of each head."""
        y = self._buffer("columns", n_heads * columns)
        self._copy(x, y, n_heads, columns, first, 0)
        return y

    def join_heads(self, n_heads: int, *parts: tuple[Buffer, int, int, bool]) -> Buffer:
        """Heads of columns side by side: (buffer, first column, columns, whether its one head goes to all heads)."""
        width = sum(columns for _, _, columns, _ in parts)
        y, at = self._buffer("heads", n_heads * width), 0
        for x, first, columns, same_for_all in parts:
            self._copy(x, y, n_heads, columns, first, at, same_for_all)
            at += columns
        return y

    def by_head(self, x: Buffer, n_heads: int, columns: int) -> Buffer:
        """The first columns of each head, rows grouped by head; see kernels/columns.py."""
        groups = np.zeros((2 + EXPERT_COUNTERS, n_heads), np.int64)
        y = Buffer(self.scope + "by_head", columns, routing=None)
        y.routing = Routing(n_heads, n_heads, y, groups)
        self._copy(x, y, n_heads, columns, 0, 0, groups=groups)
        return y

    def head_linear(self, x: Buffer, weight: Weight, rows: int) -> Buffer:
        """Each head's rows times its own matrix of a tensor [n_heads, rows, columns]."""
        routing, t = x.routing, weight.tensor
        assert routing is not None and t is not None
        if t.shape != (routing.n_experts, rows, x.columns):
            raise GGUFError(f"{self.file.path}: tensor {t.name} has shape {t.shape}, {(routing.n_experts, rows, x.columns)} is needed; the file is damaged")
        matrices = [TensorInfo(f"{t.name}[{h}]", t.type, (rows, x.columns), t.data[h * rows : (h + 1) * rows]) for h in range(routing.n_experts)]
        fmt = self.format_of(t)
        y = self._buffer("head_linear", rows, like=x)
        args = {"weights": ExpertTensors(matrices, None), "x": self._activations(x, fmt.activations), "y": y, "bias": None, "accumulate": 0, "product": routing.products}
        self._emit("matmul", weight.name.removesuffix(".weight").removeprefix(self.scope), args, (fmt.name,), like=x)
        routing.products += 1
        return y

    def output(self, x: Buffer, norm: Weight, head: Weight, eps: float, kind: int = RMS, softcap: float = 0.0, scale: float = 1.0) -> Buffer:
        """Last norm and the logits of the wanted rows, then cap * tanh(logits * scale / cap) if asked for."""
        self.scope = ""
        logits = self.linear(self.norm(x, norm, eps, kind, gather=True), head)
        if softcap or scale != 1.0:
            self._emit("softcap", "softcap", {"x": logits, "columns": logits.columns, "scale": scale, "cap": softcap}, like=logits)
        return logits

    def finish(self, logits: Buffer, hyperparameters: Any) -> Program:
        return Program(fuse(self.ops), self.kv_layers, logits, hyperparameters)
