"""The kernels' side of quantized formats: strips and scales against the numpy definitions, bit for bit, and within their memory."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import signal

import numpy as np
import pytest
from test_quants import random_blocks

from cpuinfer.formats import quants

FORMATS = [fmt for fmt in quants.all().values() if fmt.has_kernel]
CODED = [fmt for fmt in FORMATS if fmt.codes != quants.FLOAT]
FLOATS = [fmt for fmt in FORMATS if fmt.codes == quants.FLOAT]
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=str)
each_coded_format = pytest.mark.parametrize("fmt", CODED, ids=str)

PART = 64 + 64 + 64  # bytes that `decoder` writes for a strip: codes, scale, minimum


def definition(fmt, blocks):
    """float32[weights of all blocks]."""
    return fmt.dequantize(blocks.view(np.uint8))


def functions(fmt):
    """(strip, scales or None, parts of a unit) as the drivers get them."""
    bindings = fmt.bindings()
    return bindings["strip"], bindings["scales_of_256"], bindings["PARTS"]


@functools.cache
def decoder(name):
    """Compiled function void(unit, out): all strips of a unit to out, PART bytes each (64 bytes for a float format)."""
    from numba import cfunc, njit, types

    from cpuinfer.kernels import simd

    strip, _, parts = functions(quants.get(name))

    if quants.get(name).codes == quants.FLOAT:

        def decode(unit, out):
            simd.store_f32x16(out, strip(unit, 0))

    else:

        @njit
        def write(out, codes, scale, minimum):
            simd.store_u8x64(out, codes)
            simd.store_f32x16(out + 64, scale)
            simd.store_f32x16(out + 128, minimum)

        def decode(unit, out):
            codes, scale, minimum = strip(unit, 0)
            write(out, codes, scale, minimum)
            if parts > 1:
                codes, scale, minimum = strip(unit, 1)
                write(out + PART, codes, scale, minimum)
                codes, scale, minimum = strip(unit, 2)
                write(out + 2 * PART, codes, scale, minimum)
                codes, scale, minimum = strip(unit, 3)
                write(out + 3 * PART, codes, scale, minimum)

    return cfunc(types.void(types.int64, types.int64), error_model="numpy")(decode)


@functools.cache
def scales_decoder(name):
    """Compiled function void(address, out): scales of 256 weights to out, minimums to out + 64."""
    from numba import cfunc, types

    from cpuinfer.kernels import simd

    _, scales, _ = functions(quants.get(name))
    store = simd.store_f32x16 if quants.get(name).group == 16 else simd.store_f32x8

    def decode(address, out):
        scale, minimum = scales(address)
        store(out, scale)
        store(out + 64, minimum)

    return cfunc(types.void(types.int64, types.int64), error_model="numpy")(decode)


def strips(fmt, blocks):
    """Decode whole units with the compiled strip -> codes int[n, 64], scale f32[n, 16], minimum f32[n, 16]."""
    data = np.ascontiguousarray(blocks).view(np.uint8)
    units, parts = data.size // fmt.unit_bytes, fmt.unit_weights // 64
    out = np.zeros((units, parts, PART), np.uint8)
    for i in range(units):
        decoder(fmt.name).ctypes(data.ctypes.data + i * fmt.unit_bytes, out[i].ctypes.data)
    out = out.reshape(-1, PART)
    codes = out[:, :64].view(np.int8 if fmt.codes == quants.SIGNED else np.uint8).astype(int)
    return codes, out[:, 64:128].copy().view(np.float32), out[:, 128:].copy().view(np.float32)


def weights_of(fmt, codes, scale, minimum):
    return scale.repeat(4, axis=1) * (codes - fmt.zero).astype(np.float32) + minimum.repeat(4, axis=1)


@each_coded_format
def test_strips_equal_the_definition_bit_for_bit(fmt):
    blocks = random_blocks(fmt, 64 * fmt.unit_weights // fmt.weights, seed=1)
    codes, scale, minimum = strips(fmt, blocks)
    np.testing.assert_array_equal(weights_of(fmt, codes, scale, minimum).reshape(-1), definition(fmt, blocks))


@each_coded_format
def test_codes_stay_in_their_range_and_scales_are_constant_over_a_group(fmt):
    """The dot products of AVX2 saturate or overflow beyond the promised code; the panels keep one scale a group."""
    codes, scale, minimum = strips(fmt, random_blocks(fmt, 64 * fmt.unit_weights // fmt.weights, seed=2))
    if fmt.codes == quants.SIGNED:
        assert -128 <= codes.min() < 0 and codes.max() <= 127
    else:
        assert codes.min() == 0 and codes.max() == fmt.codes <= 127
    for values in (scale, minimum):
        groups = values.reshape(-1, fmt.group // 4)
        np.testing.assert_array_equal(groups, np.repeat(groups[:, :1], fmt.group // 4, axis=1))
    assert np.any(minimum) == fmt.minimum


@pytest.mark.parametrize("fmt", FLOATS, ids=str)
def test_float_strips_equal_the_definition(fmt):
    blocks = random_blocks(fmt, 16 * 32)
    out = np.zeros(16, np.float32)
    for i in range(32):
        decoder(fmt.name).ctypes(blocks.ctypes.data + i * fmt.unit_bytes, out.ctypes.data)
        np.testing.assert_array_equal(out, definition(fmt, blocks[16 * i : 16 * i + 16]))


@pytest.mark.parametrize("fmt", [f for f in FLOATS if f.name != "F32"], ids=str)
def test_every_float_of_two_bytes_is_read_right(fmt):
    """All 65536 patterns, subnormals and infinities included; a NaN stays a NaN."""
    blocks = np.arange(65536, dtype=np.uint16).view(fmt.dtype)
    out = np.zeros(65536, np.float32)
    for i in range(0, 65536, 16):
        decoder(fmt.name).ctypes(blocks.ctypes.data + 2 * i, out.ctypes.data + 4 * i)
    np.testing.assert_array_equal(out, definition(fmt, blocks))


@pytest.mark.parametrize("fmt", CODED, ids=str)
def test_scales_of_256_weights_equal_those_of_the_strips(fmt):
    count = 8
    blocks = random_blocks(fmt, count * 256 // fmt.weights, seed=4)
    _, scale, minimum = strips(fmt, blocks)
    groups = 256 // fmt.group
    out = np.zeros((count, 2, 16), np.float32)
    for i in range(count):
        scales_decoder(fmt.name).ctypes(blocks.ctypes.data + i * (256 // fmt.weights) * fmt.block_bytes, out[i].ctypes.data)
    np.testing.assert_array_equal(out[:, 0, :groups].reshape(-1), scale[:, :: fmt.group // 4].reshape(-1))
    np.testing.assert_array_equal(out[:, 1, :groups].reshape(-1), minimum[:, :: fmt.group // 4].reshape(-1))


@each_coded_format
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x3B, 0x7B, 0x80, 0x88, 0xBB])
def test_blocks_of_one_repeated_byte_are_read_right(fmt, byte):
    """Zeros, all bits of a nibble, subnormal and negative scales: none of these bytes makes a half infinite."""
    blocks = np.full(fmt.unit_bytes, byte, np.uint8).view(fmt.dtype)
    np.testing.assert_array_equal(weights_of(fmt, *strips(fmt, blocks)).reshape(-1), definition(fmt, blocks))


def test_a_q8_0_code_of_minus_128_is_decoded_as_such():
    fmt = quants.get("Q8_0")
    blocks = random_blocks(fmt, 2)
    blocks["codes"] = -128
    codes, scale, minimum = strips(fmt, blocks)
    assert (codes == -128).all()
    np.testing.assert_array_equal(weights_of(fmt, codes, scale, minimum).reshape(-1), definition(fmt, blocks))


def test_every_exponent_of_mxfp4_is_a_power_of_two():
    """The two lowest are subnormal."""
    fmt = quants.get("MXFP4")
    blocks = np.full((256, 17), 0x11, np.uint8).view(fmt.dtype).reshape(256)
    blocks["exponent"] = np.arange(256)
    expected = 2.0 ** (np.arange(256.0) - 128)
    np.testing.assert_array_equal(weights_of(fmt, *strips(fmt, blocks)).reshape(256, 32), expected[:, None].repeat(32, 1))
    out = np.zeros((32, 2, 16), np.float32)
    for i in range(32):
        scales_decoder("MXFP4").ctypes(blocks.ctypes.data + i * 8 * 17, out[i].ctypes.data)
    np.testing.assert_array_equal(out[:, 0, :8].reshape(-1), expected)


def test_every_scale_of_nvfp4_is_read_right():
    fmt = quants.get("NVFP4")
    blocks = random_blocks(fmt, 64)
    blocks["scales"] = np.arange(256).reshape(64, 4)
    np.testing.assert_array_equal(weights_of(fmt, *strips(fmt, blocks)).reshape(-1), definition(fmt, blocks))


# ---- reads stay inside -----------------------------------------------------------------------------------------------------------------


class Fenced:
    """Readable memory of one page between two pages that fault."""

    def __init__(self):
        self.library = ctypes.CDLL(None, use_errno=True)
        self.library.mmap.restype = ctypes.c_void_p
        self.library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.page = os.sysconf("SC_PAGESIZE")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self.library.mmap(None, 3 * self.page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        self.start, self.end = address + self.page, address + 2 * self.page
        for fence in (address, self.end):
            assert self.library.mprotect(fence, self.page, 0) == 0


def survives(function, *arguments) -> bool:
    """Whether a forked child can call the function; False where a memory fault kills it."""
    child = os.fork()
    if child == 0:
        for number in (signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)  # pytest's fault handler would print a traceback
        function(*arguments)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFEXITED(status) or os.WTERMSIG(status) in (signal.SIGSEGV, signal.SIGBUS)
    return os.WIFEXITED(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@each_format
def test_strips_and_scales_read_only_inside_their_unit(fmt):
    memory, out = Fenced(), np.zeros(4 * PART, np.uint8)
    calls = [(decoder(fmt.name).ctypes, fmt.unit_bytes)]
    if functions(fmt)[1] is not None:
        calls.append((scales_decoder(fmt.name).ctypes, 256 // fmt.weights * fmt.block_bytes))
    for function, size in calls:
        assert survives(function, memory.start, out.ctypes.data), "reads before its unit"
        assert survives(function, memory.end - size, out.ctypes.data), "reads past its unit"
    function, size = calls[0]
    assert not survives(function, memory.end - size + 1, out.ctypes.data), "the fence does not work"
