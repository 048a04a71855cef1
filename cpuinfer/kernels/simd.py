"""The SIMD vocabulary: what kernels and formats are written in. Ordinary Python in Numba, one call an operation.

Conventions: addresses are int64 byte addresses; vectors are the types of `vectors.py`; loads and stores need no alignment. Arithmetic is polymorphic over the vector
types (`add`, `mul`, `fma`, ...). Factories that need constants (`shuffle`, `constant`) are called at module level and give a new operation.
What differs between ISAs goes through `isa.get(...)` while a kernel is compiled; there is no `if isa` here or in any kernel.
"""

from __future__ import annotations

import hashlib

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from . import isa as _isa
from .isa.generic import call as _call
from .isa.generic import splat as _constant_splat
from .vectors import Address, Vector, f32, f32x8, f32x16, i8, i16, i16x16, i16x32, i32, i32x16, i64, u8x16, u8x32, u8x64

INTEGER, REAL = types.int64, types.float32


def _current():
    return _isa.get(_isa.current())


# ---- memory ----------------------------------------------------------------------------------------------------------------------------


def _pointer(builder, address, element):
    return builder.inttoptr(address, ir.PointerType(element))


def _load(builder, address, element, align=1):
    value = builder.load(_pointer(builder, address, element), typ=element)
    value.align = align
    return value


def _loader(result, element, convert=lambda builder, value: value):
    @intrinsic
    def load(typingctx, address):
        return result(Address), lambda c, b, s, a: convert(b, _load(b, a[0], element))

    return load


def _sext(builder, value):
    return builder.sext(value, i64)


def _zext(builder, value):
    return builder.zext(value, i64)


def _bf16_to_f32(builder, bits):
    lanes = bits.type.count
    wide = ir.VectorType(i32, lanes)
    return builder.bitcast(builder.shl(builder.zext(bits, wide), _constant_splat(wide, 16)), ir.VectorType(f32, lanes))


def _half_scalar(builder, bits):
    one = builder.insert_element(_constant_splat(ir.VectorType(i16, 4), 0), bits, ir.Constant(i32, 0))
    return builder.extract_element(_current().f16_to_f32(builder, one), ir.Constant(i32, 0))


load_u8x16, load_u8x32, load_u8x64 = (_loader(v, v.ir) for v in (u8x16, u8x32, u8x64))
load_i16x16, load_i16x32, load_i32x16, load_f32x8, load_f32x16 = (_loader(v, v.ir) for v in (i16x16, i16x32, i32x16, f32x8, f32x16))
load_f16x16 = _loader(f32x16, i16x16.ir, lambda b, v: _current().f16_to_f32(b, v))  # 16 halves -> f32x16
load_bf16x16 = _loader(f32x16, i16x16.ir, _bf16_to_f32)
load_u8, load_u16, load_u32 = (_loader(INTEGER, t, _zext) for t in (i8, i16, i32))
load_i8, load_i16, load_i32 = (_loader(INTEGER, t, _sext) for t in (i8, i16, i32))
load_i64 = _loader(INTEGER, i64)
load_f32 = _loader(REAL, f32)
load_f64 = _loader(types.float64, ir.DoubleType())
load_f16 = _loader(REAL, i16, _half_scalar)


def _storer(frontend, element, convert=lambda builder, value: value):
    @intrinsic
    def store(typingctx, address, value):
        def codegen(c, b, s, a):
            b.store(convert(b, a[1]), _pointer(b, a[0], element)).align = 1
            return c.get_dummy_value()

        return types.void(Address, frontend), codegen

    return store


