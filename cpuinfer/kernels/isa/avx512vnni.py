"""AVX-512 with VNNI and VBMI (Intel Ice Lake servers and later, Zen 4 and 5): one vpdpbusd multiplies 64 bytes."""

from __future__ import annotations

from .avx2 import AVX2
from .generic import DotSteps, call, i32x16, join, splat, u8x64


class AVX512VNNI(AVX2):
    name = "avx512vnni"
    required = AVX2.required | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"}
    cpu = "icelake-server"
    tiles, tokens = 2, 5

    def dot4_u7i8(self, builder, acc, codes, x):
        arguments = [acc, builder.bitcast(codes, i32x16), builder.bitcast(x, i32x16)]
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", i32x16, arguments)

    def dot4_i8i8(self, builder, acc, codes, x):
        negative = builder.icmp_signed("<", codes, splat(u8x64, 0))
        magnitude, signed = (builder.select(negative, builder.sub(splat(u8x64, 0), v), v) for v in (codes, x))
        return self.dot4_u7i8(builder, acc, magnitude, signed)

    def dot2_i16(self, builder, x, y):
        return call(builder, "llvm.x86.avx512.pmaddw.d.512", i32x16, [x, y])

    def dot_steps(self, builder, largest_code: int) -> DotSteps:
        return DotSteps(self, builder, largest_code)

    def lookup16(self, builder, table, indices):
        return call(builder, "llvm.x86.avx512.pshuf.b.512", u8x64, [join(builder, [table] * 4), indices])


ISA = AVX512VNNI()
