"""AVX2, FMA and F16C (Intel since 2013, AMD since 2015). Products of bytes go through 16 bits: vpmaddubsw, then vpmaddwd with ones.

vpmaddubsw saturates at 32767, hence the contract of codes below 128. Small codes leave head room: 4-bit codes can be summed over 8 steps in 16 bits
before one vpmaddwd widens them, which nearly doubles the rate of a register tile.
"""

from __future__ import annotations

from llvmlite import ir

from .generic import DotSteps, Generic, call, i8, i16, i32, i32x16, join, splat, split

i8x32, i16x16, i32x8 = ir.VectorType(i8, 32), ir.VectorType(i16, 16), ir.VectorType(i32, 8)


class AVX2(Generic):
    name = "avx2"
    required = frozenset({"avx2", "fma", "f16c"})
    cpu = "haswell"
    tiles, tokens = 1, 4

    def pairs_u7i8(self, builder, codes, x) -> list:
        """codes[2i] * x[2i] + codes[2i+1] * x[2i+1] as two i16x16."""
        halves = zip(split(builder, codes, 2), split(builder, x, 2))
        return [call(builder, "llvm.x86.avx2.pmadd.ub.sw", i16x16, [u, s]) for u, s in halves]

    def widen(self, builder, pairs: list):
        """Two i16x16 of pair sums -> i32x16 of sums of four."""
        return join(builder, [call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, [p, splat(i16x16, 1)]) for p in pairs])

    def dot4_u7i8(self, builder, acc, codes, x):
        return builder.add(acc, self.widen(builder, self.pairs_u7i8(builder, codes, x)))

    def dot4_i8i8(self, builder, acc, codes, x):
        return self.dot4_u7i8(builder, acc, *move_sign(builder, codes, x))

    def dot2_i16(self, builder, x, y):
        return join(builder, [call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, [a, b]) for a, b in zip(split(builder, x, 2), split(builder, y, 2))])

    def dot_steps(self, builder, largest_code: int) -> DotSteps:
        return SixteenBitSteps(self, builder, largest_code)

    def lookup16(self, builder, table, indices):
        wide = join(builder, [table] * 2)
        return join(builder, [call(builder, "llvm.x86.avx2.pshuf.b", i8x32, [wide, half]) for half in split(builder, indices, 2)])

    def f16_to_f32(self, builder, halves):
        lanes = halves.type.count
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), lanes)), ir.VectorType(ir.FloatType(), lanes))

    def f32_to_f16(self, builder, floats):
        lanes = floats.type.count
        return builder.bitcast(builder.fptrunc(floats, ir.VectorType(ir.HalfType(), lanes)), ir.VectorType(i16, lanes))


def move_sign(builder, codes, x):
    """(|codes|, x with the sign of codes): so that a signed product becomes an unsigned one. LLVM makes vpabsb and vpsignb of it."""
    parts = []
    for c, v in zip(split(builder, codes, 2), split(builder, x, 2)):
        parts.append(
            (
                call(builder, "llvm.abs.v32i8", i8x32, [c, ir.Constant(ir.IntType(1), 0)]),
                call(builder, "llvm.x86.avx2.psign.b", i8x32, [v, c]),
            )
        )
    return join(builder, [p[0] for p in parts]), join(builder, [p[1] for p in parts])


def pin(builder, value):
    """The same value, computed here: an empty asm statement keeps LLVM from turning chains of additions into trees, which would need twice the registers and spill."""
    return builder.asm(ir.FunctionType(value.type, [value.type]), "", "=x,0", [value], True)


class SixteenBitSteps(DotSteps):
    """Pair sums stay in 16 bits for as many steps as cannot overflow: 32767 // (2 * 127 * largest code)."""

    def __init__(self, isa, builder, largest_code):
        super().__init__(isa, builder, largest_code)
        self.room = 32767 // (2 * 127 * (largest_code if largest_code > 0 else 127))
        self.pairs, self.held, self.wide = None, 0, None

    def step(self, codes, x):
        if self.largest_code < 0:
            codes, x = move_sign(self.builder, codes, x)
        pairs = self.isa.pairs_u7i8(self.builder, codes, x)
        if self.pairs is None:
            self.pairs = pairs
        else:
            self.pairs = [pin(self.builder, self.builder.add(p, q)) for p, q in zip(self.pairs, pairs)]
        self.held += 1
        if self.held == self.room:
            self._flush()

    def _flush(self):
        wide = self.isa.widen(self.builder, self.pairs)
        self.wide = wide if self.wide is None else self.builder.add(self.wide, wide)
        self.pairs, self.held = None, 0

    def total(self):
        if self.pairs is not None:
            self._flush()
        return splat(i32x16, 0) if self.wide is None else self.wide


ISA = AVX2()
