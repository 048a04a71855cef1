"""Texts of messages as templates see them: they read and compare the text itself, and what they write has stand-ins for some of its characters, one for one.

A template can do what it likes with such a text (compare it, look for something in it, cut it, strip it, join it to others): every decision falls as for the text alone, and each
character that comes out is still known to be a message's. What Python does without asking the class (joining a list, JSON, % and format) gives plain text with the stand-ins in it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any


class Marked(str):
    """The str is what is written; `_text`, of the same length, is what the text looks like."""

    _text: str

    def __new__(cls, text: str, written: str) -> Marked:
        self = super().__new__(cls, written)
        self._text = text
        return self

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        return hash(self._text)

    def __contains__(self, part: object) -> bool:
        return plain(part) in self._text

    def __getitem__(self, place: Any) -> Marked:
        return Marked(self._text[place], super().__getitem__(place))

    def __iter__(self) -> Iterator[Marked]:
        return (self[n] for n in range(len(self)))

    def __add__(self, other: Any) -> Marked:
        return Marked(self._text + plain(other), super().__add__(other))

    def __radd__(self, other: Any) -> Marked:
        return Marked(other + self._text, other + written(self))

    def lstrip(self, chars: Any = None, /) -> Marked:
        return self[len(self) - len(self._text.lstrip(plain(chars))) :]

    def rstrip(self, chars: Any = None, /) -> Marked:
        return self[: len(self._text.rstrip(plain(chars)))]

    def strip(self, chars: Any = None, /) -> Marked:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str, /) -> Marked:
        return self[len(self) - len(self._text.removeprefix(plain(prefix))) :]

    def removesuffix(self, suffix: str, /) -> Marked:
        return self[: len(self._text.removesuffix(plain(suffix)))]

    def split(self, sep: Any = None, maxsplit: Any = -1) -> list[Any]:
        return self._parts(self._text.split(plain(sep), maxsplit), sep)

    def rsplit(self, sep: Any = None, maxsplit: Any = -1) -> list[Any]:
        return self._parts(self._text.rsplit(plain(sep), maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Any]:
        return self._parts(self._text.splitlines(keepends), None)

    def partition(self, sep: str, /) -> Any:
        return tuple(self._parts(list(self._text.partition(plain(sep))), ""))

    def rpartition(self, sep: str, /) -> Any:
        return tuple(self._parts(list(self._text.rpartition(plain(sep))), ""))

    def _parts(self, parts: list[str], separator: str | None) -> list[Marked]:
        """Parts of the text in order, with the separator between them (None: characters that no part begins with)."""
        result, at = [], 0
        for part in parts:
            at = self._text.index(part, at) if separator is None else at
            result.append(self[at : at + len(part)])
            at += len(part) + len(separator or "")
        return result

    def replace(self, old: str, new: str, count: Any = -1, /) -> Any:
        if not old:
            return super().replace(old, new, count)
        parts = self.split(old, count)
        return Marked(plain(new).join(map(plain, parts)), new.join(parts))


def plain(value: Any) -> Any:
    """What a text looks like; anything else as it is."""
    return value._text if isinstance(value, Marked) else value


def written(text: str) -> str:
    """A str of what is written, whatever it looks like."""
    return str.__str__(text)


def joined(parts: list[str]) -> str:
    """The parts as one text; what is written of each stays so."""
    if any(isinstance(part, Marked) for part in parts):
        return Marked("".join(map(plain, parts)), "".join(parts))
    return "".join(parts)


def _compared(compare: Callable[[Any, Any], Any]) -> Any:
    return lambda self, other: compare(self._text, plain(other)) if isinstance(other, str) else NotImplemented


def _looked_at(name: str) -> Any:
    def method(self: Marked, *arguments: Any) -> Any:
        return getattr(self._text, name)(*map(plain, arguments))

    return method


def _cased(name: str) -> Any:
    def method(self: Marked) -> Any:
        text, was = getattr(self._text, name)(), written(self)
        if len(text) != len(self):
            return getattr(was, name)()
        return Marked(text, "".join(new if old == mark else mark for old, new, mark in zip(self._text, text, was)))

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Marked, f"__{_name}__", _compared(getattr(operator, _name)))
for _make, _names in (
    (_looked_at, "startswith endswith find rfind index rindex count isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper"),
    (_cased, "upper lower title capitalize swapcase casefold"),
):
    for _name in _names.split():
        _method = _make(_name)
        _method.__name__ = _name  # what the sandbox knows its limits by
        setattr(Marked, _name, _method)
