"""AArch64 NEON with the dot-product extension (Armv8.2 and later): sdot on 128 bits, four of them for a logical vector."""

from __future__ import annotations

from llvmlite import ir

from .generic import DotSteps, Generic, call, i8, i16, i32, join, split

i8x16, i32x4 = ir.VectorType(i8, 16), ir.VectorType(i32, 4)


class NEON(Generic):
    name = "neon"
    required = frozenset({"neon", "dotprod"})
    cpu = "neoverse-n1"
    triple_arch = "aarch64"
    tiles, tokens = 1, 4

    def dot4_i8i8(self, builder, acc, codes, x):
        quarters = zip(split(builder, acc, 4), split(builder, codes, 4), split(builder, x, 4))
        return join(builder, [call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", i32x4, [a, c, v]) for a, c, v in quarters])

    # Codes below 128 read the same with a sign.
    dot4_u7i8 = dot4_i8i8

    def dot_steps(self, builder, largest_code: int) -> DotSteps:
        return DotSteps(self, builder, largest_code)

    def lookup16(self, builder, table, indices):
        return join(builder, [call(builder, "llvm.aarch64.neon.tbl1.v16i8", i8x16, [table, part]) for part in split(builder, indices, 4)])

    def spin_hint(self, builder):
        call(builder, "llvm.aarch64.hint", ir.VoidType(), [ir.Constant(i32, 1)])

    def f16_to_f32(self, builder, halves):
        lanes = halves.type.count
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), lanes)), ir.VectorType(ir.FloatType(), lanes))

    def f32_to_f16(self, builder, floats):
        lanes = floats.type.count
        return builder.bitcast(builder.fptrunc(floats, ir.VectorType(ir.HalfType(), lanes)), ir.VectorType(i16, lanes))


ISA = NEON()