store_u8x16, store_u8x32, store_u8x64 = (_storer(v, v.ir) for v in (u8x16, u8x32, u8x64))
store_i16x16, store_i16x32, store_i32x16, store_f32x8, store_f32x16 = (_storer(v, v.ir) for v in (i16x16, i16x32, i32x16, f32x8, f32x16))
store_f16x16 = _storer(f32x16, i16x16.ir, lambda b, v: _current().f32_to_f16(b, v))  # f32x16 -> 16 halves
store_f32 = _storer(REAL, f32)
store_i64 = _storer(INTEGER, i64)
store_i32, store_u8 = (_storer(INTEGER, t, lambda b, v, t=t: b.trunc(v, t)) for t in (i32, i8))


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at an address; never faults."""

    def codegen(c, b, s, a):
        _call(b, "llvm.prefetch.p0", ir.VoidType(), [_pointer(b, a[0], i8)] + [ir.Constant(i32, k) for k in (0, 3, 1)])
        return c.get_dummy_value()

    return types.void(Address), codegen


# ---- strided fields of eight blocks ---------------------------------------------------------------------------------------------------


@intrinsic
def gather_f16(typingctx, address, stride):
    """The half at `address` and seven more, `stride` bytes apart -> f32x8."""

    def codegen(c, b, s, a):
        bits = ir.Constant(ir.VectorType(i16, 8), [0] * 8)
        for k in range(8):
            half = _load(b, b.add(a[0], b.mul(a[1], ir.Constant(i64, k))), i16)
            bits = b.insert_element(bits, half, ir.Constant(i32, k))
        return _current().f16_to_f32(b, bits)

    return f32x8(Address, INTEGER), codegen


@intrinsic
def gather_f16_pairs(typingctx, address, stride):
    """Two neighbouring halves at `address` and seven more such pairs, `stride` bytes apart -> (f32x8 of the first, f32x8 of the second)."""

    def codegen(c, b, s, a):
        # In this order two in-lane shuffles separate the pairs (AVX2's shuffles work within 128 bits).
        quads = []
        for order in ((0, 1, 4, 5), (2, 3, 6, 7)):
            bits = ir.Constant(ir.VectorType(i32, 4), [0] * 4)
            for lane_index, k in enumerate(order):
                pair = _load(b, b.add(a[0], b.mul(a[1], ir.Constant(i64, k))), i32)
                bits = b.insert_element(bits, pair, ir.Constant(i32, lane_index))
            quads.append(_current().f16_to_f32(b, b.bitcast(bits, ir.VectorType(i16, 8))))
        index = ir.VectorType(i32, 8)
        first = b.shuffle_vector(*quads, ir.Constant(index, [0, 2, 8, 10, 4, 6, 12, 14]))
        second = b.shuffle_vector(*quads, ir.Constant(index, [1, 3, 9, 11, 5, 7, 13, 15]))
        return c.make_tuple(b, s.return_type, [first, second])

    return types.UniTuple(f32x8, 2)(Address, INTEGER), codegen


@intrinsic
def gather_u8(typingctx, address, stride):
    """The byte at `address` and seven more, `stride` bytes apart -> lanes 0-7 of i32x16, without sign; the other lanes are 0."""

    def codegen(c, b, s, a):
        result = ir.Constant(i32x16.ir, [0] * 16)
        for k in range(8):
            byte = _load(b, b.add(a[0], b.mul(a[1], ir.Constant(i64, k))), i8)
            result = b.insert_element(result, b.zext(byte, i32), ir.Constant(i32, k))
        return result

    return i32x16(Address, INTEGER), codegen


# ---- making vectors --------------------------------------------------------------------------------------------------------------------


def _splat(builder, value, lanes):
    vector = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(i32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))


def _splatter(vector):
    @intrinsic
    def splat(typingctx, value):
        def codegen(c, b, s, a):
            scalar = a[0] if vector.is_float else b.trunc(a[0], vector.element)
            return _splat(b, scalar, vector.lanes)

        return vector(vector.scalar), codegen

    return splat


splat_u8x16, splat_u8x32, splat_u8x64, splat_i16x32, splat_i32x16, splat_f32x8, splat_f32x16 = (_splatter(v) for v in (u8x16, u8x32, u8x64, i16x32, i32x16, f32x8, f32x16))


def _broadcaster(result, element):
    @intrinsic
    def broadcast(typingctx, address):
        lanes = result.ir.count * result.element.width // 32 if result.element in (i8, i16) else result.lanes
        return result(Address), lambda c, b, s, a: b.bitcast(_splat(b, _load(b, a[0], element), lanes), result.ir)

    return broadcast


broadcast_4bytes = _broadcaster(u8x64, i32)  # the same 4 bytes in every i32 lane
broadcast_i32, broadcast_f32 = _broadcaster(i32x16, i32), _broadcaster(f32x16, f32)


def constant(vector: Vector, values):
    """An operation without arguments that gives this constant vector: `ONES = constant(u8x64, [1] * 64)`, then `ONES()`."""
    values = [float(v) if vector.is_float else int(v) for v in values]
    assert len(values) == vector.lanes

    @intrinsic
    def make(typingctx):
        return vector(), lambda c, b, s, a: ir.Constant(vector.ir, values)

    return make


zero_u8x64, zero_i32x16, zero_f32x8, zero_f32x16 = (constant(v, [0] * v.lanes) for v in (u8x64, i32x16, f32x8, f32x16))


def _spread(parts):
    """f32x16 whose 16/parts lanes each hold one of `parts` scalars."""
    order = [lane * parts // 16 for lane in range(16)]

    def build(builder, scalars):
        vector = ir.VectorType(f32, parts)
        value = ir.Constant(vector, ir.Undefined)
        for i, scalar in enumerate(scalars):
            value = builder.insert_element(value, scalar, ir.Constant(i32, i))
        return builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(i32, 16), order))

    return build


@intrinsic
def halves(typingctx, low, high):
    """f32x16: `low` in lanes 0-7 (weights 0-31 of a strip), `high` in lanes 8-15."""
    return f32x16(REAL, REAL), lambda c, b, s, a: _spread(2)(b, a)


@intrinsic
def quarters(typingctx, first, second, third, fourth):
    """f32x16: four scalars, each in four lanes (16 weights of a strip)."""
    return f32x16(REAL, REAL, REAL, REAL), lambda c, b, s, a: _spread(4)(b, a)


@intrinsic
def bytes_of(typingctx, low, high):
    """u8x16: the bytes of two integers, lowest first."""

    def codegen(c, b, s, a):
        pair = ir.Constant(ir.VectorType(i64, 2), ir.Undefined)
        for i in range(2):
            pair = b.insert_element(pair, a[i], ir.Constant(i32, i))
        return b.bitcast(pair, u8x16.ir)

    return u8x16(INTEGER, INTEGER), codegen


@intrinsic
def power_of_two(typingctx, exponent):
    """2**exponent as a float, exponent in -128..127 (below -126 it is subnormal)."""

    def codegen(c, b, s, a):
        field = b.add(b.trunc(a[0], i32), ir.Constant(i32, 127))
        normal = b.shl(field, ir.Constant(i32, 23))
        subnormal = b.shl(ir.Constant(i32, 1 << 21), b.and_(b.add(field, ir.Constant(i32, 1)), ir.Constant(i32, 31)))
        is_small = b.icmp_signed("<", field, ir.Constant(i32, 1))
        return b.bitcast(b.select(is_small, subnormal, normal), f32)

    return REAL(INTEGER), codegen


@intrinsic
def f16_of_bits(typingctx, bits):
    """The half whose bits are the integer's low 16, as a float."""
    return REAL(INTEGER), lambda c, b, s, a: _half_scalar(b, b.trunc(a[0], i16))


