"""Elementary functions of f32x16, relative error below 3e-7 where not said otherwise."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .simd import (
    add,
    divide,
    f32_of_bits,
    fma,
    maximum,
    minimum,
    mul,
    round_to_i32,
    shift_left,
    splat_f32x16,
    splat_i32x16,
    sub,
    to_f32,
)

_LOG2_E = np.float32(1 / math.log(2))
# ln 2 in two parts: n * HIGH is exact for |n| < 256
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)


@njit
def exp(x):
    """e^x; below -87 it gives a number under 2e-38, above 88 it stays finite."""
    return exp_negative(minimum(x, splat_f32x16(np.float32(88.0))))


@njit
def exp_negative(x):
    """The same for x up to 88, as softmax has it."""
    x = maximum(x, splat_f32x16(np.float32(-87.0)))
    n = round_to_i32(mul(x, splat_f32x16(_LOG2_E)))
    whole = to_f32(n)
    r = fma(whole, splat_f32x16(-_LN2_HIGH), x)
    r = fma(whole, splat_f32x16(-_LN2_LOW), r)
    # 1 + r + ... for |r| <= ln 2 / 2: the polynomial of degree 5 with the smallest relative error, 1.05e-7
    p = splat_f32x16(np.float32(0.008312501))
    p = fma(p, r, splat_f32x16(np.float32(0.04189033)))
    p = fma(p, r, splat_f32x16(np.float32(0.16667116)))
    p = fma(p, r, splat_f32x16(np.float32(0.4999923)))
    p = fma(p, r, splat_f32x16(np.float32(1)))
    p = fma(p, r, splat_f32x16(np.float32(1)))
    return mul(p, f32_of_bits(shift_left(add(n, splat_i32x16(127)), 23)))


@njit
def tanh(x):
    """1 - 2 / (e^2x + 1): absolute error below 2e-7."""
    one = splat_f32x16(np.float32(1))
    return sub(one, divide(splat_f32x16(np.float32(2)), add(exp(add(x, x)), one)))


@njit
def sigmoid(x):
    one = splat_f32x16(np.float32(1))
    return divide(one, add(one, exp(sub(splat_f32x16(np.float32(0)), x))))
