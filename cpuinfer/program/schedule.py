"""Barriers and memory: which ops need one after them, and which buffers may share an array."""

from __future__ import annotations

from .ops import SPLIT_BY_HEADS, Buffer, Op


def set_syncs(ops: list[Op]) -> None:
    """Sets op.sync: a barrier stands before an op only if it touches what an op since the last barrier wrote, or writes what one read.

    Ops split by heads in the same way may touch each other's rows: a thread meets only its own.
    """
    since: list[Op] = []
    for i, op in enumerate(ops):
        op.sync = i == len(ops) - 1
        if any(_conflict(before, op) for before in since):
            ops[i - 1].sync = True
            since = []
        since.append(op)


def _conflict(before: Op, op: Op) -> bool:
    written, touched = before.writes(), op.reads() + op.writes()
    shared = [b for b in written if b in touched] + [b for b in op.writes() if b in before.reads()]
    if not shared:
        return False
    same_split = before.kind in SPLIT_BY_HEADS and op.kind in SPLIT_BY_HEADS and before.args["n_heads"] == op.args["n_heads"]
    return not (same_split and all(b is before.args.get("x") and b is op.args.get("x") for b in shared))


def share_arrays(ops: list[Op]) -> dict[Buffer, int]:
    """Array number of each buffer. Buffers of equal shape and kind whose lives do not overlap share one.

    A buffer lives from the first barrier-free stretch that writes it to the end of the last one that reads it. Equal shapes only: the padding of a row must stay zero.
    """
    stretch, number = [], 0
    for op in ops:
        stretch.append(number)
        number += op.sync
    lives: dict[Buffer, tuple[int, int]] = {}
    for op, at in zip(ops, stretch):
        for value in [*op.args.values()]:
            if isinstance(value, Buffer):
                first, _ = lives.get(value, (at, at))
                lives[value] = (first, at)
        if op.routing:
            lives[op.routing.slots] = (lives[op.routing.slots][0], at)
    arrays: list[tuple[tuple, int]] = []  # (shape, end of the last life)
    result: dict[Buffer, int] = {}
    for buffer, (first, last) in sorted(lives.items(), key=lambda item: item[1][0]):
        routing = buffer.routing
        shape = (buffer.columns, buffer.kind, buffer.per_logit_row, routing and (routing.n_experts, routing.n_used))
        free = [n for n, (other, end) in enumerate(arrays) if other == shape and end < first]
        if free:
            result[buffer] = free[0]
            arrays[free[0]] = (shape, last)
        else:
            result[buffer] = len(arrays)
            arrays.append((shape, last))
    return result
