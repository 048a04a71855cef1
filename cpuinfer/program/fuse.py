"""Peephole patterns over a list of ops. Each is a function ops -> ops that changes nothing but speed, and can be left out."""

from __future__ import annotations

from .ops import Buffer, Op


def _readers(ops: list[Op], buffer: Buffer, after: int) -> list[int]:
    return [i for i in range(after, len(ops)) if buffer in ops[i].reads()]


def quantize_in_producer(ops: list[Op]) -> list[Op]:
    """norm or activate, then quantize of its result: the producer writes Q8 itself, and no f32 if nobody else reads that."""
    result = list(ops)
    for op in ops:
        if op.kind != "quantize":
            continue
        x = op.args["x"]
        producer = next((p for p in reversed(result[: result.index(op)]) if x in p.writes()), None)
        if producer is None or producer.kind not in ("norm", "activate") or producer.args.get("q") is not None:
            continue
        producer.args["q"] = op.args["q"]
        result.remove(op)
        if not any(x in other.reads() for other in result):
            producer.args["y"] = None
    return result


def add_in_matmul(ops: list[Op]) -> list[Op]:
    """y = W h, then x + y where x is not used again: the product accumulates into x."""
    result = list(ops)
    for op in ops:
        if op.kind != "add" or op.args["scale"] != 1.0 or op.args["b_scale"] != 1.0:
            continue
        at = result.index(op)
        x, y = op.args["a"], op.args["b"]
        if y is None or x is y or _readers(result, x, at + 1) or _readers(result, y, at + 1):
            continue
        product = next((p for p in reversed(result[:at]) if y in p.writes()), None)
        if product is None or product.kind != "matmul" or product.args["accumulate"]:
            continue
        between = result[result.index(product) + 1 : at]
        if any(y in other.reads() or x in other.writes() or x in other.reads() for other in between):
            continue
        _result_becomes(result, op, x)
        product.args["y"], product.args["accumulate"] = x, 1
        result.remove(op)
    return result


def add_in_norm(ops: list[Op]) -> list[Op]:
    """x + norm(y) where x is not used again: the norm adds the residual, in place."""
    result = list(ops)
    for op in ops:
        if op.kind != "add" or op.args["scale"] != 1.0 or op.args["b_scale"] != 1.0:
            continue
        at = result.index(op)
        x, y = op.args["a"], op.args["b"]
        norm = result[at - 1]
        if norm.kind != "norm" or norm.args["y"] is not y or norm.args.get("residual") or norm.args.get("q") or norm.args["gather"]:
            continue
        if x is y or x is norm.args["x"] or _readers(result, x, at + 1) or _readers(result, y, at + 1):
            continue
        _result_becomes(result, op, x)
        norm.args["residual"], norm.args["y"] = x, x
        result.remove(op)
    return result


def _result_becomes(ops: list[Op], add: Op, buffer: Buffer) -> None:
    """Everything after `add` that used its result uses `buffer`."""
    total = add.args["y"]
    for other in ops[ops.index(add) + 1 :]:
        other.replace(total, buffer)


PATTERNS = (add_in_matmul, add_in_norm, quantize_in_producer)


def fuse(ops: list[Op], patterns=PATTERNS) -> list[Op]:
    for pattern in patterns:
        ops = pattern(ops)
    return ops
