"""How near each tensor type comes to the machine's limits: a line a type, on matrices of real size, medians.

    python scripts/bench_types.py [-t THREADS] [-r REPETITIONS] [TYPE ...]

decode: one token over as many different matrices as the last-level cache cannot hold; GB/s of weights read, and their share of what the same threads read when they
only add up numbers. prefill: 512 tokens over one matrix; 1e9 multiply-adds a second, and their share of byte dot products with nothing else to do but one load each.
A share may exceed 100 %: small codes need fewer instructions than a byte dot product on AVX2. Types of floats have no share of it. Run on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

from cpuinfer.formats import quants
from cpuinfer.formats.gguf import TensorInfo
from cpuinfer.formats.types import GGML_TYPES
from cpuinfer.kernels import isa, jit
from cpuinfer.kernels.records import BATCH
from cpuinfer.kernels.team import Team
from cpuinfer.program.ops import Buffer, Op
from cpuinfer.program.program import Program

TOKENS = 512
NO_CACHE = SimpleNamespace(key_type="f32", value_type="f32", key_arrays=[], value_arrays=[])


def seconds(function: Callable[[], object], repetitions: int) -> float:
    """Median time of a call; one call before does not count."""
    times = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def memory_rate(threads: int, repetitions: int, size: int) -> float:
    """Bytes a second that so many threads read from memory: numpy sums over parts of an array."""
    parts = np.array_split(np.ones(size // 8), threads)
    with ThreadPoolExecutor(threads) as pool:
        return size / seconds(lambda: list(pool.map(np.sum, parts)), repetitions)


def dot_rate(threads: int, repetitions: int) -> float:
    """Multiply-adds a second of dot4_u7i8 on codes in the first-level cache, five sums at a time."""
    from numba import cfunc, types

    from cpuinfer.kernels import simd

    size, rounds = 64 * 5 * 40, 2000

    @cfunc(types.void(types.int64, types.int64))
    def dots(codes, result):
        x = simd.load_u8x64(codes)
        a = b = c = d = e = simd.zero_i32x16()
        for _ in range(rounds):
            for i in range(codes, codes + size, 320):
                a = simd.dot4_u7i8(a, simd.load_u8x64(i), x)
                b = simd.dot4_u7i8(b, simd.load_u8x64(i + 64), x)
                c = simd.dot4_u7i8(c, simd.load_u8x64(i + 128), x)
                d = simd.dot4_u7i8(d, simd.load_u8x64(i + 192), x)
                e = simd.dot4_u7i8(e, simd.load_u8x64(i + 256), x)
        simd.store_i32x16(result, simd.add(simd.add(simd.add(a, b), simd.add(c, d)), e))

    memory = np.ones((threads, size + 64), np.uint8)

    def run(row: np.ndarray) -> None:
        dots.ctypes(row.ctypes.data, row[size:].ctypes.data)

    with ThreadPoolExecutor(threads) as pool:
        return threads * rounds * size / seconds(lambda: list(pool.map(run, memory)), repetitions)


def random_matrix(fmt: quants.Format, rows: int, columns: int) -> np.ndarray:
    """u1[rows, row_bytes] of random codes, with scales that are neither subnormal nor infinite: those cost extra time."""
    blocks = np.random.default_rng(0).integers(0, 256, (rows * columns // fmt.weights, fmt.block_bytes), np.uint8).reshape(-1).view(fmt.dtype)
    for name in fmt.dtype.names or ():
        if fmt.dtype[name].kind == "f":
            blocks[name] = 0.01
        if name == "exponent":
            blocks[name] = 120
    if fmt.name == "BF16":
        blocks[:] = 0x3C00  # 2**-7
    return blocks.view(np.uint8).reshape(rows, -1)


def products(fmt: quants.Format, matrices: np.ndarray, columns: int, tokens: int, threads: int) -> tuple[Program, np.ndarray]:
    """A program that multiplies `tokens` rows with each of u1[n, rows, row_bytes], ready to run, and its batch."""
    kind = next(t for t in GGML_TYPES.values() if t.name == fmt.name)
    x = activations = Buffer("x", columns, "f32")
    ops = []
    if fmt.activations == "q8":
        activations = Buffer("q8", columns, "q8")
        ops.append(Op("quantize", "quantize", {"x": x, "columns": columns, "q": activations}))
    for i, data in enumerate(matrices):
        y = Buffer(f"y{i}", len(data), "f32")
        tensor = TensorInfo(f"weights{i}", kind, (len(data), columns), data)
        ops.append(Op("matmul", f"product{i}", {"weights": tensor, "x": activations, "y": y, "bias": None, "accumulate": 0}, (fmt.name,)))
    program = Program(ops, [], y, None)
    program.assemble(jit.build(program.kernels_needed(("f32", "f32"))), NO_CACHE, tokens, 1, threads)
    program.arrays(x).values[:tokens] = np.random.default_rng(1).standard_normal((tokens, program.arrays(x).stride))
    batch = np.zeros(1, BATCH)
    batch["n_tokens"] = tokens
    return program, batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="default: all")
    parser.add_argument("-t", "--threads", type=int, help="default: automatic")
    parser.add_argument("-r", "--repetitions", type=int, default=7)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=8192)
    parser.add_argument("--megabytes", type=int, default=256, help="weights that decoding reads; several times the last-level cache")
    options = parser.parse_args()
    with Team(options.threads) as team:
        memory, dots = memory_rate(team.size, options.repetitions, options.megabytes << 20), dot_rate(team.size, options.repetitions)
        print(f"{jit.cpu_name()} ({isa.current()}), {team.size} threads, {options.rows} x {options.columns}: memory {memory / 1e9:.1f} GB/s, byte dots {dots / 1e9:.0f} GMAC/s")
        print(f"{'type':8} {'bits':>5}  {'decode GB/s':>12} {'share':>6}  {'prefill GMAC/s':>15} {'share':>6}")
        for name in options.types or quants.matrix_types():
            fmt = quants.for_matrix(name)
            matrix = random_matrix(fmt, options.rows, options.columns)
            matrices = np.repeat(matrix[None], max(2, (options.megabytes << 20) // matrix.nbytes), axis=0)
            decode = matrices.nbytes / seconds(runner(team, fmt, matrices, options.columns, 1), options.repetitions)
            prefill = TOKENS * options.rows * options.columns / seconds(runner(team, fmt, matrix[None], options.columns, TOKENS), options.repetitions)
            share = f"{prefill / dots:6.0%}" if fmt.activations == "q8" else "     -"
            print(f"{name:8} {8 * fmt.block_bytes / fmt.weights:5.2f}  {decode / 1e9:12.1f} {decode / memory:6.0%}  {prefill / 1e9:15.0f} {share}", flush=True)


def runner(team: Team, fmt: quants.Format, matrices: np.ndarray, columns: int, tokens: int) -> Callable[[], None]:
    program, batch = products(fmt, matrices, columns, tokens, team.size)
    return lambda: team.run(program, batch)


if __name__ == "__main__":
    main()
