"""Rotary embedding and the writing of cache rows, against their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from call import Sequences, rows, run

from cpuinfer.kernels.records import CACHE_TYPES, PAGE, cache_row_bytes
from cpuinfer.program.reference import encode_rows

RANKS = [1, 3]
BATCH = ((5, 3), (100, 1), (0, 9))


def table_of(sequences: Sequences, frequencies: np.ndarray, magnitude: float, ranks: int) -> np.ndarray:
    table = rows(np.zeros((sequences.n_tokens, 2 * len(frequencies))))
    fields = {"frequencies": frequencies, "dimensions": 2 * len(frequencies), "table": table, "table_stride": table.shape[1], "magnitude": magnitude}
    run(("rope_table",), fields, sequences.batch(), ranks)
    return table


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dimensions", [2, 20, 64])
def test_the_table_holds_cosines_and_sines_of_position_times_frequency(dimensions, ranks):
    s = Sequences((1_000_000, 4), (3, 2))
    frequencies = 10000.0 ** -(np.arange(0, dimensions, 2) / dimensions)
    table = table_of(s, frequencies, 1.25, ranks)
    angles = s.positions[:, None] * frequencies
    np.testing.assert_allclose(table[: s.n_tokens, :dimensions], 1.25 * np.concatenate([np.cos(angles), np.sin(angles)], 1), atol=2e-7)
    assert not table[: s.n_tokens, dimensions:].any() and not table[s.n_tokens :].any()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("style", [0, 1], ids=["interleaved", "halves"])
@pytest.mark.parametrize("head_dim, dimensions", [(64, 64), (20, 20), (80, 80), (96, 72), (128, 32), (256, 256), (18, 6), (64, 2)])
def test_heads_are_rotated_in_place_and_nothing_else_changes(style, head_dim, dimensions, ranks):
    s, n_heads = Sequences(*BATCH), 3
    random = np.random.default_rng(1)
    x = random.standard_normal((s.n_tokens, n_heads, head_dim)).astype(np.float32)
    frequencies = 500.0 ** -(np.arange(0, dimensions, 2) / dimensions)
    actual = rows(x.reshape(s.n_tokens, -1))
    table = table_of(s, frequencies, 1.0, 1)
    fields = {"x": actual, "x_stride": actual.shape[1], "n_heads": n_heads, "head_dim": head_dim, "dimensions": dimensions}
    run(("rope",), fields | {"style": style, "table": table, "table_stride": table.shape[1]}, s.batch(), ranks)

    turned = x.astype(np.float64)
    first, second = (slice(0, dimensions, 2), slice(1, dimensions, 2)) if style == 0 else (slice(0, dimensions // 2), slice(dimensions // 2, dimensions))
    rotation = np.exp(1j * s.positions[:, None, None] * frequencies)
    numbers = (turned[..., first] + 1j * turned[..., second]) * rotation
    turned[..., first], turned[..., second] = numbers.real, numbers.imag
    np.testing.assert_allclose(actual, rows(turned.reshape(s.n_tokens, -1)), atol=2e-6)
    untouched = actual[: s.n_tokens, : n_heads * head_dim].reshape(x.shape)[..., dimensions:]
    np.testing.assert_array_equal(untouched, x[..., dimensions:])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("head_dim", [16, 20, 64, 80, 96, 256])
def test_rows_go_to_their_slots_and_to_no_other(cache_type, head_dim, ranks):
    s, n_heads = Sequences(*BATCH), 3
    x = np.random.default_rng(2).standard_normal((s.n_tokens, n_heads, head_dim)).astype(np.float32)
    x[0, 0] = 0  # a row without a scale
    x[1, 1] *= 1e-3
    padded = rows(x.reshape(s.n_tokens, -1))
    row_bytes = cache_row_bytes(cache_type, head_dim)
    cache = np.full((s.n_pages, n_heads, PAGE, row_bytes), 0xA5, np.uint8)
    expected = cache.copy()
    expected[s.slots // PAGE, :, s.slots % PAGE] = encode_rows(x, cache_type)
    fields = {"x": padded, "x_stride": padded.shape[1], "n_heads": n_heads, "head_dim": head_dim, "cache": cache, "row_bytes": row_bytes}
    run(("store_kv", cache_type), fields, s.batch(), ranks)
    if cache_type == "q8_0":
        # The kernel multiplies by the reciprocal of a scale, so a code may be one off where it lies between two.
        codes = (..., slice(0, -(-head_dim // 32) * 32))
        assert np.abs(cache[codes].view(np.int8).astype(int) - expected[codes].view(np.int8)).max() <= 1
        assert (cache[codes] != expected[codes]).mean() < 1e-3
        cache[codes] = expected[codes]
        scales = (..., slice(codes[1].stop, None))
        np.testing.assert_allclose(cache[scales].copy().view(np.float32), expected[scales].copy().view(np.float32), rtol=1e-6)
    else:
        np.testing.assert_array_equal(cache, expected)


def test_halves_are_rounded_to_nearest_even_and_overflow_to_infinity():
    s = Sequences((0, 1))
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519, 65520, 1e6, -1e6, 6e-8, 2.9e-8, -0.0, 5e-5, 1e-7, 0, 1, -1, 0.1], np.float32)
    x, cache = rows(values[None]), np.zeros((s.n_pages, 1, PAGE, 32), np.uint8)
    run(("store_kv", "f16"), {"x": x, "x_stride": 16, "n_heads": 1, "head_dim": 16, "cache": cache, "row_bytes": 32}, s.batch())
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(cache[s.slots[0] // PAGE, 0, 0].view(np.float16), values.astype(np.float16))
