"""The GGUF reader: equal to the gguf package on good files, one clear line for every kind of bad one."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuinfer.errors import CpuinferError
from cpuinfer.formats.gguf import GGUFFile
from cpuinfer.formats.types import GGML_TYPES

HUGE = 1 << 63


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def u32_key(name: bytes, value: int) -> bytes:
    return text(name) + struct.pack("<II", 4, value)


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)


def build(keys: list[bytes] = (), tensors: list[bytes] = (), data: bytes = b"", version: int = 3, n_keys=None, n_tensors=None, magic: bytes = b"GGUF") -> bytes:
    counts = struct.pack("<QQ", len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    header = magic + struct.pack("<I", version) + counts + b"".join(keys) + b"".join(tensors)
    return header + b"\0" * (-len(header) % 32) + data


def array(name: bytes, kind: int, count: int, values: bytes = b"") -> bytes:
    return text(name) + struct.pack("<IIQ", 9, kind, count) + values


NESTED = struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQ", 0, 1) + b"\0"
BAD = {
    "empty": b"",
    "magic only": b"GGUF",
    "version only": b"GGUF\3\0\0\0",
    "half a count": b"GGUF\3\0\0\0\0\0\0",
    "html": b"<!DOCTYPE html><html><head>not found</head></html>",
    "html with blanks before": b"\n\n  <html></html>",
    "zip": b"PK\x03\x04" + b"\0" * 60,
    "pickle": b"\x80\x02}q\0." + b"\0" * 60,
    "safetensors": struct.pack("<Q", 30) + b'{"a":{"dtype":"F32"}}' + b" " * 30,
    "git lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "old ggml": b"ggjt" + b"\0" * 60,
    "gzip": b"\x1f\x8b\x08" + b"\0" * 60,
    "text": b"hello, this is not a model at all, just text",
    "big endian": b"GGUF" + struct.pack(">I", 3) + b"\0" * 60,
    **{f"version {v}": build(version=v) for v in (0, 1, 4, 99)},
    **{f"key count {n}": build(n_keys=n) for n in (1, 1 << 32, HUGE, (1 << 64) - 1)},
    **{f"tensor count {n}": build(n_tensors=n) for n in (1, 1 << 32, HUGE // 56, HUGE, (1 << 64) - 1)},
    **{f"key of {n} bytes": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, n) + b"k" * 40 for n in (100, HUGE, (1 << 64) - 1)},
    "key that is not utf-8": build([text(b"\xff\xfe") + struct.pack("<II", 4, 1)]),
    "value that is not utf-8": build([text(b"k") + struct.pack("<I", 8) + text(b"\xff\xfe")]),
    "duplicate key": build([u32_key(b"k", 1), u32_key(b"k", 2)]),
    **{f"value type {n}": build([text(b"k") + struct.pack("<I", n) + b"\0" * 64]) for n in (13, 255, 1 << 31)},
    **{f"string of {n}": build([text(b"k") + struct.pack("<IQ", 8, n)]) for n in (1000, HUGE)},
    **{f"array of {n} u8": build([array(b"k", 0, n)]) for n in (1000, 1 << 40, HUGE)},
    **{f"array of {n} strings": build([array(b"k", 8, n)]) for n in (100, 1 << 40, HUGE)},
    "array of strings that end early": build([array(b"k", 8, 3, text(b"ab"))]),
    "array of unknown type": build([array(b"k", 77, 1, b"\0" * 64)]),
    "nested array of 2^62": build([array(b"k", 9, 1, struct.pack("<IQ", 9, 1 << 62))]),
    "arrays nested too deep": build([text(b"k") + struct.pack("<I", 9) + NESTED]),
    **{f"alignment {n}": build([u32_key(b"general.alignment", n)], [tensor(b"t", (8,))], b"\0" * 64) for n in (0, 1, 2, 3, 4, 12, 24, 33, 1 << 21, 1 << 31)},
    "alignment that is a string": build([text(b"general.alignment") + struct.pack("<I", 8) + text(b"32")]),
    **{f"{n} dimensions": build(tensors=[tensor(b"t", (1,) * n)], data=b"\0" * 64) for n in (0, 5, 200)},
    "dimension 0": build(tensors=[tensor(b"t", (8, 0))], data=b"\0" * 64),
    "dimension 2^63": build(tensors=[tensor(b"t", (HUGE,))], data=b"\0" * 64),
    "size that wraps in 64 bits": build(tensors=[tensor(b"t", (1152, (1 << 42) + 1), 8)], data=b"\0" * 4096),
    "dimensions that wrap to zero": build(tensors=[tensor(b"t", (1 << 32, 1 << 32))], data=b"\0" * 64),
    **{f"tensor type {n}": build(tensors=[tensor(b"t", (32,), n)], data=b"\0" * 128) for n in (4, 5, 99, 255, 0xFFFFFFFF)},
    "row that is no whole number of blocks": build(tensors=[tensor(b"t", (33,), 2)], data=b"\0" * 64),
    **{f"offset {n}": build(tensors=[tensor(b"t", (8,), 0, n)], data=b"\0" * 64) for n in (1, 32768, HUGE, (1 << 64) - 32)},
    "tensor data cut by a byte": build(tensors=[tensor(b"t", (16,))], data=b"\0" * 63),
    "tensors that overlap": build(tensors=[tensor(b"t", (64, 2), 42), tensor(b"u", (8,), 0, 32)], data=b"\0" * 96),
    "a tensor inside another": build(tensors=[tensor(b"t", (8,), 0, 32), tensor(b"u", (64,))], data=b"\0" * 256),
    "no tensor data": build(tensors=[tensor(b"t", (16,))]),
    "duplicate tensor": build(tensors=[tensor(b"t", (8,)), tensor(b"t", (8,))], data=b"\0" * 64),
    "tensor name that is not utf-8": build(tensors=[tensor(b"\xff", (8,))], data=b"\0" * 64),
    "tensor name of 2^63 bytes": b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, HUGE) + b"\0" * 64,
    "split without its name": build([text(b"split.count") + struct.pack("<IH", 2, 3)]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_one_clear_line(name, tmp_path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD[name])
    with pytest.raises(CpuinferError) as caught:
        GGUFFile.open(path)
    message = str(caught.value)
    assert "bad.gguf" in message and "\n" not in message and len(message) < 500


@pytest.mark.parametrize("value, why", [(4, "multiple of 8"), (0, "multiple of 8"), (24, "power of two"), (1 << 21, "more than 1048576")])
def test_an_alignment_is_refused_with_the_rule_that_it_breaks(value, why, tmp_path) -> None:
    (tmp_path / "bad.gguf").write_bytes(BAD[f"alignment {value}"] if f"alignment {value}" in BAD else b"")
    with pytest.raises(CpuinferError, match=f"general.alignment is {value}, .*{why}"):
        GGUFFile.open(tmp_path / "bad.gguf")


@pytest.mark.parametrize("value", [8, 16, 64, 4096, 1 << 20])
def test_every_alignment_that_the_rule_allows_is_read_right(value, tmp_path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_custom_alignment(value)
    arrays = {name: np.arange(size, dtype=np.float32) for name, size in (("a", 3), ("b", 70), ("c", 1))}
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert file.alignment == value
        for name, values in arrays.items():
            assert np.array_equal(file.tensors[name].data.view(np.float32).reshape(-1), values)


def test_there_are_at_least_sixty_kinds_of_bad_files() -> None:
    assert len(BAD) >= 60


def test_a_file_cut_anywhere_is_refused(tmp_path) -> None:
    whole = tiny.model(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 400, 7), *range(400, len(whole), len(whole) // 60), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CpuinferError):
            GGUFFile.open(path)


@pytest.mark.parametrize("fmt", ["F32", "F16", "Q4_1", "Q8_0", "Q4_K"])
def test_metadata_and_tensors_are_those_of_the_gguf_package(fmt, tmp_path) -> None:
    path = tiny.model(tmp_path / "m.gguf", "llama", fmt)
    theirs = gguf.GGUFReader(path)
    with GGUFFile.open(path) as ours:
        assert set(ours.tensors) == {t.name for t in theirs.tensors}
        for t in theirs.tensors:
            mine = ours.tensors[t.name]
            assert mine.type.name == t.tensor_type.name and mine.shape == tuple(int(n) for n in reversed(t.shape))
            assert mine.data.tobytes() == t.data.tobytes() and not mine.data.flags.owndata
        for name, field in theirs.fields.items():
            if not name.startswith("GGUF."):
                expected = field.contents()
                mine = ours.metadata[name]
                assert np.array_equal(mine, expected) if isinstance(mine, np.ndarray) else list(mine) == expected if isinstance(expected, list) else mine == expected


def test_the_table_of_types_is_that_of_the_gguf_package() -> None:
    for kind in gguf.GGMLQuantizationType:
        entry = GGML_TYPES[int(kind)]
        assert (entry.name, entry.block_weights, entry.block_bytes) == (kind.name, *gguf.GGML_QUANT_SIZES[kind])


def test_a_split_file_opens_from_any_part_and_a_missing_part_is_named(tmp_path) -> None:
    def part(number: int, count: int = 3) -> bytes:
        keys = [text(b"split.count") + struct.pack("<IH", 2, count), text(b"split.no") + struct.pack("<IH", 2, number)]
        return build(keys, [tensor(f"t{number}".encode(), (16,))], bytes([number]) * 64)

    paths = [tmp_path / f"m-{n + 1:05d}-of-00003.gguf" for n in range(3)]
    for n, path in enumerate(paths):
        path.write_bytes(part(n))
    for path in paths:
        with GGUFFile.open(path) as file:
            assert list(file.tensors) == ["t0", "t1", "t2"] and file.path == paths[0]
            assert file.tensors["t2"].data[0, 0] == 2
    paths[2].write_bytes(part(1))
    with pytest.raises(CpuinferError, match="part"):
        GGUFFile.open(paths[0])
    paths[2].unlink()
    with pytest.raises(CpuinferError, match="m-00003-of-00003.gguf"):
        GGUFFile.open(paths[0])


GOOD = build(
    [u32_key(b"general.alignment", 32), text(b"s") + struct.pack("<I", 8) + text(b"value"), array(b"a", 8, 2, text(b"x") + text(b"yz")), array(b"n", 5, 3, b"\1" * 12)],
    [tensor(b"t", (16, 2)), tensor(b"q", (32,), 2, 128)],
    b"\7" * 192,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=8), st.integers(0, len(GOOD)))
def test_whatever_bytes_change_the_reader_refuses_or_reads(tmp_path_factory, changes, length) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(bytes(data[: length or len(data)]))
    try:
        with GGUFFile.open(path) as file:
            for value in file.metadata.values():
                if not isinstance(value, (int, float, str)):
                    list(value)
    except CpuinferError as error:
        assert "\n" not in str(error)
