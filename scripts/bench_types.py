"""How near each tensor type comes to the machine's limits: a line a type, on matrices of real size, medians.

    python scripts/bench_types.py [-t THREADS] [-r REPETITIONS] [TYPE ...]

decode: one token over as many different matrices as the last-level cache cannot hold; GB/s of weights read, and their share of the machine's reads. prefill: 512 tokens over
one matrix; 1e9 multiply-adds a second, and their share of the machine's 8-bit products (of 4-bit codes, which AVX2 adds up faster than larger ones). What the machine can
do is measured as `cpuinfer bench --machine` does. Types of floats have no share of 8-bit products. Run on an idle machine; the lines are rows of a Markdown table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from cpuinfer.engine import measure
from cpuinfer.formats import quants
from cpuinfer.formats.gguf import TensorInfo
from cpuinfer.formats.types import GGML_TYPES
from cpuinfer.kernels import jit
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
    limits = measure.machine(options.threads, options.repetitions)
    print(f"{limits['cpu']} ({limits['isa']}), {limits['threads']} threads, {options.rows} x {options.columns}: ", end="")
    print(f"reads {limits['read_gb_s']:.1f} GB/s, 8-bit products {limits['dot4_gmac_s']:.0f} GMAC/s\n")
    print("| type | bits | decode GB/s | share | prefill GMAC/s | share |\n| --- | --- | --- | --- | --- | --- |")
    with Team(options.threads) as team:
        for name in options.types or quants.matrix_types():
            limits = measure.machine(options.threads, options.repetitions)  # again: on a shared machine they drift
            fmt = quants.for_matrix(name)
            matrix = random_matrix(fmt, options.rows, options.columns)
            matrices = np.repeat(matrix[None], max(2, (options.megabytes << 20) // matrix.nbytes), axis=0)
            decode = matrices.nbytes / seconds(runner(team, fmt, matrices, options.columns, 1), options.repetitions) / 1e9
            prefill = TOKENS * options.rows * options.columns / seconds(runner(team, fmt, matrix[None], options.columns, TOKENS), options.repetitions) / 1e9
            share = f"{prefill / limits['dot4_gmac_s']:.0%}" if fmt.activations == "q8" else ""
            bits = f"{8 * fmt.block_bytes / fmt.weights:.4g}"
            print(f"| {name} | {bits} | {decode:.1f} | {decode / limits['read_gb_s']:.0%} | {prefill:.0f} | {share} |", flush=True)


def runner(team: Team, fmt: quants.Format, matrices: np.ndarray, columns: int, tokens: int) -> Callable[[], None]:
    program, batch = products(fmt, matrices, columns, tokens, team.size)
    return lambda: team.run(program, batch)


if __name__ == "__main__":
    main()
