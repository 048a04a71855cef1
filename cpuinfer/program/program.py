"""A finished program: its ops, and after `assemble` the records, addresses and arrays that compiled kernels run on."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..formats.gguf import TensorInfo
from ..kernels.records import BATCH, DRIVERS, FEW, RECORDS, attention_scratch_bytes, matmul_scratch_bytes, round_up, slot_rows
from .ops import Buffer, CacheRef, ExpertTensors, KVLayer, Op, Routing
from .schedule import set_syncs, share_arrays

EXTRA_ROWS = 8  # more than asked for: kernels store activations in tiles of up to 8 rows
Key = tuple[str, ...]


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that start on a cache line; the system gives their pages when they are first touched."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


class BufferArrays:
    """The memory of one or more buffers of equal shape.

    f32: values f32[rows, columns rounded up to 16]. q8: values i8[rows, stride], scales f32[rows, stride/32], sums f32[rows, stride/32], sums16
    f32[rows, stride/16]; stride is columns rounded up to 256. See kernels/records.py.
    """

    def __init__(self, rows: int, columns: int, kind: str):
        self.kind = kind
        self.stride = round_up(columns, 256 if kind == "q8" else 16)
        self.values = aligned_zeros((rows, self.stride), np.int8 if kind == "q8" else np.float32)
        if kind == "q8":
            self.scales, self.sums = (aligned_zeros((rows, self.stride // 32), np.float32) for _ in range(2))
            self.sums16 = aligned_zeros((rows, self.stride // 16), np.float32)


class Program:
    """Ops in order, with barriers set. `logits` is the buffer [logit rows, vocabulary] that the last ops write."""

    def __init__(self, ops: list[Op], kv_layers: list[KVLayer], logits: Buffer, hyperparameters: Any):
        self.ops, self.kv_layers, self.logits, self.hyperparameters = ops, kv_layers, logits, hyperparameters
        set_syncs(ops)
        self._array_of = share_arrays(ops)
        self._keepalive: list[Any] = []

    # ---- what must be compiled -----------------------------------------------------------------------------------------------------

    def _variants(self, op: Op, cache_types: tuple[str, str]) -> tuple[str, ...]:
        if op.kind == "attention":
            return cache_types
        if op.kind == "store_kv":
            return (cache_types[0 if op.args["cache"].part == "keys" else 1],)
        return op.variants

    def kernels_needed(self, cache_types: tuple[str, str]) -> list[Key]:
        """Keys for jit.build, given the types of cached keys and values."""
        keys = {(name, *self._variants(op, cache_types)) for op in self.ops for name in DRIVERS.get(op.kind, (op.kind,))}
        if any(op.routing for op in self.ops):
            keys.add(("experts",))
        return sorted(keys)

    # ---- memory --------------------------------------------------------------------------------------------------------------------

    def allocate(self, max_tokens: int, max_logit_rows: int) -> None:
        """Make the workspace: every buffer for this many tokens and logit rows. Enough for the reference interpreter."""
        self.max_tokens, self.max_logit_rows = max_tokens, max_logit_rows
        self._arrays: dict[int, BufferArrays] = {}
        for buffer, number in self._array_of.items():
            if number not in self._arrays:
                rows = max_logit_rows if buffer.per_logit_row else max_tokens
                if buffer.routing:
                    rows = slot_rows(rows, buffer.routing.n_experts, buffer.routing.n_used)
                self._arrays[number] = BufferArrays(rows + EXTRA_ROWS, buffer.columns, buffer.kind)

    def arrays(self, buffer: Buffer) -> BufferArrays:
        """The memory of a buffer, shared with others whose lives do not overlap."""
        return self._arrays[self._array_of[buffer]]

    @property
    def logits_array(self) -> np.ndarray:
        """f32[max_logit_rows + a few, n_vocab rounded up to 16]; row i belongs to batch.logit_rows[i]."""
        return self.arrays(self.logits).values

    @property
    def workspace_bytes(self) -> int:
        return sum(a.values.nbytes + (a.scales.nbytes * 2 + a.sums16.nbytes if a.kind == "q8" else 0) for a in self._arrays.values())

    # ---- records -------------------------------------------------------------------------------------------------------------------

    def assemble(self, addresses: dict[Key, int], cache: Any, max_tokens: int, max_logit_rows: int, threads: int) -> None:
        """Resolve every op to a record of addresses.

        addresses: jit.build(kernels_needed(cache types)). cache: has key_type, value_type, key_arrays and value_arrays (u1[n_pages, n_kv_heads, PAGE,
        row_bytes] per layer). Afterwards: kernels i8[3, n_ops], records i8[n_ops], sync u1[n_ops], per_logit_row u1[n_ops], counters i8[n_ops * 8].
        """
        self.allocate(max_tokens, max_logit_rows)
        n_ops, types = len(self.ops), (cache.key_type, cache.value_type)
        self.cache = cache
        self.counters = aligned_zeros((n_ops * 8,), np.int64)
        scratch_bytes = max(self._scratch_bytes(op) for op in self.ops) + 1024  # the end is for records of experts
        self._scratch = aligned_zeros((threads, scratch_bytes), np.uint8)
        self.kernels = np.zeros((3, n_ops), np.int64)
        self.records = np.zeros(n_ops, np.int64)
        self.sync = np.array([op.sync for op in self.ops], np.uint8)
        self.per_logit_row = np.array([op.per_logit_row for op in self.ops], np.uint8)
        self._keepalive = []
        for i, op in enumerate(self.ops):
            record = np.zeros(1, RECORDS[op.kind])
            fields = self._fields(op, cache) | {
                "counter": self.counters[8 * i :].ctypes.data,
                "scratch": self._scratch.ctypes.data,
                "scratch_bytes": scratch_bytes,
                "per_logit_row": int(op.per_logit_row),
            }
            for name in record.dtype.names:
                record[name] = fields.get(name, 0)
            self._keepalive.append(record)
            self.records[i] = record.ctypes.data
            names = DRIVERS.get(op.kind, (op.kind,) * 3)
            self.kernels[:, i] = [addresses[(name, *self._variants(op, types))] for name in names]
            if op.routing:
                outer = self._by_expert(op, op.routing, record, np.ascontiguousarray(self.kernels[:, i]), scratch_bytes)
                self.records[i], self.kernels[:, i] = outer.ctypes.data, addresses[("experts",)]

    def _by_expert(self, op: Op, routing: Routing, record: np.ndarray, kernels: np.ndarray, scratch_bytes: int) -> np.ndarray:
        """The record of `experts` around an op's own."""
        n, patches = routing.n_experts, []

        def patch(name: str, kind: int, value: int) -> None:
            fields = record.dtype.fields
            if fields is not None and name in fields:
                patches.append((fields[name][1], kind, value))

        def table(name: str, addresses: Any) -> None:
            self._keepalive.append(np.array(addresses, np.int64))
            patch(name, 1, self._keepalive[-1].ctypes.data)

        for name, value in op.args.items():
            if isinstance(value, Buffer) and value.routing:
                stride = self.arrays(value).stride
                patch(name, 0, stride if value.kind == "q8" else 4 * stride)
                if value.kind == "q8":
                    for part, size in (("scales", stride // 8), ("sums", stride // 8), ("sums16", stride // 4)):
                        patch(f"{name}_{part}", 0, size)
            elif isinstance(value, ExpertTensors):
                table(name, [t.data.ctypes.data for t in value.tensors])
                if value.biases is not None:
                    table("bias", [row.ctypes.data for row in value.biases])
                table("counter", routing.groups.ctypes.data + 8 * n * (2 + op.args["product"]) + 8 * np.arange(n))
        outer, words = np.zeros(1, RECORDS["experts"]), np.array(patches, np.int64)
        fields = {"kernels": kernels.ctypes.data, "record": record.ctypes.data, "record_bytes": record.dtype.itemsize, "patches": words.ctypes.data}
        fields |= {"n_patches": len(patches), "groups": routing.groups.ctypes.data, "n_experts": n, "few": FEW}
        for name, number in (fields | {"scratch": self._scratch.ctypes.data, "scratch_bytes": scratch_bytes}).items():
            outer[name] = number
        assert record.dtype.itemsize + BATCH.itemsize <= 1024
        self._keepalive += [outer, words, kernels]
        return outer

    def _scratch_bytes(self, op: Op) -> int:
        if op.kind == "matmul":
            weights = op.args["weights"]
            return matmul_scratch_bytes((weights.tensors[0] if isinstance(weights, ExpertTensors) else weights).shape[-1])
        if op.kind == "route":
            return 4 * op.args["n_experts"]
        if op.kind == "attention":
            return attention_scratch_bytes(op.args["n_heads"], op.args["n_kv_heads"], op.args["key_dim"], op.args["value_dim"])
        columns = op.args.get("columns")
        return 4 * round_up(columns, 64) if isinstance(columns, int) else 64

    def _fields(self, op: Op, cache: Any) -> dict[str, Any]:
        """Record fields of an op's arguments, by the conventions of Op."""
        fields: dict[str, Any] = {}
        for name, value in op.args.items():
            if isinstance(value, Buffer):
                arrays = self.arrays(value)
                fields |= {name: arrays.values.ctypes.data, f"{name}_stride": arrays.stride}
                if value.kind == "q8":
                    fields |= {f"{name}_{part}": getattr(arrays, part).ctypes.data for part in ("scales", "sums", "sums16")}
            elif isinstance(value, TensorInfo):
                fields |= {name: value.data.ctypes.data, "row_bytes": value.data.shape[1], "rows": value.data.shape[0], "columns": value.shape[-1]}
            elif isinstance(value, ExpertTensors):
                first = value.tensors[0]
                fields |= {name: first.data.ctypes.data, "row_bytes": first.data.shape[1], "rows": first.data.shape[0], "columns": first.shape[-1]}
            elif isinstance(value, CacheRef):
                array = (cache.key_arrays if value.part == "keys" else cache.value_arrays)[value.layer]
                prefix = {"cache": "row_bytes", "keys": "key_row_bytes", "values": "value_row_bytes"}[name]
                fields |= {name: array.ctypes.data, prefix: array.shape[-1]}
            elif isinstance(value, np.ndarray):
                fields[name] = value.ctypes.data
                self._keepalive.append(value)
            elif value is not None:
                fields[name] = value
        return fields
