"""Activations, sums, soft caps and the elementary functions under them."""

from __future__ import annotations

import ctypes
import functools
import math

import numpy as np
import pytest
from call import Q8, rows, run

from cpuinfer.kernels.records import ACTIVATIONS, FEW

RANKS = [1, 3]
erf = np.vectorize(math.erf)


def gelu(x):
    """Argument and result pass through half precision, as records.ACTIVATIONS says."""
    h = np.clip(x, -10, 10).astype(np.float16).astype(np.float64)
    y = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return np.where(x <= -10, 0, np.where(x >= 10, x, y.astype(np.float16)))


FORMULAS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": gelu,
    "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def inputs(count: int, columns: int, seed=0) -> np.ndarray:
    x = (3 * np.random.default_rng(seed).standard_normal((count, columns))).astype(np.float32)
    x[0, :4] = 30, -30, 0, 10
    return x


def allowed(name: str) -> dict:
    # A value between two halves may be rounded either way: one step of 2**-10 at most.
    return {"rtol": 1.1e-3, "atol": 1e-6} if name == "gelu" else {"rtol": 2e-6, "atol": 1e-6}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("count, columns", [(1, 64), (3, 200), (20, 33)])
def test_activations_equal_their_formulas(name, count, columns, gated, ranks):
    assert {*FORMULAS, "swiglu_oai"} == set(ACTIVATIONS)
    x, up = inputs(count, columns), inputs(count, columns, seed=1)
    gate, factor, y = rows(x), rows(up), rows(np.zeros((count, columns)))
    fields = {"gate": gate, "gate_stride": gate.shape[1], "columns": columns, "activation": ACTIVATIONS[name], "y": y, "y_stride": y.shape[1]}
    if gated:
        fields |= {"up": factor, "up_stride": factor.shape[1]}
    run(("activate",), fields, {"n_tokens": count}, ranks)
    expected = FORMULAS[name](x.astype(np.float64)) * (up if gated else 1)
    np.testing.assert_allclose(y, rows(expected), **allowed(name))


@pytest.mark.parametrize("count, columns", [(1, 64), (20, 33)])
def test_the_clamped_swiglu_uses_both_halves(count, columns):
    x, up = 3 * inputs(count, columns), 3 * inputs(count, columns, seed=1)
    gate, factor, y = rows(x), rows(up), rows(np.zeros((count, columns)))
    fields = {"gate": gate, "gate_stride": gate.shape[1], "up": factor, "up_stride": factor.shape[1], "columns": columns}
    run(("activate",), fields | {"activation": ACTIVATIONS["swiglu_oai"], "y": y, "y_stride": y.shape[1]}, {"n_tokens": count})
    limited = np.minimum(x.astype(np.float64), 7)
    expected = limited / (1 + np.exp(-1.702 * limited)) * (np.clip(up, -7, 7) + 1)
    np.testing.assert_allclose(y, rows(expected), rtol=2e-6, atol=1e-6)
    assert (x > 7).any() and (np.abs(up) > 7).any()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("with_y", [True, False])
@pytest.mark.parametrize("count, columns", [(1, 256), (3, 200), (FEW, 96), (FEW + 1, 32), (41, 576)])
def test_the_quantized_result_is_that_of_the_quantize_kernel(count, columns, with_y, ranks):
    """One fused op or two: the same bytes."""
    gate, up = rows(inputs(count, columns)), rows(inputs(count, columns, seed=1))
    y, fused, separate = np.zeros_like(gate), Q8(count, columns), Q8(count, columns)
    fields = {"gate": gate, "gate_stride": gate.shape[1], "up": up, "up_stride": up.shape[1], "columns": columns, "activation": 0}
    written = {"y": y, "y_stride": y.shape[1]}
    run(("activate",), fields | written, {"n_tokens": count}, ranks)
    run(("quantize",), {"x": y, "x_stride": y.shape[1], "columns": columns} | separate.fields(), {"n_tokens": count}, ranks)
    y[:] = 0
    run(("activate",), fields | (written if with_y else {}) | fused.fields(), {"n_tokens": count}, ranks)
    for name in ("codes", "scales", "sums", "sums16"):
        np.testing.assert_array_equal(getattr(fused, name), getattr(separate, name), err_msg=name)
    assert fused.codes.any() and y.any() == with_y


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("count, columns", [(1, 576), (4, 90)])
def test_sums_are_scaled_and_may_be_written_in_place(count, columns, ranks):
    a, b = inputs(count, columns), inputs(count, columns, seed=1)
    for second in (b, None):
        x, other = rows(a), rows(b)
        fields = {"a": x, "a_stride": x.shape[1], "columns": columns, "y": x, "y_stride": x.shape[1], "scale": 0.5, "b_scale": -3.0}
        if second is not None:
            fields |= {"b": other, "b_stride": other.shape[1]}
        run(("add",), fields, {"n_tokens": count}, ranks)
        np.testing.assert_allclose(x, rows(a * 0.5 if second is None else a * 0.5 - 3 * b.astype(np.float64)), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_logits_are_scaled_and_capped_in_place(cap, ranks):
    count, columns = 3, 2500
    x = 40 * inputs(count, columns)
    actual = rows(x)
    fields = {"x": actual, "x_stride": actual.shape[1], "columns": columns, "scale": 0.25, "cap": cap}
    run(("softcap",), fields, {"n_tokens": 7, "n_logit_rows": count}, ranks)
    scaled = x.astype(np.float64) * 0.25
    np.testing.assert_allclose(actual, rows(cap * np.tanh(scaled / cap) if cap else scaled), rtol=1e-6, atol=1e-5)


# ---- elementary functions --------------------------------------------------------------------------------------------------------------


@functools.cache
def compiled(name):
    from numba import cfunc, types

    from cpuinfer.kernels import simd, vector_math

    function = getattr(vector_math, name)

    def kernel(x, y, count):
        for i in range(0, count, 16):
            simd.store_f32x16(y + 4 * i, function(simd.load_f32x16(x + 4 * i)))

    return cfunc(types.void(*[types.int64] * 3), error_model="numpy")(kernel)


def apply(name, x):
    y = np.zeros_like(x)
    compiled(name).ctypes(ctypes.c_int64(x.ctypes.data), ctypes.c_int64(y.ctypes.data), ctypes.c_int64(len(x)))
    return y


def test_the_exponential_is_exact_to_three_parts_in_ten_million():
    x = np.linspace(-86.9, 87.9, 1 << 18, dtype=np.float32)
    for name in ("exp",):
        np.testing.assert_allclose(apply(name, x), np.exp(x.astype(np.float64)), rtol=3e-7)
    assert apply("exp", np.zeros(16, np.float32)).tolist() == [1] * 16


def test_the_exponential_of_far_numbers_is_nearly_zero_or_finite():
    y = apply("exp", np.array([-88, -1e4, -1e30, -np.inf, 89, 1e30, np.inf, 88] * 2, np.float32))
    assert (y[:4] < 2e-38).all() and np.isfinite(y).all() and (y[4:8] > 1e38).all()


def test_the_hyperbolic_tangent_and_the_sigmoid_are_exact_enough():
    x = np.concatenate([np.linspace(-20, 20, 1 << 16), [-1e30, -200, 200, 1e30] * 4]).astype(np.float32)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(apply("tanh", x), np.tanh(exact), atol=3e-7)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(apply("sigmoid", x), 1 / (1 + np.exp(-exact)), atol=1e-37, rtol=5e-7)
