"""Quantized formats: their numpy definitions against the gguf package, bit for bit, and the table of formats."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest

from cpuinfer.errors import UnsupportedModel
from cpuinfer.formats import quants
from cpuinfer.formats.quants import grid_codes, grids
from cpuinfer.formats.types import GGML_TYPES

FORMATS = list(quants.all().values())
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=str)


def gguf_type(fmt):
    return gguf.GGMLQuantizationType[fmt.name]


def random_blocks(fmt, count, seed=0):
    """Structured blocks [count] of random bytes whose halves and floats are random finite numbers of both signs."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count, fmt.block_bytes), np.uint8).view(fmt.dtype).reshape(count)
    for name in fmt.dtype.names:
        if fmt.dtype[name].kind == "f":
            blocks[name] = generator.normal(0, 0.3, count)
        if name == "exponent":
            blocks[name] = generator.integers(0, 250, count)
        if fmt.name == "IQ1_M":  # its half is spread over the upper bits of four words
            halves = generator.normal(0, 0.3, count).astype(np.float16).view(np.uint16)
            blocks["scales"] = blocks["scales"] & 0x0FFF | (halves[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        if fmt.name == "BF16":
            blocks[name] = generator.normal(0, 0.3, count).astype(np.float32).view(np.uint32) >> 16
    return blocks


# ---- definitions -----------------------------------------------------------------------------------------------------------------------


def gguf_implements(fmt):
    try:
        gguf.quants.dequantize(random_blocks(fmt, 1).view(np.uint8), gguf_type(fmt))
    except (NotImplementedError, KeyError):
        return False
    return True


@pytest.mark.parametrize("fmt", [f for f in FORMATS if gguf_implements(f)], ids=str)
def test_the_definition_equals_the_gguf_package_bit_for_bit(fmt):
    rows = random_blocks(fmt, 7 * 96).view(np.uint8).reshape(7, -1)
    expected = gguf.quants.dequantize(rows, gguf_type(fmt))
    result = fmt.dequantize(rows)
    assert result.dtype == np.float32 and result.shape == (7, 96 * fmt.weights)
    np.testing.assert_array_equal(result, expected)


def quantizable():
    for fmt in FORMATS:
        try:
            gguf.quants.quantize(np.ones((1, 256), np.float32), gguf_type(fmt))
        except (NotImplementedError, KeyError):
            continue
        yield fmt


# Largest error of a quantizer over values in -1..1, by its bits and its way of rounding.
ERRORS = {"F32": 0, "F16": 3e-4, "BF16": 2e-3, "Q8_0": 5e-3, "Q5_0": 0.07, "Q5_1": 0.04, "Q4_0": 0.13, "Q4_1": 0.07}


@pytest.mark.parametrize("fmt", list(quantizable()), ids=str)
def test_what_the_gguf_package_quantized_is_read_back(fmt):
    values = np.random.default_rng(3).uniform(-1, 1, (3, 512)).astype(np.float32)
    rows = gguf.quants.quantize(values, gguf_type(fmt)).view(np.uint8)
    np.testing.assert_array_equal(fmt.dequantize(rows), gguf.quants.dequantize(rows, gguf_type(fmt)).reshape(3, 512))
    assert np.abs(fmt.dequantize(rows) - values).max() <= ERRORS.get(fmt.name, 0.51)


@each_format
def test_a_block_of_zero_bytes_is_zero_weights(fmt):
    """The drivers pad a row's last unit with zero bytes."""
    np.testing.assert_array_equal(fmt.dequantize(np.zeros(fmt.block_bytes, np.uint8)), np.zeros(fmt.weights, np.float32))


def test_a_leading_shape_is_kept():
    rows = random_blocks(quants.get("Q4_K"), 12).view(np.uint8).reshape(2, 3, -1)
    assert quants.get("Q4_K").dequantize(rows).shape == (2, 3, 512)


def test_q1_0_takes_signs_from_the_lowest_bit_up():
    """The gguf package only knows its size."""
    block = np.array([0x00, 0x3C, 0b0000_0101, *[0] * 14, 0b1000_0000], np.uint8)  # scale 1.0
    expected = np.full(128, -1, np.float32)
    expected[[0, 2, 127]] = 1
    np.testing.assert_array_equal(quants.get("Q1_0").dequantize(block), expected)


def test_q2_0_takes_codes_from_the_lowest_bits_up():
    """The gguf package does not know it."""
    block = np.array([0x00, 0x3C, 0b11_10_01_00, *[0b01_01_01_01] * 14, 0b00_01_01_01], np.uint8)  # scale 1.0
    expected = np.zeros(64, np.float32)
    expected[[0, 2, 3, 63]] = -1, 1, 2, -1
    np.testing.assert_array_equal(quants.get("Q2_0").dequantize(block), expected)


GRIDS = {"IQ1": "IQ1_S", "IQ2_XXS": "IQ2_XXS", "IQ2_XS": "IQ2_XS", "IQ2_S": "IQ2_S", "IQ3_XXS": "IQ3_XXS", "IQ3_S": "IQ3_S"}


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_that_of_the_gguf_package(name):
    theirs = getattr(gguf.quants, GRIDS[name])
    theirs.init_grid()
    np.testing.assert_array_equal(grids.points(name), theirs.grid.reshape(theirs.grid_shape))


def test_the_eighth_sign_makes_the_number_of_negative_ones_even():
    signs = grid_codes.with_eighth(np.arange(128, dtype=np.uint8))
    np.testing.assert_array_equal(signs, np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8))


# ---- the table -------------------------------------------------------------------------------------------------------------------------


@each_format
def test_block_sizes_are_those_of_the_type(fmt):
    known = {t.name: (t.block_weights, t.block_bytes) for t in GGML_TYPES.values()}
    assert known[fmt.name] == (fmt.weights, fmt.block_bytes)
    assert fmt.unit_bytes * fmt.weights == fmt.block_bytes * fmt.unit_weights
    assert fmt.unit_weights in (16, 64, 256)  # what the drivers unroll
    assert fmt.group in (16, 32) and fmt.zero >= 0


def test_every_type_that_common_files_use_is_here():
    assert set(quants.all()) >= {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}


def test_an_unknown_type_is_refused_with_the_list_of_known_ones():
    with pytest.raises(UnsupportedModel, match=r"Q8_K is not supported; supported: BF16, .*Q4_K"):
        quants.get("Q8_K")


@pytest.mark.parametrize("name, kind", [("I8", "i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8"), ("F64", "<f8")])
def test_plain_numbers_are_read_as_they_are_but_are_no_matrices(name, kind):
    values = np.array([0, 1, -1, 100, -128, 127], kind)
    np.testing.assert_array_equal(quants.get(name).dequantize(values.view(np.uint8)), values)
    with pytest.raises(UnsupportedModel, match=f"{name} is supported for norms and biases, not for matrices; supported there: BF16, .*Q8_0"):
        quants.for_matrix(name)


def test_one_format_is_found_without_importing_the_others():
    code = "import sys; from cpuinfer.formats import quants; quants.get('Q4_K'); assert 'cpuinfer.formats.quants.q5_0' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_formats_load_without_numba():
    code = "import sys; from cpuinfer.formats import quants; quants.all(); assert not {'numba', 'llvmlite', 'gguf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