@intrinsic
def mask_of_bits(typingctx, bits):
    """u8x32: 255 in the lanes whose bit of the integer's low 32 is set, else 0."""

    def codegen(c, b, s, a):
        # Each byte to eight lanes, where each looks at its own bit. Left to itself, LLVM takes the bits out one by one.
        copies = b.bitcast(_splat(b, b.trunc(a[0], i32), 8), u8x32.ir)
        spread = b.shuffle_vector(copies, copies, ir.Constant(ir.VectorType(i32, 32), [i // 8 for i in range(32)]))
        own = ir.Constant(u8x32.ir, [1 << i % 8 for i in range(32)])
        return b.sext(b.icmp_unsigned("==", b.and_(spread, own), own), u8x32.ir)

    return u8x32(INTEGER), codegen


def shuffle(source: Vector, result: Vector, order, operands: int = 1):
    """An operation of one or two `source` vectors: lane i of the result is lane order[i] of the (concatenated) operands."""
    assert len(order) == result.lanes and max(order) < operands * source.lanes and source.element == result.element
    index = ir.Constant(ir.VectorType(i32, result.lanes), [int(i) for i in order])
    if operands == 1:

        @intrinsic
        def permute(typingctx, x):
            return result(source), lambda c, b, s, a: b.shuffle_vector(a[0], ir.Constant(source.ir, ir.Undefined), index)

        return permute

    @intrinsic
    def permute_two(typingctx, x, y):
        return result(source, source), lambda c, b, s, a: b.shuffle_vector(a[0], a[1], index)

    return permute_two


each_twice = shuffle(f32x8, f32x16, [i // 2 for i in range(16)])
low_f32x8, high_f32x8 = shuffle(f32x16, f32x8, range(8)), shuffle(f32x16, f32x8, range(8, 16))
join_u8x16 = shuffle(u8x16, u8x32, range(32), operands=2)
join_u8x32 = shuffle(u8x32, u8x64, range(64), operands=2)
twice_u8x16, twice_u8x32 = shuffle(u8x16, u8x32, [*range(16)] * 2), shuffle(u8x32, u8x64, [*range(32)] * 2)
low_u8x32, high_u8x32 = shuffle(u8x64, u8x32, range(32)), shuffle(u8x64, u8x32, range(32, 64))


_SPLIT_NIBBLES = shuffle(u8x16, u8x64, [*range(16)] * 2 + [*range(16, 32)] * 2, operands=2)
_NIBBLE_SHIFTS = constant(i32x16, ([0] * 4 + [4] * 4) * 2)
_FIFTEENS = constant(u8x64, [15] * 64)


@register_jitable
def nibbles_of_two_blocks(first, second):
    """u8x16 of two blocks -> 64 codes: low nibbles of the first, its high ones, then those of the second."""
    # Shifted as i32 lanes, what comes in from a neighbour byte is masked off; machines cannot shift bytes by lane.
    return and_(as_u8x64(shift_right_each(as_i32x16(_SPLIT_NIBBLES(first, second)), _NIBBLE_SHIFTS())), _FIFTEENS())


def table(rows):
    """An operation that looks up rows of u1[n, d], d 4 or 8: a tuple of 64 // d indices -> u8x64 of these rows one after the other.

    The rows lie in the kernel's read-only data. An index is not checked: it must be below n.
    """
    rows = np.ascontiguousarray(rows).view(np.uint8)
    width = rows.shape[1]
    element, count, numbers = ir.IntType(8 * width), 64 // width, rows.view(f"<u{width}").reshape(-1)
    data = ir.Constant(ir.ArrayType(element, len(numbers)), [int(n) for n in numbers])
    name = f"table_{hashlib.sha256(rows).hexdigest()[:16]}_{width}"

    @intrinsic
    def look_up(typingctx, indices):
        if not isinstance(indices, types.UniTuple) or indices.count != count or not isinstance(indices.dtype, types.Integer):
            return None

        def codegen(c, b, s, a):
            if name not in b.module.globals:
                variable = ir.GlobalVariable(b.module, data.type, name)
                variable.linkage, variable.global_constant, variable.initializer = "internal", True, data
            start = b.ptrtoint(b.module.globals[name], i64)
            result = ir.Constant(ir.VectorType(element, count), ir.Undefined)
            for k in range(count):
                index = c.cast(b, b.extract_value(a[0], k), indices.dtype, INTEGER)
                row = _load(b, b.add(start, b.mul(index, ir.Constant(i64, width))), element, align=width)
                result = b.insert_element(result, row, ir.Constant(i32, k))
            return b.bitcast(result, u8x64.ir)

        return u8x64(indices), codegen

    return look_up


# ---- arithmetic, any vector type -------------------------------------------------------------------------------------------------------


def _binary(integer: str, real: str | None = None):
    @intrinsic
    def operation(typingctx, x, y):
        if not isinstance(x, Vector) or x != y or (x.is_float and real is None):
            return None
        name = real if x.is_float else integer
        return x(x, x), lambda c, b, s, a: getattr(b, name)(a[0], a[1])

    return operation


add, sub, mul = _binary("add", "fadd"), _binary("sub", "fsub"), _binary("mul", "fmul")
and_, or_, xor = _binary("and_"), _binary("or_"), _binary("xor")
shift_left_each, shift_right_each = _binary("shl"), _binary("lshr")  # by lane: y lanes must be below the element's width
divide = _binary("udiv", "fdiv")


def _by_constant(name):
    @intrinsic(prefer_literal=True)
    def operation(typingctx, x, count):
        if not isinstance(x, Vector) or not isinstance(count, types.IntegerLiteral):
            return None
        value = count.literal_value
        return x(x, count), lambda c, b, s, a: getattr(b, name)(a[0], _constant_splat(x.ir, value))

    return operation


shift_left, shift_right = _by_constant("shl"), _by_constant("lshr")  # every lane by a literal count, zeros come in
and_constant = _by_constant("and_")


def _minmax(name):
    @intrinsic
    def operation(typingctx, x, y):
        if not isinstance(x, Vector) or x != y:
            return None
        if x.is_float:  # compare and select is one instruction; llvm.maxnum's NaN rules cost three

            def codegen(c, b, s, a):
                return b.select(b.fcmp_ordered(">" if name == "max" else "<", a[0], a[1]), a[0], a[1])

            return x(x, x), codegen
        llvm = f"llvm.s{name}.v{x.lanes}i{x.element.width}"
        return x(x, x), lambda c, b, s, a: _call(b, llvm, x.ir, list(a))

    return operation


maximum, minimum = _minmax("max"), _minmax("min")  # signed for integers; the second operand where one is NaN


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    if x not in (f32x8, f32x16) or not x == y == z:
        return None
    return x(x, x, x), lambda c, b, s, a: _call(b, f"llvm.fma.v{x.lanes}f32", x.ir, list(a))


@intrinsic
def absolute(typingctx, x):
    """|x| of f32x16."""
    return f32x16(f32x16), lambda c, b, s, a: _call(b, "llvm.fabs.v16f32", f32x16.ir, list(a))


@intrinsic
def to_f32(typingctx, x):
    """i32x16 -> f32x16."""
    return f32x16(i32x16), lambda c, b, s, a: b.sitofp(a[0], f32x16.ir)


@intrinsic
def round_to_i32(typingctx, x):
    """f32x16 -> i32x16, to nearest, ties to even. |x| must be below 2**22."""

    def codegen(c, b, s, a):
        # Adding 1.5 * 2**23 leaves the rounded integer in the low mantissa bits: two cheap instructions everywhere.
        shifted = b.fadd(a[0], _constant_splat(f32x16.ir, 12582912.0))
        return b.sub(b.bitcast(shifted, i32x16.ir), _constant_splat(i32x16.ir, 0x4B400000))

    return i32x16(f32x16), codegen


@intrinsic
def f16_of_f32(typingctx, x):
    """f32x16 rounded to half precision, as f32x16."""
    return f32x16(f32x16), lambda c, b, s, a: _current().f16_to_f32(b, _current().f32_to_f16(b, a[0]))


@intrinsic
def to_u8x16(typingctx, x):
    """i32x16 -> u8x16, the low byte of each lane."""
    return u8x16(i32x16), lambda c, b, s, a: b.trunc(a[0], u8x16.ir)


@intrinsic
def zero_extend(typingctx, x):
    """u8x16 -> i32x16, without sign."""
    return i32x16(u8x16), lambda c, b, s, a: b.zext(a[0], i32x16.ir)


@intrinsic
def sign_extend(typingctx, x):
    """u8x16 -> i32x16, with sign."""
    return i32x16(u8x16), lambda c, b, s, a: b.sext(a[0], i32x16.ir)


def _reinterpret(source, result):
    @intrinsic
    def operation(typingctx, x):
        return result(source), lambda c, b, s, a: b.bitcast(a[0], result.ir)

    return operation


bits_of_f32, f32_of_bits = _reinterpret(f32x16, i32x16), _reinterpret(i32x16, f32x16)
as_i32x16, as_u8x64 = _reinterpret(u8x64, i32x16), _reinterpret(i32x16, u8x64)


def _less(name):
    @intrinsic
    def operation(typingctx, x, y, if_true, if_false):
        if not isinstance(x, Vector) or x != y or if_true != if_false:
            return None

        def codegen(c, b, s, a):
            test = b.fcmp_ordered(name, a[0], a[1]) if x.is_float else b.icmp_signed(name, a[0], a[1])
            return b.select(test, a[2], a[3])

        return if_true(x, x, if_true, if_true), codegen

    return operation


select_less, select_equal = _less("<"), _less("==")  # lane by lane: x < y (or ==) ? if_true : if_false; integers signed


# ---- reductions ------------------------------------------------------------------------------------------------------------------------


@intrinsic
def sum_lanes(typingctx, x):
    """Sum of the lanes of f32x16 or f32x8, pairwise (halves are added, then quarters, ...)."""
    if x not in (f32x8, f32x16):
        return None

    def codegen(c, b, s, a):
        return _reduce(b, f"llvm.vector.reduce.fadd.v{x.lanes}f32", [ir.Constant(f32, 0.0), a[0]], "reassoc")

    return REAL(x), codegen


def _reduce(builder, name, arguments, flag):
    function_type = ir.FunctionType(f32, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments, fastmath=(flag,))


@intrinsic
def sum_quarters(typingctx, x, quarter):
    """Sum of lanes 4 * quarter .. 4 * quarter + 3 of f32x16."""

    def codegen(c, b, s, a):
        first = b.trunc(b.shl(a[1], ir.Constant(i64, 2)), i32)
        total = b.extract_element(a[0], first)
        for k in range(1, 4):
            total = b.fadd(total, b.extract_element(a[0], b.add(first, ir.Constant(i32, k))))
        return total

    return REAL(f32x16, INTEGER), codegen


@intrinsic
def max_lanes(typingctx, x):
    """Largest lane of f32x16; unspecified if a lane is NaN."""
    return REAL(f32x16), lambda c, b, s, a: _reduce(b, "llvm.vector.reduce.fmax.v16f32", [a[0]], "nnan")


@intrinsic(prefer_literal=True)
def lane(typingctx, x, index):
    """Lane `index` of a vector as a scalar (integers with sign)."""
    if not isinstance(x, Vector):
        return None

    def codegen(c, b, s, a):
        value = b.extract_element(a[0], c.cast(b, a[1], index, INTEGER))
        return value if x.is_float else b.sext(value, i64)

    return x.scalar(x, index), codegen


@register_jitable
def quarter_of(x, quarter):
    """f32x16: lane 4 * quarter of x four times, then the three lanes after it likewise."""
    first = 4 * quarter
    return quarters(lane(x, first), lane(x, first + 1), lane(x, first + 2), lane(x, first + 3))


# ---- where ISAs differ -----------------------------------------------------------------------------------------------------------------


@intrinsic
def dot4_u7i8(typingctx, acc, codes, x):
    """acc[i] + sum of four products codes[4i+j] * x[4i+j]; x signed. Every code must be below 128: AVX2 saturates otherwise."""
    return i32x16(i32x16, u8x64, u8x64), lambda c, b, s, a: _current().dot4_u7i8(b, *a)


@intrinsic
def dot4_i8i8(typingctx, acc, codes, x):
    """The same with signed codes. Neither side may hold -128."""
    return i32x16(i32x16, u8x64, u8x64), lambda c, b, s, a: _current().dot4_i8i8(b, *a)


@intrinsic(prefer_literal=True)
def dot4_i16(typingctx, codes, even, odd, largest_code):
    """Sums of four products, of 8-bit codes (signed if the literal largest_code is negative) and 16-bit values given as even and odd elements -> i32x16."""
    signed = largest_code.literal_value < 0
    return i32x16(u8x64, i16x32, i16x32, largest_code), lambda c, b, s, a: _current().dot4_i16(b, *a[:3], signed)


@intrinsic
def evens_and_odds(typingctx, first, second, third, fourth):
    """64 numbers in four i32x16, each within 16 bits -> i16x32 of those with even index, i16x32 of the others."""

    def codegen(c, b, s, a):
        parts = [b.trunc(v, i16x16.ir) for v in a]
        index = ir.VectorType(i32, 32)
        low, high = (b.shuffle_vector(parts[p], parts[p + 1], ir.Constant(index, list(range(32)))) for p in (0, 2))
        planes = [b.shuffle_vector(low, high, ir.Constant(index, list(range(j, 64, 2)))) for j in (0, 1)]
        return c.make_tuple(b, s.return_type, planes)

    return types.UniTuple(i16x32, 2)(i32x16, i32x16, i32x16, i32x16), codegen


@intrinsic
def lookup16(typingctx, table, indices):
    """table[indices[i]] for a u8x16 table and u8x64 indices, each below 16."""
    return u8x64(u8x16, u8x64), lambda c, b, s, a: _current().lookup16(b, *a)


@intrinsic
def spin_hint(typingctx):
    """Tell the CPU that this thread only waits."""

    def codegen(c, b, s, a):
        _current().spin_hint(b)
        return c.get_dummy_value()

    return types.void(), codegen


# ---- threads ---------------------------------------------------------------------------------------------------------------------------


@intrinsic
def atomic_add(typingctx, address, value):
    """Add to the i64 at an address; gives the value before."""
    return INTEGER(Address, INTEGER), lambda c, b, s, a: b.atomic_rmw("add", _pointer(b, a[0], i64), a[1], "acq_rel")


@intrinsic
def atomic_load(typingctx, address):
    return INTEGER(Address), lambda c, b, s, a: b.load_atomic(_pointer(b, a[0], i64), "acquire", 8, typ=i64)


@intrinsic
def atomic_store(typingctx, address, value):
    def codegen(c, b, s, a):
        b.store_atomic(a[1], _pointer(b, a[0], i64), "release", 8)
        return c.get_dummy_value()

    return types.void(Address, INTEGER), codegen


@intrinsic
def yield_cpu(typingctx):
    """sched_yield of the C library: let another runnable thread have this core."""

    def codegen(c, b, s, a):
        _call(b, "sched_yield", i32, [])
        return c.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_kernel(typingctx, kernel, record, batch, rank, size):
    """Call the compiled kernel void(i64, i64, i64, i64) at an address."""

    def codegen(c, b, s, a):
        function = ir.FunctionType(ir.VoidType(), [i64] * 4)
        b.call(b.inttoptr(a[0], function.as_pointer()), list(a[1:]))
        return c.get_dummy_value()

    return types.void(*[INTEGER] * 5), codegen
