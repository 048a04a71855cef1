"""Small matrices of float32 that live in registers: what attention is made of.

A tile has a fixed number of rows, each one or more f32x16. Like tiles.py's, it is a Numba value whose data model is an LLVM array of vectors, so ordinary kernel code
carries it through loops. `tile_operations(rows, vectors)` gives the operations of one size.
"""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from .isa.generic import call, splat
from .vectors import Address, f32, f32x8, f32x16, i32


class FloatTile(types.Type):
    def __init__(self, rows: int, vectors: int):
        super().__init__(name=f"FloatTile({rows}, {vectors})")
        self.rows, self.vectors = rows, vectors


@register_model(FloatTile)
class FloatTileModel(models.PrimitiveModel):
    def __init__(self, manager, frontend_type):
        super().__init__(manager, frontend_type, ir.ArrayType(f32x16.ir, frontend_type.rows * frontend_type.vectors))


def tile_operations(rows: int, vectors: int) -> SimpleNamespace:
    """Intrinsics on a tile of rows x vectors f32x16; strides are in bytes. See the docstring of each."""
    tile, count = FloatTile(rows, vectors), rows * vectors
    places = [(r, v) for r in range(rows) for v in range(vectors)]

    def pack(builder, values):
        result = ir.Constant(ir.ArrayType(f32x16.ir, count), ir.Undefined)
        for i, value in enumerate(values):
            result = builder.insert_value(result, value, i)
        return result

    def unpack(builder, value):
        return [builder.extract_value(value, i) for i in range(count)]

    @intrinsic
    def zero(typingctx):
        """A tile of zeros."""
        return tile(), lambda c, b, s, a: ir.Constant(ir.ArrayType(f32x16.ir, count), [splat(f32x16.ir, 0.0)] * count)

    @intrinsic
    def load_scaled(typingctx, address, factors):
        """f32[rows, vectors, 16] at an address, each row times the f32[vectors, 16] at `factors`."""

        def codegen(c, b, s, a):
            scales = [_load(b, a[1], f32x16.ir, 64 * v) for v in range(vectors)]
            return pack(b, [b.fmul(_load(b, a[0], f32x16.ir, 64 * (r * vectors + v)), scales[v]) for r, v in places])

        return tile(Address, Address), codegen

    @intrinsic
    def load_rows_scaled(typingctx, address, stride, factors):
        """Rows of f32[vectors, 16], `stride` apart; row r times the scalar at factors + 4 r."""

        def codegen(c, b, s, a):
            values = []
            for r, v in places:
                scale = _broadcast(b, _load(b, a[2], f32, 4 * r))
                values.append(b.fmul(_load(b, _step(b, a[0], a[1], r), f32x16.ir, 64 * v), scale))
            return pack(b, values)

        return tile(Address, Address, Address), codegen

    @intrinsic
    def store_rows(typingctx, value, address, stride):
        """Rows of f32[vectors, 16] to an address, `stride` apart."""

        def codegen(c, b, s, a):
            for (r, v), part in zip(places, unpack(b, a[0])):
                _store(b, part, _step(b, a[1], a[2], r), 64 * v)
            return c.get_dummy_value()

        return types.void(tile, Address, Address), codegen

    @intrinsic
    def outer(typingctx, value, vector, x, x_stride):
        """Row r += (f32[vectors, 16] at `vector`) * (the scalar at x + r * x_stride)."""

        def codegen(c, b, s, a):
            parts = [_load(b, a[1], f32x16.ir, 64 * v) for v in range(vectors)]
            return pack(b, _outer(b, unpack(b, a[0]), parts, a[2], a[3]))

        return tile(tile, Address, Address, Address), codegen

    @intrinsic
    def outer_by_value(typingctx, value, vector, x, x_stride):
        """The same for one vector that is at hand; only for tiles of one vector a row."""
        assert vectors == 1
        return tile(tile, f32x16, Address, Address), lambda c, b, s, a: pack(b, _outer(b, unpack(b, a[0]), [a[1]], a[2], a[3]))

    def _outer(b, values, parts, x, stride):
        scalars = [_broadcast(b, _load(b, _step(b, x, stride, r), f32)) for r in range(rows)]
        return [_fma(b, parts[v], scalars[r], old) for (r, v), old in zip(places, values)]

    @intrinsic
    def inner(typingctx, value, vector, x, x_stride):
        """Row r += vector * (f32x16 at x + r * x_stride); only for tiles of one vector a row."""
        assert vectors == 1

        def codegen(c, b, s, a):
            others = [_load(b, _step(b, a[2], a[3], r), f32x16.ir) for r in range(rows)]
            return pack(b, [_fma(b, a[1], other, old) for other, old in zip(others, unpack(b, a[0]))])

        return tile(tile, f32x16, Address, Address), codegen

    @intrinsic
    def store_folded(typingctx, value, address, stride):
        """Lanes 0-7 plus lanes 8-15 of each row, f32x8, to an address, `stride` apart; only for tiles of one vector a row."""
        assert vectors == 1

        def codegen(c, b, s, a):
            for r, part in enumerate(unpack(b, a[0])):
                low, high = (b.shuffle_vector(part, part, _order(range(k, k + 8))) for k in (0, 8))
                _store(b, b.fadd(low, high), _step(b, a[1], a[2], r))
            return c.get_dummy_value()

        return types.void(tile, Address, Address), codegen

    names = "zero load_scaled load_rows_scaled store_rows outer outer_by_value inner store_folded"
    found = locals()
    return SimpleNamespace(**{name: found[name] for name in names.split()})


@intrinsic
def sums_of_eight(typingctx, address):
    """f32[8, 8] at an address -> f32x8 of the rows' sums. Neighbours are added within 128 bits first, as AVX2 shuffles."""

    def codegen(c, b, s, a):
        rows = [_load(b, a[0], f32x8.ir, 32 * r) for r in range(8)]
        for first, second in (
            ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]),
            ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
            ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
        ):
            pairs = zip(rows[::2], rows[1::2])
            rows = [b.fadd(b.shuffle_vector(x, y, _order(first)), b.shuffle_vector(x, y, _order(second))) for x, y in pairs]
        return rows[0]

    return f32x8(Address), codegen


def _order(indices):
    indices = list(indices)
    return ir.Constant(ir.VectorType(i32, len(indices)), indices)


def _step(builder, address, stride, times: int):
    return address if times == 0 else builder.add(address, builder.mul(stride, ir.Constant(stride.type, times)))


def _load(builder, address, element, offset: int = 0):
    address = builder.add(address, ir.Constant(address.type, offset))
    value = builder.load(builder.inttoptr(address, ir.PointerType(element)), typ=element)
    value.align = 1
    return value


def _store(builder, value, address, offset: int = 0):
    address = builder.add(address, ir.Constant(address.type, offset))
    builder.store(value, builder.inttoptr(address, ir.PointerType(value.type))).align = 1


def _broadcast(builder, scalar):
    one = builder.insert_element(ir.Constant(f32x16.ir, ir.Undefined), scalar, ir.Constant(i32, 0))
    return builder.shuffle_vector(one, one, _order([0] * 16))


def _fma(builder, x, y, z):
    return call(builder, "llvm.fma.v16f32", f32x16.ir, [x, y, z])
