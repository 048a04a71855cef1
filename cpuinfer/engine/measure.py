"""Measurements of the machine and of a program: DRAM read bandwidth, the peak of 8-bit products, and where the time of a step goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..kernels import isa, jit
from ..kernels.records import BATCH, RECORDS
from ..kernels.team import Team
from ..program.ops import ExpertTensors
from ..program.program import aligned_zeros

READ_BYTES = 512 << 20  # far beyond any cache
REPEATS = 20_000


class _OneKernel:
    """A program of one kernel."""

    def __init__(self, address: int, record: np.ndarray):
        self.kernels, self.records = np.full((3, 1), address, np.int64), np.array([record.ctypes.data])
        self.sync, self.per_logit_row, self.counters = np.ones(1, np.uint8), np.zeros(1, np.uint8), np.zeros(8, np.int64)


def machine(threads: int | None = None, repetitions: int = 5) -> dict[str, float | int | str]:
    """Medians: read_gb_s, bytes that all threads read from DRAM per second; dot4_gmac_s, multiply-adds of 4-bit codes and 8-bit activations, all threads, no memory."""
    team = Team(threads)
    try:
        addresses = jit.build([("probe_read",), ("probe_dot4",)])
        shape = isa.get(isa.current())
        data, result = np.full(READ_BYTES, 0x3F, np.uint8), aligned_zeros((team.size, 4096), np.uint8)
        record = np.zeros(1, RECORDS["probe"])
        for name, value in {"data": data.ctypes.data, "bytes": READ_BYTES, "repeats": REPEATS, "result": result.ctypes.data}.items():
            record[name] = value
        batch = np.zeros(1, BATCH)
        batch["n_tokens"] = 1
        macs = REPEATS * 32 * 32 * 16 * shape.tiles * shape.tokens * team.size
        seconds = {}
        for name in ("probe_read", "probe_dot4"):
            seconds[name] = _median(partial(team.run, _OneKernel(addresses[name,], record), batch), repetitions)
        return {
            "cpu": jit.cpu_name(),
            "isa": isa.current(),
            "threads": team.size,
            "read_gb_s": READ_BYTES / seconds["probe_read"] / 1e9,
            "dot4_gmac_s": macs / seconds["probe_dot4"] / 1e9,
        }
    finally:
        team.close()


def _median(run: Callable[[], Any], repetitions: int) -> float:
    run()
    times = []
    for _ in range(repetitions):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class _Part:
    """Some ops of a program, with a barrier after each."""

    def __init__(self, program: Any, chosen: list[int]):
        self.kernels, self.records = np.ascontiguousarray(program.kernels[:, chosen]), program.records[chosen]
        self.sync, self.per_logit_row = np.ones(len(chosen), np.uint8), program.per_logit_row[chosen]
        self.counters = np.zeros(8 * len(chosen), np.int64)


def profile(engine: Any, tokens: int, depth: int, repetitions: int = 9) -> list[dict[str, Any]]:
    """Where a step's time goes: for each kind of op, over all layers, how often it runs, its microseconds, bytes of weights it reads, and its share of the whole step.

    A step of `tokens` new tokens after `depth` others. The first entry is the whole step; the last, what barriers and imbalance between unlike ops cost
    (negative where ops overlap that run with a barrier here). The rows of the cache are whatever is there: times do not depend on values.
    """
    program = engine.program
    with engine.borrowed([1] * (depth + tokens)) as sequence:
        sequence.n_computed = depth
        engine._batch.fill([(sequence, tokens)])

        def run(part: Any) -> float:
            def once() -> None:
                program.counters[:] = 0  # a part has counters of its own to reset, ops use the program's
                engine.team.run(part, engine._batch.record)

            return _median(once, repetitions)

        whole = run(program)
        groups: dict[tuple[str, ...], list[int]] = {}
        for i, op in enumerate(program.ops):
            name = op.label.split(".", 2)[-1] if op.kind == "matmul" else ""
            groups.setdefault((op.kind, *op.variants, name), []).append(i)
        rows: list[dict[str, Any]] = [{"op": "whole step", "count": len(program.ops), "us": whole * 1e6, "bytes": sum(_bytes(op) for op in program.ops), "share": 1.0}]
        for key, chosen in groups.items():
            seconds = run(_Part(program, chosen))
            size = sum(_bytes(program.ops[i]) for i in chosen)
            rows.append({"op": " ".join(filter(None, key)), "count": len(chosen), "us": seconds * 1e6, "bytes": size, "share": seconds / whole})
        rest = whole - sum(r["us"] for r in rows[1:]) / 1e6
        rows.append({"op": "barriers and imbalance", "count": int(program.sync.sum()), "us": rest * 1e6, "bytes": 0, "share": rest / whole})
        program.counters[:] = 0
        return rows


def _bytes(op: Any) -> int:
    weights = op.args.get("weights") if op.kind == "matmul" else None
    if isinstance(weights, ExpertTensors):
        return sum(t.data.nbytes for t in weights.tensors) * op.routing.n_used // op.routing.n_experts
    return 0 if weights is None else weights.data.nbytes
