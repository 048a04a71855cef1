"""Plain LLVM IR for every operation: runs on any CPU that LLVM knows, and documents what the other ISAs must compute.

Methods take an LLVM IRBuilder and IR values of the logical 512-bit types, and emit instructions; they run while a kernel is compiled.
"""

from __future__ import annotations

from llvmlite import ir

i8, i16, i32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
f16, f32 = ir.HalfType(), ir.FloatType()
u8x64, i32x16, f32x16 = ir.VectorType(i8, 64), ir.VectorType(i32, 16), ir.VectorType(f32, 16)


def splat(vector: ir.VectorType, value) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def call(builder, name: str, result: ir.Type, arguments: list):
    """Call an LLVM intrinsic by its full name."""
    from numba.core import cgutils

    function_type = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def split(builder, vector, parts: int) -> list:
    """Cut a vector into equal parts."""
    lanes = vector.type.count // parts
    undefined = ir.Constant(vector.type, ir.Undefined)
    index = ir.VectorType(i32, lanes)
    return [builder.shuffle_vector(vector, undefined, ir.Constant(index, list(range(p * lanes, (p + 1) * lanes)))) for p in range(parts)]


def join(builder, parts: list):
    """Concatenate vectors of equal type; their number is a power of two."""
    while len(parts) > 1:
        lanes = parts[0].type.count
        index = ir.Constant(ir.VectorType(i32, 2 * lanes), list(range(2 * lanes)))
        parts = [builder.shuffle_vector(parts[p], parts[p + 1], index) for p in range(0, len(parts), 2)]
    return parts[0]


