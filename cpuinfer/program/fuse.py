"""Peephole patterns over a list of ops. Each is a function ops -> ops that changes nothing but speed, and can be left out."""

from __future__ import annotations

from collections import defaultdict

from .ops import Buffer, Op


class _Sequence:
    """Ops in order, some of them removed, with the ops that touch a buffer at hand."""

    def __init__(self, ops: list[Op]):
        self.place = {op: i for i, op in enumerate(ops)}
        self.ops = list(ops)
        self._touching: dict[Buffer, list[Op]] = defaultdict(list)
        for op in ops:
            for buffer in {value for value in op.args.values() if isinstance(value, Buffer)}:
                self._touching[buffer].append(op)

    def touching(self, buffer: Buffer, after: int = -1, before: int | None = None) -> list[Op]:
        """Ops that use the buffer, with a place between the two, both exclusive."""
        end = len(self.ops) if before is None else before
        return [op for op in self._touching[buffer] if op in self.place and after < self.place[op] < end]

    def is_read(self, buffer: Buffer, after: int = -1) -> bool:
        return any(buffer in op.reads() for op in self.touching(buffer, after))

    def producer(self, buffer: Buffer, before: int) -> Op | None:
        """The last op before a place that writes the buffer."""
        writers = [op for op in self.touching(buffer, before=before) if buffer in op.writes()]
        return max(writers, key=self.place.__getitem__, default=None)

    def previous(self, place: int) -> Op | None:
        while place:
            place -= 1
            if self.ops[place] in self.place:
                return self.ops[place]
        return None

    def remove(self, op: Op) -> None:
        del self.place[op]

    def replace(self, old: Buffer, new: Buffer, after: int) -> None:
        """Use `new` wherever `old` is used after a place."""
        for op in self.touching(old, after):
            op.replace(old, new)
            self._touching[new].append(op)

    def write(self, op: Op, name: str, buffer: Buffer) -> None:
        """Let an op's argument be this buffer."""
        op.args[name] = buffer
        self._touching[buffer].append(op)

    def rest(self) -> list[Op]:
        return [op for op in self.ops if op in self.place]


def quantize_in_producer(ops: list[Op]) -> list[Op]:
    """norm or activate, then quantize of its result: the producer writes Q8 itself, and no f32 if nobody else reads that."""
    sequence = _Sequence(ops)
    for op in ops:
        if op.kind != "quantize":
            continue
        x = op.args["x"]
        producer = sequence.producer(x, sequence.place[op])
        if producer is None or producer.kind not in ("norm", "activate") or producer.args.get("q") is not None:
            continue
        sequence.write(producer, "q", op.args["q"])
        sequence.remove(op)
        if not sequence.is_read(x):
            producer.args["y"] = None
    return sequence.rest()


def add_in_matmul(ops: list[Op]) -> list[Op]:
    """y = W h, then x + y where x is not used again: the product accumulates into x."""
    sequence = _Sequence(ops)
    for op in ops:
        if op.kind != "add" or op.args["scale"] != 1.0 or op.args["b_scale"] != 1.0:
            continue
        at = sequence.place[op]
        x, y = op.args["a"], op.args["b"]
        if y is None or x is y or sequence.is_read(x, at) or sequence.is_read(y, at):
            continue
        product = sequence.producer(y, at)
        if product is None or product.kind != "matmul" or product.args["accumulate"]:
            continue
        start = sequence.place[product]
        if sequence.touching(x, start, at) or any(y in other.reads() for other in sequence.touching(y, start, at)):
            continue
        sequence.replace(op.args["y"], x, at)
        sequence.write(product, "y", x)
        product.args["accumulate"] = 1
        sequence.remove(op)
    return sequence.rest()


def add_in_norm(ops: list[Op]) -> list[Op]:
    """x + norm(y) where x is not used again: the norm adds the residual, in place."""
    sequence = _Sequence(ops)
    for op in ops:
        if op.kind != "add" or op.args["scale"] != 1.0 or op.args["b_scale"] != 1.0:
            continue
        at = sequence.place[op]
        x, y = op.args["a"], op.args["b"]
        norm = sequence.previous(at)
        if norm is None or norm.kind != "norm" or norm.args["y"] is not y or norm.args.get("residual") or norm.args.get("q") or norm.args["gather"]:
            continue
        if x is y or x is norm.args["x"] or sequence.is_read(x, at) or sequence.is_read(y, at):
            continue
        sequence.replace(op.args["y"], x, at)
        sequence.write(norm, "y", x)
        norm.args["residual"] = x
        sequence.remove(op)
    return sequence.rest()


PATTERNS = (add_in_matmul, add_in_norm, quantize_in_producer)


def fuse(ops: list[Op], patterns=PATTERNS) -> list[Op]:
    for pattern in patterns:
        ops = pattern(ops)
    return ops
