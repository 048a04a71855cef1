"""Register tiles: the inner loop of a matrix product over many tokens, emitted as straight-line code of a size that the ISA chooses.

A tile is TILES * 16 rows by TOKENS tokens of f32 sums. It is a Numba value whose data model is an LLVM array of vectors, so that ordinary kernel code carries
it through a loop and LLVM keeps its parts in registers. Panels hold weights so that one vector has four consecutive codes of each of 16 rows:

    codes   u8[columns/4, TILES, 16, 4]      scales, minimums   f32[columns/group, TILES, 16]
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from . import isa as _isa
from .isa.generic import call, splat
from .vectors import Address, f32, f32x16, i32, u8x64


def shape() -> tuple[int, int]:
    """(tiles of 16 rows, tokens) of the register tile in use."""
    current = _isa.get(_isa.current())
    return current.tiles, current.tokens


TILES, TOKENS = shape()


class Tile(types.Type):
    def __init__(self):
        super().__init__(name="Tile")


@register_model(Tile)
class TileModel(models.PrimitiveModel):
    def __init__(self, manager, frontend_type):
        super().__init__(manager, frontend_type, ir.ArrayType(f32x16.ir, TILES * TOKENS))


tile_type = Tile()


def _load(builder, address, element, offset=0):
    if offset:
        address = builder.add(address, ir.Constant(address.type, offset))
    value = builder.load(builder.inttoptr(address, ir.PointerType(element)), typ=element)
    value.align = 1
    return value


def _broadcast(builder, scalar, lanes):
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(i32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))


def _times(builder, value, count):
    return builder.mul(value, ir.Constant(value.type, count))


@intrinsic
def tile_zero(typingctx):
    return tile_type(), lambda c, b, s, a: ir.Constant(ir.ArrayType(f32x16.ir, TILES * TOKENS), [splat(f32x16.ir, 0.0)] * (TILES * TOKENS))


@intrinsic(prefer_literal=True)
def tile_group(typingctx, tile, codes, scales, minimums, x, x_scales, x_sums, group, zero, has_minimum, largest_code):
    """Add one group of 16 or 32 columns to a tile of Q8 activations.

    codes, scales, minimums: the panel's addresses at this group. x, x_scales, x_sums: addresses of the activations' tile at this group: i8[group/4, TOKENS, 4],
    f32[TOKENS], f32[TOKENS] (sums over the group). The last four arguments are literals of the format.
    """
    columns, minus = group.literal_value, -float(zero.literal_value)
    affine, largest = has_minimum.literal_value, largest_code.literal_value
    signature = tile_type(tile_type, *[Address] * 6, group, zero, has_minimum, largest_code)

    def codegen(context, b, _, a):
        sums = [b.extract_value(a[0], i) for i in range(TILES * TOKENS)]
        current = _isa.get(_isa.current())
        dots = [current.dot_steps(b, largest) for _ in sums]
        for k in range(columns // 4):
            weights = [_load(b, a[1], u8x64.ir, 64 * (k * TILES + r)) for r in range(TILES)]
            for i in range(TOKENS):
                four = b.bitcast(_broadcast(b, _load(b, a[4], i32, 4 * (k * TOKENS + i)), 16), u8x64.ir)
                for r in range(TILES):
                    dots[r * TOKENS + i].step(weights[r], four)
        row_scales = [_load(b, a[2], f32x16.ir, 64 * r) for r in range(TILES)]
        row_minimums = [_load(b, a[3], f32x16.ir, 64 * r) for r in range(TILES)] if affine else None
        for i in range(TOKENS):
            scale = _broadcast(b, _load(b, a[5], f32, 4 * i), 16)
            if affine or minus:
                total = _load(b, a[6], f32, 4 * i)
                total = _broadcast(b, b.fmul(total, ir.Constant(f32, minus)) if minus else total, 16)
            for r in range(TILES):
                n = r * TOKENS + i
                dot = b.sitofp(dots[n].total(), f32x16.ir)
                if minus:
                    dot = _fma(b, dot, scale, total)
                    sums[n] = _fma(b, dot, row_scales[r], sums[n])
                else:
                    sums[n] = _fma(b, dot, b.fmul(row_scales[r], scale), sums[n])
                if affine:
                    sums[n] = _fma(b, row_minimums[r], total, sums[n])
        return _pack(b, sums)

    return signature, codegen


@intrinsic
def tile_columns_f32(typingctx, tile, weights, x, x_stride):
    """Add four columns to a tile of float weights. weights: f32[4, TILES, 16]; x: address of the first token's four f32; x_stride in bytes."""

    def codegen(context, b, _, a):
        sums = [b.extract_value(a[0], i) for i in range(TILES * TOKENS)]
        for k in range(4):
            rows = [_load(b, a[1], f32x16.ir, 64 * (k * TILES + r)) for r in range(TILES)]
            for i in range(TOKENS):
                value = _broadcast(b, _load(b, b.add(a[2], _times(b, a[3], i)), f32, 4 * k), 16)
                for r in range(TILES):
                    sums[r * TOKENS + i] = _fma(b, rows[r], value, sums[r * TOKENS + i])
        return _pack(b, sums)

    return tile_type(tile_type, Address, Address, Address), codegen


@intrinsic
def tile_store(typingctx, tile, address):
    """Write a tile as f32[TOKENS, TILES * 16]."""

    def codegen(context, b, _, a):
        for r in range(TILES):
            for i in range(TOKENS):
                target = b.add(a[1], ir.Constant(a[1].type, 64 * (i * TILES + r)))
                b.store(b.extract_value(a[0], r * TOKENS + i), b.inttoptr(target, ir.PointerType(f32x16.ir))).align = 1
        return context.get_dummy_value()

    return types.void(tile_type, Address), codegen


@intrinsic
def transpose_8x8(typingctx, source, source_stride, target, target_stride):
    """Eight rows of eight 4-byte elements at `source` -> `target`, rows become columns; the strides are in bytes."""

    def codegen(context, b, _, a):
        row = ir.VectorType(i32, 8)
        rows = [_load(b, b.add(a[0], _times(b, a[1], i)), row) for i in range(8)]

        def pairs(order, distance):
            index = ir.Constant(row, order)
            result = list(rows)
            for i in range(8):
                if not i & distance:
                    result[i] = b.shuffle_vector(rows[i], rows[i | distance], index)
                    high = ir.Constant(row, [n + (1 if distance == 1 else 2 if distance == 2 else 4) for n in order])
                    result[i | distance] = b.shuffle_vector(rows[i], rows[i | distance], high)
            return result

        rows = pairs([0, 8, 2, 10, 4, 12, 6, 14], 1)
        rows = pairs([0, 1, 8, 9, 4, 5, 12, 13], 2)
        rows = pairs([0, 1, 2, 3, 8, 9, 10, 11], 4)
        for i in range(8):
            address = b.add(a[2], _times(b, a[3], i))
            b.store(rows[i], b.inttoptr(address, ir.PointerType(row))).align = 1
        return context.get_dummy_value()

    return types.void(*[Address] * 4), codegen


def _fma(builder, x, y, z):
    return call(builder, "llvm.fma.v16f32", f32x16.ir, [x, y, z])


def _pack(builder, values):
    result = ir.Constant(ir.ArrayType(f32x16.ir, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        result = builder.insert_value(result, value, i)
    return result
