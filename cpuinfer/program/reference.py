"""The oracle: runs a Program in numpy float32, op by op, exactly as kernels/records.py describes each. Slow and plain; for tests, never used at run time.

Activations are never quantized: a Q8 buffer holds its float values here. Keys and values pass through the cache's own type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..formats import quants
from ..kernels.records import ACTIVATIONS, PAGE, round_up
from .ops import Buffer, Op
from .program import Program


class Batch:
    """Views a record of records.BATCH (addresses) as arrays."""

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    sequences: np.ndarray

    def __init__(self, record: np.ndarray):
        import ctypes

        r = record[0]
        self.n_tokens, self.n_sequences, self.n_logit_rows = (int(r[n]) for n in ("n_tokens", "n_sequences", "n_logit_rows"))

        def array(field: str, count: int) -> np.ndarray:
            if not count:
                return np.zeros(0, np.int32)
            return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(int(r[field]))).copy()

        for field in ("tokens", "positions", "slots", "sequences"):
            setattr(self, field, array(field, self.n_tokens))
        self.query_starts, self.lengths = array("query_starts", self.n_sequences + 1), array("lengths", self.n_sequences)
        stride = int(r["page_table_stride"])
        self.page_tables = array("page_tables", self.n_sequences * stride).reshape(self.n_sequences, stride)
        self.logit_rows = array("logit_rows", self.n_logit_rows)


class ReferenceTeam:
    """Stands in for kernels.team.Team: the same `run`, on the reference interpreter."""

    size = 1

    def __init__(self) -> None:
        self.trace: dict[str, np.ndarray] = {}

    def run(self, program: Program, record: np.ndarray) -> None:
        self.trace = run(program, record)

    def close(self) -> None:
        pass


def run(program: Program, record: np.ndarray) -> dict[str, np.ndarray]:
    """Run a batch; writes logits into program.logits_array and keys and values into program.cache. Gives each op's result by label."""
    batch = Batch(record)
    values: dict[Buffer, np.ndarray] = {}
    trace: dict[str, np.ndarray] = {}
    for op in program.ops:
        rows = batch.n_logit_rows if op.per_logit_row else batch.n_tokens
        if rows:
            result = globals()[f"_{op.kind}"](op, batch, values, program)
            trace[f"{op.label}:{op.kind}"] = result
    logits = values.get(program.logits)
    if logits is not None:
        program.logits_array[: len(logits), : logits.shape[1]] = logits
    return trace


def _array(vector: np.ndarray | None, length: int, default: float) -> np.ndarray:
    return np.full(length, default, np.float32) if vector is None else vector[:length]


def _put(op: Op, values: dict[Buffer, np.ndarray], result: np.ndarray) -> np.ndarray:
    result = result.astype(np.float32)
    for name in ("y", "q"):
        if isinstance(buffer := op.args.get(name), Buffer):
            values[buffer] = result
    return result


def _weights(tensor: Any) -> np.ndarray:
    return quants.get(tensor.type.name).dequantize(tensor.data)


