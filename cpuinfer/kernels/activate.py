"""Gated activations, sums and soft caps: element by element, optionally quantized on the way out."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .quantize import quantize_span
from .records import ACTIVATIONS
from .registry import op_kernel
from .simd import (
    add,
    f16_of_f32,
    fma,
    load_f32,
    load_f32x16,
    maximum,
    minimum,
    mul,
    select_less,
    splat_f32x16,
    store_f32,
    store_f32x16,
    zero_f32x16,
)
from .vector_math import sigmoid, tanh

SWIGLU_OAI = ACTIVATIONS["swiglu_oai"]
SILU, GELU, GELU_ERF, GELU_QUICK, RELU, RELU2 = (ACTIVATIONS[name] for name in ("silu", "gelu", "gelu_erf", "gelu_quick", "relu", "relu2"))
_ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


@njit
def gelu(x):
    """The tanh form, argument and result through half precision: see records.ACTIVATIONS."""
    ten = splat_f32x16(np.float32(10))
    minus_ten = splat_f32x16(np.float32(-10))
    h = f16_of_f32(maximum(minimum(x, ten), minus_ten))
    cubic = mul(h, fma(mul(h, h), splat_f32x16(np.float32(0.044715 * _ROOT_2_OVER_PI)), splat_f32x16(np.float32(_ROOT_2_OVER_PI))))
    half = mul(h, splat_f32x16(np.float32(0.5)))
    y = f16_of_f32(fma(half, tanh(cubic), half))
    return select_less(x, ten, select_less(minus_ten, x, y, zero_f32x16()), x)


@njit
def activation(kind, gate, up, y, i):
    """16 elements from i on of rows at addresses gate, up (or 0) -> y."""
    x = load_f32x16(gate + 4 * i)
    if kind == SWIGLU_OAI:
        seven, one = splat_f32x16(np.float32(7)), splat_f32x16(np.float32(1))
        x = minimum(x, seven)
        linear = maximum(minimum(load_f32x16(up + 4 * i), seven), splat_f32x16(np.float32(-7)))
        store_f32x16(y + 4 * i, mul(mul(x, sigmoid(mul(x, splat_f32x16(np.float32(1.702))))), add(linear, one)))
        return
    if kind == SILU:
        v = mul(x, sigmoid(x))
    elif kind == GELU:
        v = gelu(x)
    elif kind == GELU_QUICK:
        v = mul(x, sigmoid(mul(x, splat_f32x16(np.float32(1.702)))))
    else:
        v = maximum(x, zero_f32x16())
        if kind == RELU2:
            v = mul(v, v)
        if kind == GELU_ERF:  # no vector erf: rare and never hot
            for k in range(16):
                e = np.float64(load_f32(gate + 4 * (i + k)))
                store_f32(y + 4 * (i + k), np.float32(0.5 * e * (1 + math.erf(e / math.sqrt(2)))))
            v = load_f32x16(y + 4 * i)
    if up:
        v = mul(v, load_f32x16(up + 4 * i))
    store_f32x16(y + 4 * i, v)


@op_kernel("activate")
def activate(op, batch, rank, size):
    """Tasks are (row, 64 columns), split in order. y may be gate's own row."""
    spans = (op.columns + 63) // 64
    tasks = batch.n_tokens * spans
    share = (tasks + size - 1) // size
    scratch = op.scratch + rank * op.scratch_bytes
    for task in range(rank * share, min(tasks, rank * share + share)):
        row, start = task // spans, task % spans * 64
        gate = op.gate + 4 * op.gate_stride * row
        up = op.up + 4 * op.up_stride * row if op.up else 0
        y = op.y + 4 * op.y_stride * row if op.y else scratch
        stop = min(start + 64, op.columns)
        for i in range(start, stop, 16):
            activation(op.activation, gate, up, y, i)
        if op.q:
            quantize_span(y, start, stop, op.columns, row, batch.n_tokens, op.q, op.q_scales, op.q_sums, op.q_sums16, op.q_stride)


@op_kernel("add")
def add_rows(op, batch, rank, size):
    scale, b_scale = splat_f32x16(np.float32(op.scale)), splat_f32x16(np.float32(op.b_scale))
    spans = (op.columns + 63) // 64
    tasks = batch.n_tokens * spans
    share = (tasks + size - 1) // size
    for task in range(rank * share, min(tasks, rank * share + share)):
        row, start = task // spans, task % spans * 64
        for i in range(start, min(start + 64, op.columns), 16):
            v = mul(load_f32x16(op.a + 4 * (op.a_stride * row + i)), scale)
            if op.b:
                v = fma(load_f32x16(op.b + 4 * (op.b_stride * row + i)), b_scale, v)
            store_f32x16(op.y + 4 * (op.y_stride * row + i), v)


@op_kernel("softcap")
def softcap(op, batch, rank, size):
    """In place on the logits: rows are logit rows."""
    spans = (op.columns + 1023) // 1024
    tasks = batch.n_logit_rows * spans
    share = (tasks + size - 1) // size
    scale, cap = np.float32(op.scale), np.float32(op.cap)
    for task in range(rank * share, min(tasks, rank * share + share)):
        row, start = task // spans, task % spans * 1024
        for i in range(start, min(start + 1024, op.columns), 16):
            x = op.x + 4 * (op.x_stride * row + i)
            v = mul(load_f32x16(x), splat_f32x16(scale))
            if op.cap != 0:
                v = mul(tanh(mul(v, splat_f32x16(np.float32(1) / cap))), splat_f32x16(cap))
            store_f32x16(x, v)
