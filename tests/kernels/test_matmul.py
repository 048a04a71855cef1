"""The matrix products' three drivers against a plain numpy product of the same Q8 activations and the format's definition."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from cpuinfer.formats import quants
from cpuinfer.kernels import jit
from cpuinfer.kernels.records import BATCH, DRIVERS, FEW, RECORDS, matmul_scratch_bytes, round_up
from cpuinfer.program.program import BufferArrays

FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_NL", "Q2_0", "IQ1_M", "IQ2_XXS", "IQ3_S")


def rounded(x: np.ndarray) -> np.ndarray:
    """The activations that the products see: f32[T, C] rounded to codes times scales, by the definition."""
    groups = x.reshape(len(x), -1, 32)
    scales = (np.abs(groups).max(-1) / np.float32(127 if len(x) > 1 else 32767)).astype(np.float32)
    codes = np.rint(groups * np.where(scales > 1e-30, 1 / np.where(scales == 0, 1, scales), 0).astype(np.float32)[..., None])
    return (codes * scales[..., None]).reshape(x.shape)


class OneOp:
    """A program of one op, as a team runs it."""

    def __init__(self, kind: str, fields: dict, addresses: dict, variants: tuple[str, ...], tokens: int):
        self.record = np.zeros(1, RECORDS[kind])
        self.counters = np.zeros(8, np.int64)
        for name, value in fields.items():
            self.record[name] = value
        if "counter" in self.record.dtype.names:
            self.record["counter"] = self.counters.ctypes.data
        self.records = np.array([self.record.ctypes.data])
        names = DRIVERS.get(kind, (kind,) * 3)
        self.kernels = np.array([[addresses[(n, *variants)]] for n in names])
        self.sync, self.per_logit_row = np.ones(1, np.uint8), np.zeros(1, np.uint8)
        self.batch = np.zeros(1, BATCH)
        self.batch["n_tokens"] = tokens


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_driver_equals_the_definition(fmt: str, team) -> None:
    f = quants.get(fmt)
    keys = [(name, fmt) for name in DRIVERS["matmul"]] + [("quantize",)]
    addresses = jit.build(keys)
    rng = np.random.default_rng(1)
    block = max(f.weights, 16)
    for tokens in (1, 2, 5, FEW, FEW + 1, 41):
        for rows, columns in ((48, 4 * block), (37, 3 * block), (5, 9 * block)):
            weights = tiny.random_rows(fmt, rows, columns, rng)
            x = rng.standard_normal((tokens, columns)).astype(np.float32)
            values = BufferArrays(tokens + 8, columns, "f32")
            values.values[:tokens, :columns] = x
            quantized = BufferArrays(tokens + 8, columns, "q8")
            for array in (quantized.values, quantized.scales, quantized.sums, quantized.sums16):
                array.view(np.uint8)[:] = 7  # what a batch before may have left
            y = BufferArrays(tokens + 8, rows, "f32")
            y.values[:tokens, :rows] = 1
            scratch = np.zeros((2, matmul_scratch_bytes(columns)), np.uint8)
            activations = quantized if f.activations == "q8" else values
            fields = {"x": activations.values.ctypes.data, "x_stride": activations.stride}
            if f.activations == "q8":
                q = {"q": quantized.values.ctypes.data, "q_stride": quantized.stride}
                q |= {f"q_{n}": getattr(quantized, n).ctypes.data for n in ("scales", "sums", "sums16")}
                source = {"x": values.values.ctypes.data, "x_stride": values.stride, "columns": columns}
                op = OneOp("quantize", source | q, addresses, (), tokens)
                team.run(op, op.batch)
                fields |= {f"x_{n}": getattr(quantized, n).ctypes.data for n in ("scales", "sums", "sums16")}
            bias = rng.standard_normal(rows).astype(np.float32)
            fields |= {"weights": weights.ctypes.data, "row_bytes": weights.shape[1], "rows": rows, "columns": columns, "bias": bias.ctypes.data}
            fields |= {"y": y.values.ctypes.data, "y_stride": y.stride, "accumulate": 1, "scratch": scratch.ctypes.data, "scratch_bytes": scratch.shape[1]}
            op = OneOp("matmul", fields, addresses, (fmt,), tokens)
            team.run(op, op.batch)
            if f.activations == "q8":
                padded = np.zeros((tokens, round_up(columns, 32)), np.float32)
                padded[:, :columns] = x
                x = rounded(padded)[:, :columns]
            product = x.astype(np.float64) @ f.dequantize(weights).T.astype(np.float64)
            expected = 1 + bias + product
            # Ties of rounding may fall either way: one code of a group of 32.
            tolerance = 3e-6 * np.abs(product).max() + (2e-3 * np.abs(product).max() if f.activations == "q8" and tokens > 1 else 0)
            if f.activations == "q8" and tokens == 1:
                tolerance += 1e-5 * np.abs(product).max()
            assert np.abs(y.values[:tokens, :rows] - expected).max() < tolerance, (tokens, rows, columns)
            assert not y.values[:, rows:].any(), "the padding of a row must stay zero"
