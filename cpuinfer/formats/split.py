"""Split GGUF files: NAME-00001-of-0000N.gguf. Names count from 1, the metadata `split.no` from 0.

The other parts' names are made from the name of the file that was opened, never from its metadata, so a file cannot name paths outside its folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import GGUFError

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
MAXIMUM_PARTS = 4096


def part_paths(path: Path) -> list[Path]:
    """All parts of the split file that `path` belongs to, in order; empty for a file that is not split. Raises GGUFError naming a missing part."""
    match = _NAME.fullmatch(path.name)
    if not match or not path.is_file():
        return []
    stem, number, count = match[1], int(match[2]), int(match[3])
    if not 1 <= number <= count <= MAXIMUM_PARTS:
        raise GGUFError(f"{path}: part {number} of {count} cannot be; restore the original file names")
    paths = [path.with_name(f"{stem}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    for part in paths:
        if not part.is_file():
            raise GGUFError(f"{path} is one of {count} parts, but {part.name} is not beside it; download that part into the same folder")
    return paths


def _integer(path: Path, metadata: dict[str, Any], key: str) -> int:
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GGUFError(f"{path}: a part of a split file must have {key} as an integer, but it is {value!r}; download it again")
    return value


def check_first(path: Path, metadata: dict[str, Any], count: int) -> None:
    """The first part against the number of files. A file that only has such a name but no split metadata may be one part of one."""
    if count == 1 and "split.count" not in metadata:
        return
    check_part(path, metadata, 0, count)


def check_part(path: Path, metadata: dict[str, Any], number: int, count: int) -> None:
    if _integer(path, metadata, "split.count") != count:
        raise GGUFError(f"{path} says it is one of {metadata['split.count']} parts, its name says {count}; restore the original file names")
    if _integer(path, metadata, "split.no") != number:
        raise GGUFError(f"{path} says it is part {metadata['split.no'] + 1}, its name says {number + 1}; restore the original file names")


def check_tensors(path: Path, metadata: dict[str, Any], found: int) -> None:
    if "split.tensors.count" in metadata and _integer(path, metadata, "split.tensors.count") != found:
        raise GGUFError(f"{path}: the parts should hold {metadata['split.tensors.count']} tensors, but hold {found}; download all parts again")
