"""AVX-VNNI (Intel Alder Lake and later, Zen 5): AVX2 with a byte dot product, vpdpbusd on 256 bits."""

from __future__ import annotations

from .avx2 import AVX2, i32x8, move_sign
from .generic import DotSteps, call, join, split


class AVXVNNI(AVX2):
    name = "avxvnni"
    required = AVX2.required | {"avxvnni"}
    cpu = "alderlake"
    tiles, tokens = 1, 6

    def dot4_u7i8(self, builder, acc, codes, x):
        halves = zip(split(builder, acc, 2), split(builder, codes, 2), split(builder, x, 2))
        return join(
            builder,
            [call(builder, "llvm.x86.avx512.vpdpbusd.256", i32x8, [a, builder.bitcast(c, i32x8), builder.bitcast(v, i32x8)]) for a, c, v in halves],
        )

    def dot4_i8i8(self, builder, acc, codes, x):
        return self.dot4_u7i8(builder, acc, *move_sign(builder, codes, x))

    def dot_steps(self, builder, largest_code: int) -> DotSteps:
        return DotSteps(self, builder, largest_code)


ISA = AVXVNNI()
