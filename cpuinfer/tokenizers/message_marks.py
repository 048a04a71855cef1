"""Tells message text from template text in what a template wrote.

Every character that occurs in a control token's text is replaced in the messages (all of them but the roles, which are known words) by a stand-in, a private-use character that
occurs nowhere else, one for one. The template runs on messages that are marked so and look to it as they are (marked_text.py), and every stand-in in its output is a character
that came from a message, wherever the template moved it. A control token that holds one is refused. Two rounds, since a template may do what shows it the stand-ins:

1. All such characters are marked. If the output, unmarked, is the output for the unmarked messages, nothing depended on them, and the text is exactly the template's.
2. Otherwise only texts of control tokens are marked, and beginnings and ends of them at the ends of a text (two texts may be joined). What the template then writes
   counts: it differs from the unmarked output only where the template treats control tokens' texts in messages specially. A control token that occurs more often than in
   the first round was put together from message text: all its occurrences are then plain text. The prompt may suffer, but nobody has forged a turn.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..errors import InvalidRequest
from .marked_text import Marked

_ESCAPED = re.compile(r"[\"\\\x00-\x1f]")  # what JSON writes otherwise: stand-ins would be written as they are
_FIRST_STAND_IN, _LAST_STAND_IN = 0xF0000, 0x10FFFD


class Marks:
    """dangerous: texts that messages must not turn into tokens; find(text) -> their places (start, end) in a text."""

    def __init__(self, dangerous: Collection[str], find: Callable[[str], list[tuple[int, int]]]):
        self._dangerous, self._find = dangerous, find
        self.characters = sorted({character for text in dangerous for character in _ESCAPED.sub("", text) or text})

    def in_any(self, value: Any) -> bool:
        """Whether a message holds anything to mark."""
        return any(not set(self.characters).isdisjoint(text) for text in strings(value))

    def table(self, *used: Any) -> dict[int, int]:
        """Stand-ins for the marked characters, none of which occurs in what is used."""
        taken = {character for value in used for text in strings(value) for character in text if ord(character) >= _FIRST_STAND_IN}
        free = (code for code in range(_FIRST_STAND_IN, _LAST_STAND_IN) if chr(code) not in taken)
        return {ord(character): code for character, code in zip(self.characters, free)}

    def mark_all(self, text: str, table: dict[int, int]) -> str:
        """Round 1."""
        return Marked(text, text.translate(table))

    def mark_dangerous(self, text: str, table: dict[int, int]) -> str:
        """Round 2."""
        spans = self._find(text)
        beginnings, ends = self._parts
        size = min(len(text), self._longest)
        spans += [(0, next((n for n in range(size, 0, -1) if text[:n] in ends), 0))]
        spans += [(len(text) - next((n for n in range(size, 0, -1) if text[len(text) - n :] in beginnings), 0), len(text))]
        characters = list(text)
        for start, end in spans:
            characters[start:end] = text[start:end].translate(table)
        return Marked(text, "".join(characters))

    @functools.cached_property
    def _parts(self) -> tuple[set[str], set[str]]:
        """All proper beginnings and all proper ends of dangerous texts."""
        return {text[:n] for text in self._dangerous for n in range(1, len(text))}, {text[n:] for text in self._dangerous for n in range(1, len(text))}

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self._dangerous), default=0)


def unmarked(text: str, table: dict[int, int]) -> tuple[str, list[tuple[int, int]]]:
    """The text without stand-ins, and the sorted spans (start, end) that they held."""
    back = {code: character for character, code in table.items()}
    pattern = re.compile("[" + "".join(map(chr, back)) + "]+")
    return text.translate(back), [match.span() for match in pattern.finditer(text)]


def strings(value: Any) -> Iterable[str]:
    """Every text in a message."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)


def mapped(value: Any, change: Any) -> Any:
    """A copy of messages in plain dicts and lists, with change(text) for every text; InvalidRequest for objects of other kinds."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {mapped(key, change): mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise InvalidRequest(f"a message holds a {type(value).__name__}; only text, numbers, lists and dicts can be written by a template")