def _embedding(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    tensor = op.args["weights"]
    rows = quants.get(tensor.type.name).dequantize(tensor.data[batch.positions if op.args["by_position"] else batch.tokens])
    return _put(op, values, rows * np.float32(op.args["scale"]))


def _normalized(x: np.ndarray, kind: int, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == 1:
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def _norm(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    a = op.args
    x = values[a["x"]][batch.logit_rows] if a["gather"] else values[a["x"]]
    y = _normalized(x, a["kind"], a["eps"]) * _array(a["weight"], x.shape[1], 1) + _array(a["bias"], x.shape[1], 0)
    return _put(op, values, y + values[a["residual"]] if a["residual"] else y)


def _head_norm(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    a = op.args
    x = values[a["x"]].reshape(-1, a["n_heads"], a["head_dim"])
    shape = (a["n_heads"], a["head_dim"]) if a["per_head"] else (a["head_dim"],)
    length = int(np.prod(shape))
    y = _normalized(x, a["kind"], a["eps"]) * _array(a["weight"], length, 1).reshape(shape) + _array(a["bias"], length, 0).reshape(shape)
    values[a["x"]] = y.reshape(len(y), -1).astype(np.float32)
    return values[a["x"]]


def _quantize(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    return _put(op, values, values[op.args["x"]])


def _route(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    """float64[T, 2, n_used]: experts and their weights."""
    a = op.args
    logits = values[a["x"]].astype(np.float64)
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    scores = 1 / (1 + np.exp(-logits)) if a["sigmoid"] else shifted / shifted.sum(-1, keepdims=True)
    for_choice = scores if a["bias"] is None else scores + a["bias"][: scores.shape[1]]
    experts = np.argsort(-for_choice, axis=-1, kind="stable")[:, : a["n_used"]]
    weights = np.take_along_axis(scores, experts, -1)
    if a["normalize"]:
        weights = weights / weights.sum(-1, keepdims=True)
    if a["scales"] is not None:
        weights = weights * a["scales"][experts]
    values[a["y"]] = np.stack([experts, weights * a["scale"]], 1)
    return values[a["y"]]


def _gather(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    """[T, n_used, columns]: slots stay in the tokens' order here."""
    return _put(op, values, np.repeat(values[op.args["x"]][:, None], op.args["n_used"], 1))


def _combine(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    a = op.args
    y = (values[a["x"]] * values[a["slots"]][:, 1, :, None]).sum(1)
    if a["shared"] is not None:
        y = y + values[a["shared"]] * (1 if a["gate"] is None else 1 / (1 + np.exp(-values[a["gate"]])))
    return _put(op, values, y)


def _columns(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    """Rows by head are [T, n_heads, columns] here."""
    a = op.args
    x, n = values[a["x"]], a["n_heads"]
    heads = x if a["x_by_head"] else x.reshape(len(x), -1, a["x_head_columns"] or x.shape[1])
    taken = np.broadcast_to(heads[:, :, a["x_first"] : a["x_first"] + a["columns"]], (len(x), n, a["columns"]))
    if a["y_by_head"]:
        values[a["y"]] = taken.copy()
        return values[a["y"]]
    y = values.setdefault(a["y"], np.zeros((len(x), a["y"].columns), np.float32))
    y.reshape(len(y), n, -1)[:, :, a["y_first"] : a["y_first"] + a["columns"]] = taken
    return y


def _expert_matmul(op: Op, values: dict) -> np.ndarray:
    a = op.args
    x, slots = values[a["x"]], values[op.routing.slots]  # type: ignore[union-attr]
    by_head = op.routing.slots.routing is op.routing  # type: ignore[union-attr]
    experts = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2]) if by_head else slots[:, 0]
    y = np.zeros((*x.shape[:2], a["y"].columns))
    for e, tensor in enumerate(a["weights"].tensors):
        here = experts == e
        if here.any():
            y[here] = x[here] @ _weights(tensor).T + (0 if a["bias"] is None else a["bias"][e][: y.shape[-1]])
    return _put(op, values, y)


def _matmul(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    if op.routing:
        return _expert_matmul(op, values)
    a = op.args
    y = values[a["x"]] @ _weights(a["weights"]).T
    if a["bias"] is not None:
        y = y + a["bias"][: y.shape[1]]
    return _put(op, values, values[a["y"]] + y if a["accumulate"] else y)


def _rope_table(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    angles = batch.positions[:, None].astype(np.float64) * op.args["frequencies"]
    magnitude = op.args["magnitude"] * (1 + op.args["growth"] * np.log1p(batch.positions[:, None] // op.args["span"]))
    values[op.args["table"]] = (np.concatenate([np.cos(angles), np.sin(angles)], 1) * magnitude).astype(np.float32)
    return values[op.args["table"]]


def _rope(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    a = op.args
    x, n = values[a["x"]].reshape(-1, a["n_heads"], a["head_dim"]).copy(), a["dimensions"]
    cosine, sine = (t[:, None, :] for t in np.split(values[a["table"]], 2, axis=1))
    first, second = (slice(0, n, 2), slice(1, n, 2)) if a["style"] == 0 else (slice(0, n // 2), slice(n // 2, n))
    p, q = x[..., first].copy(), x[..., second].copy()
    x[..., first], x[..., second] = p * cosine - q * sine, p * sine + q * cosine
    values[a["x"]] = x.reshape(len(x), -1)
    return values[a["x"]]


def _cache_rows(program: Program, ref: Any) -> tuple[np.ndarray, str]:
    cache = program.cache
    return (cache.key_arrays[ref.layer], cache.key_type) if ref.part == "keys" else (cache.value_arrays[ref.layer], cache.value_type)


def encode_rows(x: np.ndarray, cache_type: str) -> np.ndarray:
    """f32[..., head_dim] -> u1[..., row_bytes] as records.cache_row_bytes lays them out."""
    padded = np.zeros((*x.shape[:-1], round_up(x.shape[-1], 32 if cache_type == "q8_0" else 16)), np.float32)
    padded[..., : x.shape[-1]] = x
    if cache_type != "q8_0":
        return padded.astype({"f16": np.float16, "f32": np.float32}[cache_type]).view(np.uint8)
    groups = padded.reshape(*x.shape[:-1], -1, 32)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float32)
    codes = np.round(groups / np.where(scales == 0, 1, scales)[..., None]).astype(np.int8)
    return np.concatenate([codes.reshape(*x.shape[:-1], -1).view(np.uint8), scales.view(np.uint8)], -1)


def decode_rows(rows: np.ndarray, cache_type: str, head_dim: int) -> np.ndarray:
    """The inverse of encode_rows."""
    if cache_type != "q8_0":
        return np.ascontiguousarray(rows).view({"f16": np.float16, "f32": np.float32}[cache_type])[..., :head_dim].astype(np.float32)
    n = round_up(head_dim, 32)
    codes = np.ascontiguousarray(rows[..., :n]).view(np.int8).reshape(*rows.shape[:-1], -1, 32)
    scales = np.ascontiguousarray(rows[..., n:]).view(np.float32)
    return (codes * scales[..., None]).reshape(*rows.shape[:-1], -1)[..., :head_dim].astype(np.float32)


def _store_kv(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    a = op.args
    array, cache_type = _cache_rows(program, a["cache"])
    x = values[a["x"]].reshape(-1, a["n_heads"], a["head_dim"])
    array[batch.slots // PAGE, :, batch.slots % PAGE] = encode_rows(x, cache_type)
    return values[a["x"]]


def _attention(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    a = op.args
    q = values[a["q"]].reshape(-1, a["n_heads"], a["key_dim"])
    y = np.zeros((batch.n_tokens, a["n_heads"], a["value_dim"]), np.float32)
    group = a["n_heads"] // a["n_kv_heads"]
    decoded = []
    for name, dim in (("keys", a["key_dim"]), ("values", a["value_dim"])):
        array, cache_type = _cache_rows(program, a[name])
        decoded.append((array, cache_type, dim))
    for s in range(batch.n_sequences):
        length = batch.lengths[s]
        pages = batch.page_tables[s, : (length + PAGE - 1) // PAGE]
        keys, vals = (decode_rows(array[pages], t, d).transpose(1, 0, 2, 3).reshape(a["n_kv_heads"], -1, d) for array, t, d in decoded)
        for t in range(batch.query_starts[s], batch.query_starts[s + 1]):
            end = batch.positions[t] + 1
            start = max(0, end - a["window"]) if a["window"] else 0
            for head in range(a["n_heads"]):
                scores = (keys[head // group, start:end] @ q[t, head]).astype(np.float64) * a["scale"]
                if a["softcap"]:
                    scores = a["softcap"] * np.tanh(scores / a["softcap"])
                if a["slopes"] is not None:
                    scores = scores + a["slopes"][head] * (np.arange(start, end) - batch.positions[t])
                sink = -np.inf if a["sinks"] is None else a["sinks"][head]
                p = np.exp(scores - max(scores.max(), sink))
                y[t, head] = (p / (p.sum() + np.exp(sink - max(scores.max(), sink)))) @ vals[head // group, start:end]
    return _put(op, values, y.reshape(batch.n_tokens, -1))


def _erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf)(x)


def _gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form; argument and result pass through half precision, as the models' reference implementation looks them up in a table of halves."""
    half = np.clip(x, -10, 10).astype(np.float16).astype(np.float64)
    y = (0.5 * half * (1 + np.tanh(np.sqrt(2 / np.pi) * (half + 0.044715 * half**3)))).astype(np.float16)
    return np.where(x <= -10, 0, np.where(x >= 10, x, y))


_ACTIVATIONS = (
    lambda x: x / (1 + np.exp(-x)),
    _gelu,
    lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    lambda x: x / (1 + np.exp(-1.702 * x)),
    lambda x: np.maximum(x, 0),
    lambda x: np.maximum(x, 0) ** 2,
)


def _activate(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    if op.args["activation"] == ACTIVATIONS["swiglu_oai"]:
        gate, up = np.minimum(values[op.args["gate"]].astype(np.float64), 7), np.clip(values[op.args["up"]], -7, 7)
        return _put(op, values, gate / (1 + np.exp(-1.702 * gate)) * (up + 1))
    y = _ACTIVATIONS[op.args["activation"]](values[op.args["gate"]].astype(np.float64))
    return _put(op, values, y * values[op.args["up"]] if op.args["up"] else y)


def _add(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    a = op.args
    return _put(op, values, values[a["a"]] * a["scale"] + (values[a["b"]] * a["b_scale"] if a["b"] else 0))


def _softcap(op: Op, batch: Batch, values: dict, program: Program) -> np.ndarray:
    x = values[op.args["x"]] * op.args["scale"]
    values[op.args["x"]] = (op.args["cap"] * np.tanh(x / op.args["cap"]) if op.args["cap"] else x).astype(np.float32)
    return values[op.args["x"]]
