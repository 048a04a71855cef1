"""GGUF files, versions 2 and 3, little endian: header, metadata and zero-copy tensor views of the memory-mapped file (spec: ggml/docs/gguf.md).

Nothing in the file is trusted: every count, length, offset, dimension and type is checked with Python's unbounded integers against the bytes that are there, before
anything is allocated. A bad file raises GGUFError with one line that names the field.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import GGUFError, UnsupportedModel
from . import split
from .types import GGML_TYPES, GGMLType

T = TypeVar("T")
MAXIMUM_DIMENSIONS = 4
MAXIMUM_NESTING = 4
MAXIMUM_KEY_BYTES = 65535
MAXIMUM_ALIGNMENT = 1 << 20

# Value types of metadata: number -> (struct format, bytes, numpy type); 8 is a string, 9 an array.
_SCALARS = {
    0: ("<B", 1, "u1"),
    1: ("<b", 1, "i1"),
    2: ("<H", 2, "<u2"),
    3: ("<h", 2, "<i2"),
    4: ("<I", 4, "<u4"),
    5: ("<i", 4, "<i4"),
    6: ("<f", 4, "<f4"),
    7: ("<?", 1, "?"),
    10: ("<Q", 8, "<u8"),
    11: ("<q", 8, "<i8"),
    12: ("<d", 8, "<f8"),
}
_STRING, _ARRAY = 8, 9

# First bytes of what people mistake for a GGUF file.
_OTHER_FILES = (
    (b"GGML", "an old GGML file; convert the model to GGUF"),
    (b"ggjt", "an old GGJT file; convert the model to GGUF"),
    (b"lmgg", "an old GGML file; convert the model to GGUF"),
    (b"tjgg", "an old GGJT file; convert the model to GGUF"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?), not GGUF"),
    (b"\x80\x02", "a Python pickle, not GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer: the model itself was not downloaded"),
    (b"\x1f\x8b", "gzip data: decompress it first"),
    (b"FUGG", "a big-endian GGUF file: only little-endian ones are supported"),
)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file. shape: numpy order, (rows, columns), (experts, rows, columns) or (n,). data: u1[rows in all, row_bytes], a view of the map."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def n_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


class GGUFFile:
    """An open GGUF file (all parts of it, if it is split). Use `open`; close() or a with block ends the mapping once no view is left."""

    def __init__(self, path: Path):
        self.path = path
        self.version = 0
        self.alignment = 32
        self.metadata: dict[str, Any] = {}
        self.keys_read: set[str] = set()  # that `get` was asked for
        self.tensors_read: set[str] = set()  # that Weights was asked for, or whoever else uses one
        self.tensors: dict[str, TensorInfo] = {}
        self.size_bytes = 0
        self._maps: list[mmap.mmap] = []

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Open a file, or all parts of a split one given any part.

        Raises GGUFError if the file is missing, unreadable, truncated, damaged or of another kind.
        """
        path = Path(path)
        file = cls(path)
        try:
            parts = split.part_paths(path)
            file.path = parts[0] if parts else path
            file._add_part(file.path)
            expected = file.metadata.get("split.count", 1)
            if parts:
                split.check_first(file.path, file.metadata, len(parts))
                for number, part in enumerate(parts[1:], start=1):
                    file._add_part(part, number, len(parts))
                split.check_tensors(file.path, file.metadata, len(file.tensors))
            elif isinstance(expected, int) and expected > 1:
                raise GGUFError(f"{path} is one part of {expected}, but its name does not end in -00001-of-{expected:05d}.gguf; restore the original names")
        except BaseException:
            file.close()
            raise
        return file

    def _add_part(self, path: Path, number: int = 0, count: int = 1) -> None:
        data = _map(path)
        self._maps.append(data)
        self.size_bytes += len(data)
        reader = _Reader(path, data)
        version, metadata, alignment, tensors = reader.parse()
        if number == 0:
            self.version, self.metadata, self.alignment = version, metadata, alignment
        else:
            split.check_part(path, metadata, number, count)
        for tensor in tensors:
            if tensor.name in self.tensors:
                raise GGUFError(f"{path}: tensor {tensor.name} occurs twice; download the file again")
            self.tensors[tensor.name] = tensor

    def get(self, key: str, kind: type[T] | tuple[type, ...], default: Any = ...) -> Any:
        """Metadata value of that key, checked to be of a type (int, float, bool, str, np.ndarray, list).

        An int is accepted where float is wanted. Raises GGUFError if the key is missing and no default is given, or the type is wrong.
        """
        self.keys_read.add(key)
        if key not in self.metadata:
            if default is ...:
                raise GGUFError(f"{self.path}: the metadata lacks {key}; the file is incomplete, download or convert it again")
            return default
        value = self.metadata[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if float in kinds and type(value) is int:
            return float(value)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise GGUFError(f"{self.path}: metadata {key} is {type(value).__name__}, not {wanted}; the file is damaged, download or convert it again")
        return value

    def close(self) -> None:
        """Drop tensors and unmap. A view that is still in use keeps its part mapped."""
        self.tensors = {}
        for data in self._maps:
            try:
                data.close()
            except BufferError:
                pass  # numpy views exist; the map goes with the last of them
        self._maps = []

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _map(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as handle:
            size = handle.seek(0, 2)
            if size == 0:
                raise GGUFError(f"{path} is empty; download it again")
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except IsADirectoryError:
        raise GGUFError(f"{path} is a folder; name a .gguf file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GGUFError(f"cannot read {path}: {reason}; check the name and its permissions") from None


class StringArray(Sequence[str]):
    """An array of strings in the file, decoded when first used: vocabularies are large and `info` does not need them."""

    def __init__(self, path: Path, key: str, data: mmap.mmap, starts: list[int], ends: list[int]):
        self._path, self._key = path, key
        self._raw: list[bytes] | None = [data[start:end] for start, end in zip(starts, ends)]
        self._strings: list[str] = []
        self._count = len(starts)

    def _decoded(self) -> list[str]:
        if self._raw is not None:
            try:
                self._strings = [raw.decode() for raw in self._raw]
            except UnicodeDecodeError as error:
                raise GGUFError(f"{self._path}: metadata {self._key} has a string that is not UTF-8 ({error.reason}); the file is damaged") from None
            self._raw = None
        return self._strings

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._decoded()[index]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._decoded())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, (str, bytes)) and list(self) == list(other)


class _Reader:
    """Parses one file; `position` never passes the end of the data."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data, self.size, self.position = path, data, len(data), 0

    def fail(self, what: str) -> GGUFError:
        return GGUFError(f"{self.path}: {what}; the file is truncated or damaged, download it again")

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.position:
            raise self.fail(f"file ends inside {what} (it has {self.size} bytes, {self.position + count} are needed)")

    def number(self, code: str, size: int, what: str) -> Any:
        self.need(size, what)
        value = struct.unpack_from(code, self.data, self.position)[0]
        self.position += size
        return value

    def u32(self, what: str) -> int:
        return self.number("<I", 4, what)

    def u64(self, what: str) -> int:
        return self.number("<Q", 8, what)

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(f"the length of {what}")
        if limit is not None and length > limit:
            raise self.fail(f"{what} is {length} bytes long, more than {limit}")
        self.need(length, what)
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8 ({error.reason})") from None

    def parse(self) -> tuple[int, dict[str, Any], int, list[TensorInfo]]:
        self._magic()
        version = self.u32("the header")
        if version >> 16 and not version & 0xFFFF:
            raise GGUFError(f"{self.path}: a big-endian GGUF file: only little-endian ones are supported; convert it")
        if version not in (2, 3):
            raise GGUFError(f"{self.path}: GGUF version {version} is not supported, only 2 and 3; convert the model again")
        n_tensors, n_keys = self.u64("the header"), self.u64("the header")
        left = self.size - self.position
        # The smallest metadata entry has 13 bytes (empty key, type, one byte), the smallest tensor entry 28.
        for count, smallest, what in ((n_keys, 13, "metadata entries"), (n_tensors, 28, "tensors")):
            if count * smallest > left:
                raise self.fail(f"the header promises {count} {what}, but only {left} bytes follow")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.string("a metadata key", MAXIMUM_KEY_BYTES)
            if key in metadata:
                raise self.fail(f"metadata key {key!r} occurs twice")
            metadata[key] = self.value(self.u32(f"the type of {key!r}"), key, 0)
        alignment = metadata.get("general.alignment", 32)
        # A multiple of 8, says the format; that the others are powers of two up to 1 MiB is what readers expect.
        for fault, why in (
            (isinstance(alignment, bool) or not isinstance(alignment, int), "not a whole number"),
            (isinstance(alignment, int) and (alignment <= 0 or alignment % 8 != 0), "not a multiple of 8"),
            (isinstance(alignment, int) and alignment & (alignment - 1) != 0, "not a power of two"),
            (isinstance(alignment, int) and alignment > MAXIMUM_ALIGNMENT, f"more than {MAXIMUM_ALIGNMENT}"),
        ):
            if fault:
                raise self.fail(f"general.alignment is {alignment!r}, {why}")
        return version, metadata, alignment, self.tensors(n_tensors, alignment)

    def _magic(self) -> None:
        start = self.data[:64]
        if start[:4] == b"GGUF":
            self.position = 4
            return
        for magic, text in _OTHER_FILES:
            if start.startswith(magic):
                raise GGUFError(f"{self.path} is {text}")
        if start[8:9] == b"{" and self.size > 16:
            raise GGUFError(f"{self.path} looks like a safetensors file; convert the model to GGUF")
        if start.lstrip()[:1] == b"<":
            raise GGUFError(f"{self.path} looks like HTML, the download failed; download it again")
        raise GGUFError(f"{self.path} is not a GGUF file: it starts with {start[:8]!r}; check the name or download it again")

    def value(self, kind: int, key: str, depth: int) -> Any:
        if kind in _SCALARS:
            code, size, _ = _SCALARS[kind]
            return self.number(code, size, f"metadata {key!r}")
        if kind == _STRING:
            return self.string(f"metadata {key!r}")
        if kind == _ARRAY:
            return self.array(key, depth)
        raise self.fail(f"metadata {key!r} has unknown type {kind}")

    def array(self, key: str, depth: int) -> Any:
        if depth >= MAXIMUM_NESTING:
            raise self.fail(f"metadata {key!r} nests arrays more than {MAXIMUM_NESTING} deep")
        kind, count = self.u32(f"metadata {key!r}"), self.u64(f"metadata {key!r}")
        smallest = _SCALARS[kind][1] if kind in _SCALARS else {_STRING: 8, _ARRAY: 12}.get(kind)
        if smallest is None:
            raise self.fail(f"metadata {key!r} is an array of unknown type {kind}")
        if count * smallest > self.size - self.position:
            raise self.fail(f"metadata {key!r} promises {count} values, but only {self.size - self.position} bytes follow")
        if kind in _SCALARS:
            values = np.frombuffer(self.data, _SCALARS[kind][2], count, self.position).copy() if count else np.zeros(0, _SCALARS[kind][2])
            self.position += count * smallest
            return values
        if kind == _STRING:
            return self.strings(key, count)
        return [self.array(key, depth + 1) for _ in range(count)]

    def strings(self, key: str, count: int) -> StringArray:
        data, position, size = self.data, self.position, self.size
        unpack, starts, ends = struct.Struct("<Q").unpack_from, [], []
        for _ in range(count):
            start = position + 8
            if start > size:
                raise self.fail(f"file ends inside metadata {key!r} (it has {size} bytes)")
            position = start + unpack(data, position)[0]
            if position > size:
                raise self.fail(f"file ends inside metadata {key!r} (it has {size} bytes, a string runs to {position})")
            starts.append(start)
            ends.append(position)
        self.position = position
        return StringArray(self.path, key, data, starts, ends)

    def tensors(self, count: int, alignment: int) -> list[TensorInfo]:
        entries = [self.tensor_entry() for _ in range(count)]
        base = (self.position + alignment - 1) // alignment * alignment
        tensors, extents, seen = [], [], set()
        for name, kind, shape, offset in entries:
            if name in seen:
                raise self.fail(f"tensor {name!r} occurs twice")
            seen.add(name)
            if offset % alignment:
                raise self.fail(f"tensor {name!r} starts at {offset}, which is not a multiple of the alignment {alignment}")
            columns, rows = shape[-1], 1
            for dimension in shape[:-1]:
                rows *= dimension
            if columns % kind.block_weights:
                raise self.fail(f"tensor {name!r} has rows of {columns} weights, not a multiple of the {kind.block_weights} of a {kind.name} block")
            row_bytes = columns // kind.block_weights * kind.block_bytes
            end = base + offset + rows * row_bytes
            if end > self.size:
                raise GGUFError(
                    f"{self.path}: tensor {name!r} ends at byte {end}, but the file has only {self.size} ({end - self.size} are missing); "
                    "the download is incomplete, download it again"
                )
            data = np.frombuffer(self.data, np.uint8, rows * row_bytes, base + offset).reshape(rows, row_bytes)
            tensors.append(TensorInfo(name, kind, shape, data))
            extents.append((offset, offset + rows * row_bytes, name, kind.name))
        extents.sort()
        for (_, end, name, kind_name), (start, _, other, _) in zip(extents, extents[1:]):
            if end > start:  # a program that packs a type in blocks of other sizes under the same number writes such files
                raise self.fail(f"tensor {name!r} overlaps {other!r}; either the file is damaged, or its {kind_name} is not the {kind_name} of GGUF")
        return tensors

    def tensor_entry(self) -> tuple[str, GGMLType, tuple[int, ...], int]:
        name = self.string("a tensor name", MAXIMUM_KEY_BYTES)
        what = f"the entry of tensor {name!r}"
        n_dimensions = self.u32(what)
        if not 1 <= n_dimensions <= MAXIMUM_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {n_dimensions} dimensions, not 1 to {MAXIMUM_DIMENSIONS}")
        sizes = [self.u64(what) for _ in range(n_dimensions)]
        if 0 in sizes:
            raise self.fail(f"tensor {name!r} has a dimension of 0")
        number, offset = self.u32(what), self.u64(what)
        if number not in GGML_TYPES:
            known = max(GGML_TYPES)
            if number > known + 64:
                raise self.fail(f"tensor {name!r} has the impossible type number {number}")
            raise UnsupportedModel(f"{self.path}: tensor {name!r} has type number {number}, which is not known here; update cpuinfer or use another file")
        return name, GGML_TYPES[number], tuple(reversed(sizes)), offset