class Generic:
    name = "generic"
    required: frozenset[str] = frozenset()
    cpu = "x86-64"  # LLVM's CPU name when this ISA is forced; the host's own name when it is the best one
    triple_arch = "x86_64"

    # Register tile of the many-token driver: rows are 16 * tiles.
    tiles, tokens = 1, 4

    def dot4_u7i8(self, builder, acc, codes, x):
        """acc[i] + sum of codes[4i+j] * x[4i+j], j = 0..3. codes unsigned and below 128, x signed. i32x16, u8x64, i8x64 -> i32x16."""
        return self._dot4(builder, acc, builder.zext(codes, ir.VectorType(i16, 64)), x)

    def dot4_i8i8(self, builder, acc, codes, x):
        """The same with signed codes. Neither codes nor x may be -128 (AVX2 negates both)."""
        return self._dot4(builder, acc, builder.sext(codes, ir.VectorType(i16, 64)), x)

    def _dot4(self, builder, acc, wide_codes, x):
        products = builder.mul(wide_codes, builder.sext(x, ir.VectorType(i16, 64)))
        products = builder.sext(products, ir.VectorType(i32, 64))
        undefined = ir.Constant(products.type, ir.Undefined)
        for j in range(4):
            lane = ir.Constant(i32x16, [4 * i + j for i in range(16)])
            acc = builder.add(acc, builder.shuffle_vector(products, undefined, lane))
        return acc

    def dot4_i16(self, builder, codes, even, odd, signed: bool):
        """Sums of four products like dot4, of 8-bit codes and 16-bit values: u8x64, i16x32 of the even elements, i16x32 of the odd ones -> i32x16."""
        pairs = builder.bitcast(codes, ir.VectorType(i16, 32))
        eight = splat(pairs.type, 8)
        if signed:
            low, high = builder.ashr(builder.shl(pairs, eight), eight), builder.ashr(pairs, eight)
        else:
            low, high = builder.and_(pairs, splat(pairs.type, 255)), builder.lshr(pairs, eight)
        return builder.add(self.dot2_i16(builder, low, even), self.dot2_i16(builder, high, odd))

    def dot2_i16(self, builder, x, y):
        """x[2i] * y[2i] + x[2i+1] * y[2i+1]. i16x32, i16x32 -> i32x16."""
        wide = ir.VectorType(i32, 32)
        products = builder.mul(builder.sext(x, wide), builder.sext(y, wide))
        undefined = ir.Constant(wide, ir.Undefined)
        first, second = (builder.shuffle_vector(products, undefined, ir.Constant(i32x16, list(range(j, 32, 2)))) for j in (0, 1))
        return builder.add(first, second)

    def dot_steps(self, builder, largest_code: int) -> DotSteps:
        """An accumulator for several dot4 in a row; see DotSteps. largest_code: bound of the codes, or -1 for signed ones."""
        return DotSteps(self, builder, largest_code)

    def lookup16(self, builder, table, indices):
        """table[indices[i]] for u8x16 table and u8x64 indices, each below 16."""
        wide = join(builder, [table] * 4)
        result = splat(u8x64, 0)
        for entry in range(16):
            hit = builder.icmp_unsigned("==", indices, splat(u8x64, entry))
            value = builder.shuffle_vector(wide, ir.Constant(wide.type, ir.Undefined), ir.Constant(ir.VectorType(i32, 64), [entry] * 64))
            result = builder.select(hit, value, result)
        return result

    def spin_hint(self, builder):
        """Tell the CPU that this thread only waits."""
        call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])

    def f16_to_f32(self, builder, halves):
        """i16xN holding IEEE halves -> f32xN, by shifting the exponent into place (no F16C needed); subnormals are exact, infinities kept."""
        lanes = halves.type.count
        wide, floats = ir.VectorType(i32, lanes), ir.VectorType(f32, lanes)
        bits = builder.zext(halves, wide)
        sign = builder.shl(builder.and_(bits, splat(wide, 0x8000)), splat(wide, 16))
        magnitude = builder.shl(builder.and_(bits, splat(wide, 0x7FFF)), splat(wide, 13))
        scaled = builder.fmul(builder.bitcast(magnitude, floats), splat(floats, 2.0**112))
        special = builder.icmp_unsigned(">=", magnitude, splat(wide, 0x7C00 << 13))
        value = builder.select(special, builder.or_(magnitude, splat(wide, 0x7F800000)), builder.bitcast(scaled, wide))
        return builder.bitcast(builder.or_(value, sign), floats)

    def f32_to_f16(self, builder, floats):
        """f32xN -> i16xN of IEEE halves, rounded to nearest even; too large becomes infinity, NaN stays NaN."""
        lanes = floats.type.count
        wide, vector = ir.VectorType(i32, lanes), floats.type
        bits = builder.bitcast(floats, wide)
        sign = builder.and_(bits, splat(wide, -(2**31)))
        magnitude = builder.xor(bits, sign)
        is_nan = builder.icmp_unsigned(">", magnitude, splat(wide, 0x7F800000))
        overflow = builder.icmp_unsigned(">=", magnitude, splat(wide, (127 + 16) << 23))
        subnormal = builder.icmp_unsigned("<", magnitude, splat(wide, (127 - 14) << 23))
        # A subnormal half: adding 0.5 makes the FPU round at the right bit.
        shifted = builder.fadd(builder.bitcast(magnitude, vector), splat(vector, 0.5))
        small = builder.sub(builder.bitcast(shifted, wide), splat(wide, 126 << 23))
        odd = builder.and_(builder.lshr(magnitude, splat(wide, 13)), splat(wide, 1))
        rounded = builder.add(builder.add(magnitude, splat(wide, ((15 - 127) << 23) + 0xFFF)), odd)
        normal = builder.lshr(rounded, splat(wide, 13))
        value = builder.select(subnormal, small, normal)
        value = builder.select(overflow, splat(wide, 0x7C00), value)
        value = builder.select(is_nan, splat(wide, 0x7E00), value)
        value = builder.or_(value, builder.lshr(sign, splat(wide, 16)))
        return builder.trunc(value, ir.VectorType(i16, lanes))


class DotSteps:
    """Sum of dot4 over several steps, kept in whatever form is cheapest: `step` for each pair of vectors, then `total` -> i32x16."""

    def __init__(self, isa: Generic, builder, largest_code: int):
        self.isa, self.builder, self.largest_code = isa, builder, largest_code
        self.acc = splat(i32x16, 0)

    def step(self, codes, x):
        dot4 = self.isa.dot4_i8i8 if self.largest_code < 0 else self.isa.dot4_u7i8
        self.acc = dot4(self.builder, self.acc, codes, x)

    def total(self):
        return self.acc


ISA = Generic()
