"""Norms of rows and heads, and Q8 activations, against their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from call import Q8, rows, run

from cpuinfer.kernels.records import FEW
from cpuinfer.kernels.tiles import TOKENS

RANKS = [1, 3]
KINDS = pytest.mark.parametrize("kind", [0, 1], ids=["rms", "layer"])


def normalized(x: np.ndarray, kind: int, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == 1:
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def vectors(count: int, columns: int) -> tuple[np.ndarray, ...]:
    """x, residual [count, columns], weight, bias [columns]. The mean is not zero."""
    random = np.random.default_rng(columns)
    shapes = ((count, columns), (count, columns), (columns,), (columns,))
    return tuple((random.standard_normal(shape) + 0.5).astype(np.float32) for shape in shapes)


@KINDS
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("options", ["", "weight", "bias", "weight bias", "weight residual", "weight gather", "weight bias residual in_place"])
@pytest.mark.parametrize("columns", [16, 90, 576])
def test_rows_are_normed(kind, columns, options, ranks):
    count, eps = 5, 1e-3
    x, residual, weight, bias = vectors(count, columns)
    source, added = rows(x), rows(residual)
    w, b = rows(weight[None], spare=0)[0], rows(bias[None], spare=0)[0]
    chosen = np.array([4, 0, 4], np.int32) if "gather" in options else np.arange(count, dtype=np.int32)
    y = added if "in_place" in options else rows(np.zeros((len(chosen), columns)))
    fields = {"x": source, "x_stride": source.shape[1], "columns": columns, "kind": kind, "eps": eps, "y": y, "y_stride": y.shape[1]}
    expected = normalized(x, kind, eps)[chosen]
    if "weight" in options:
        fields["weight"], expected = w, expected * weight
    if "bias" in options:
        fields["bias"], expected = b, expected + bias
    if "residual" in options:
        fields |= {"residual": added, "residual_stride": added.shape[1]}
        expected = expected + residual
    fields["gather"] = int("gather" in options)
    # A gathering norm runs over logit rows, any other over tokens.
    run(("norm",), fields, {"n_tokens": count, "n_logit_rows": len(chosen), "logit_rows": chosen}, ranks)
    np.testing.assert_allclose(y, rows(expected), rtol=2e-6, atol=2e-6)


@KINDS
@pytest.mark.parametrize("with_y", [True, False])
@pytest.mark.parametrize("count, columns", [(1, 576), (5, 90), (FEW + 4, 300)])
def test_a_norm_that_quantizes_equals_a_norm_and_a_quantization(count, columns, with_y, kind):
    x, _, weight, _ = vectors(count, columns)
    source, w = rows(x), rows(weight[None], spare=0)[0]
    y, fused, separate = rows(np.zeros((count, columns))), Q8(count, columns), Q8(count, columns)
    fields = {"x": source, "x_stride": source.shape[1], "columns": columns, "kind": kind, "eps": 1e-6, "weight": w}
    written = {"y": y, "y_stride": y.shape[1]}
    run(("norm",), fields | written, {"n_tokens": count})
    run(("quantize",), {"x": y, "x_stride": y.shape[1], "columns": columns} | separate.fields(), {"n_tokens": count})
    run(("norm",), fields | (written if with_y else {}) | fused.fields(), {"n_tokens": count}, 3)
    assert fused.codes.any()
    for name in ("codes", "scales", "sums", "sums16"):
        np.testing.assert_array_equal(getattr(fused, name), getattr(separate, name), err_msg=name)


@KINDS
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("per_head", [0, 1])
@pytest.mark.parametrize("options", ["weight", "weight bias", "plain"])
@pytest.mark.parametrize("head_dim", [16, 20, 80, 96, 128])
def test_heads_are_normed_in_place_each_by_itself(kind, head_dim, options, per_head, ranks):
    count, n_heads, eps = 4, 3, 1e-5
    x, _, weight, bias = vectors(count, n_heads * head_dim)
    actual, shape = rows(x), (n_heads, head_dim) if per_head else (head_dim,)
    weight, bias = weight[: int(np.prod(shape))], bias[: int(np.prod(shape))]
    expected = normalized(x.reshape(count, n_heads, head_dim), kind, eps)
    fields = {"x": actual, "x_stride": actual.shape[1], "n_heads": n_heads, "head_dim": head_dim, "kind": kind, "per_head": per_head, "eps": eps}
    if "weight" in options:
        fields["weight"], expected = weight, expected * weight.reshape(shape)
    if "bias" in options:
        fields["bias"], expected = bias, expected + bias.reshape(shape)
    run(("head_norm",), fields, {"n_tokens": count}, ranks)
    np.testing.assert_allclose(actual, rows(expected.reshape(count, -1)), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1e4, 1e17])
def test_rows_of_any_size_are_normed(size):
    x = (size * np.random.default_rng(0).standard_normal((2, 64))).astype(np.float32)
    source, y, eps = rows(x), rows(np.zeros((2, 64))), 1e-6
    run(("norm",), {"x": source, "x_stride": 64, "columns": 64, "eps": eps, "y": y, "y_stride": 64}, {"n_tokens": 2})
    np.testing.assert_allclose(y, rows(normalized(x, 0, eps)), rtol=3e-6)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 41])
@pytest.mark.parametrize("columns", [32, 90, 256, 576])
def test_codes_scales_and_sums_are_those_of_the_definition(count, columns, ranks):
    x = np.random.default_rng(columns).standard_normal((count, columns)).astype(np.float32)
    x[-1, :16] *= 1e6
    if count > 1:
        x[0, :32] = 0
    source, q = rows(x), Q8(count, columns)
    for array in (q.codes, q.scales, q.sums, q.sums16):
        array.view(np.uint8)[:] = 7  # what a batch before may have left
    run(("quantize",), {"x": source, "x_stride": source.shape[1], "columns": columns} | q.fields(), {"n_tokens": count}, ranks)
    codes, limit = q.decoded_codes(FEW, TOKENS), 32767 if count == 1 else 127
    scales, sums, sums16 = (q.untiled(a, count, FEW, TOKENS) for a in (q.scales, q.sums, q.sums16))
    n = -(-columns // 64) * 64
    padded = np.zeros((count, n), np.float32)
    padded[:, :columns] = x
    groups = padded.reshape(count, -1, 32)
    scale = scales[:, : n // 32, None].astype(np.float64)
    np.testing.assert_allclose(scale[..., 0], np.abs(groups).max(-1) / limit, rtol=3e-7)
    assert np.abs(codes[:, :n]).max() == limit
    decoded = codes[:, :n].astype(np.float64).reshape(groups.shape) * scale
    assert (np.abs(decoded - groups) <= (0.50001 if count > 1 else 0.51) * scale).all()
    tolerance = 1e-5 * scale.repeat(2, 1)[..., 0] * limit
    assert (np.abs(sums[:, : n // 32] - decoded.sum(-1)) <= tolerance[:, ::2]).all()
    assert (np.abs(sums16[:, : n // 16] - decoded.reshape(count, -1, 16).sum(-1)) <= tolerance).all()
    if count <= FEW:
        assert not scales[:, n // 32 :].any() and not sums[:, n // 32 :].any() and not sums16[:, n // 16 :].any()
