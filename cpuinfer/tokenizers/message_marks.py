"""Tells message text from template text in what a template wrote.

A control token's text always holds a character such as <, | or [. In the messages each of these is replaced by a stand-in, a private-use character that occurs nowhere
else, one for one; the template then runs on the marked messages, and every stand-in in its output is a character that came from a message, wherever the template moved
it. A control token that holds one is refused. Two rounds, since templates look at what they are given:

1. All such characters are marked, except in tags that the template itself names and that are no control token (</think>, which templates split at). If the output,
   unmarked, is the output for the unmarked messages, nothing depended on them, and the text is exactly the template's.
2. Otherwise only texts of control tokens are marked, and beginnings and ends of them at the ends of a text (two texts may be joined). What the template then writes
   counts: it differs from the unmarked output only where the template treats control tokens' texts in messages specially. A control token that occurs more often than in
   the first round was put together from message text: all its occurrences are then plain text. The prompt may suffer, but nobody has forged a turn.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..errors import TemplateError

# What roles, names and keys consist of is never marked: templates compare it.
_ORDINARY = re.compile(r"[\w\s.,:'\"-]")
_TAG = re.compile(r"</?[A-Za-z_][\w-]*>")
_FIRST_STAND_IN, _LAST_STAND_IN = 0xF0000, 0x10FFFD


class Marks:
    """Marking for one template. dangerous: texts that messages must not turn into tokens; find(text) -> their places (start, end) in a text. source: the template."""

    def __init__(self, dangerous: Collection[str], source: str, find: Callable[[str], list[tuple[int, int]]]):
        self._dangerous, self._find = dangerous, find
        telling = {character for character in set("".join(dangerous)) if not _ORDINARY.match(character)}
        # A control token of ordinary characters alone is marked, by its first one, where it occurs as a whole.
        words = sorted((text for text in dangerous if telling.isdisjoint(text)), key=len, reverse=True)
        self.characters = sorted(telling | {text[0] for text in words})
        tags = sorted(set(_TAG.findall(source)).difference(dangerous), key=len, reverse=True)
        self._tags = frozenset(tags)
        choices = [re.escape(text) for text in (*tags, *words)] + (["[" + "".join(map(re.escape, sorted(telling))) + "]"] if telling else [])
        self._all = re.compile("|".join(choices)) if dangerous else None

    def in_any(self, value: Any) -> bool:
        """Whether a message holds anything to mark."""
        return self._all is not None and any(self._all.search(text) for text in strings(value))

    def table(self, *used: Any) -> dict[int, int]:
        """Stand-ins for the marked characters, none of which occurs in what is used."""
        taken = {character for value in used for text in strings(value) for character in text if ord(character) >= _FIRST_STAND_IN}
        free = (code for code in range(_FIRST_STAND_IN, _LAST_STAND_IN) if chr(code) not in taken)
        return {ord(character): code for character, code in zip(self.characters, free)}

    def mark_all(self, text: str, table: dict[int, int]) -> str:
        """Round 1."""
        if self._all is None:
            return text
        return self._all.sub(lambda match: match[0] if match[0] in self._tags else match[0].translate(table), text)

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
        return "".join(characters)

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
    """A copy of messages in plain dicts and lists, with change(text) for every text; TemplateError for objects of other kinds."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {mapped(key, change): mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TemplateError(f"a message holds a {type(value).__name__}; only text, numbers, lists and dicts can be written by a template")
