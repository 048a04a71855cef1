"""Bounds on what a template makes, checked before Python makes it.

Python cannot interrupt one call of a built-in, so every operation whose result may be much larger than its operands has its size worked out first: characters of
strings, and nodes of containers, where a value that occurs twice counts twice (that is what writing or comparing it costs).
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

CHARACTERS = 16 << 20  # of one string, and of the whole output
NODES = 1 << 18  # of one container with all that is in it
ITEMS = 1 << 20  # of one sequence that a built-in makes
BITS = 8192  # of one integer
BUDGET = 256 << 20  # characters of all strings that a render makes

# Filters for texts; the others take a text as a sequence of characters, which costs fifty bytes each.
_TEXT_FILTERS = frozenset(
    (
        *("trim", "upper", "lower", "title", "capitalize", "string", "length", "count", "replace", "indent", "safe", "escape", "e"),
        *("forceescape", "tojson", "default", "d", "truncate", "format", "center", "urlencode", "first", "last", "wordcount", "wordwrap"),
        *("int", "float"),
    )
)

_WIDTH = re.compile(r"\d+")
_PERCENT = re.compile(r"%[^a-zA-Z%]*")


class TooLarge(Exception):
    """A value would go beyond its bound."""


def at_most(size: int, bound: int = CHARACTERS) -> None:
    """Refuse a size beyond the bound."""
    if size > bound:
        raise TooLarge


def written(value: Any) -> int:
    """Roughly the characters of str(value); refuses containers of more than NODES nodes and texts of more than CHARACTERS."""
    if isinstance(value, (str, bytes)):
        at_most(len(value))
        return len(value)
    if not isinstance(value, (list, tuple, dict, set, frozenset)):
        return 32
    nodes = characters = 0
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        nodes += 1
        if isinstance(item, (str, bytes)):
            characters += len(item)
        elif isinstance(item, dict):
            nodes += len(item)
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(item)
        if nodes + len(waiting) > NODES or characters > CHARACTERS:
            raise TooLarge
    return characters + 32 * nodes


def collected(items: Iterable[Any], separator: int) -> list[Any]:
    """The items of a join as a list, refused as soon as the joined text would be too long."""
    result: list[Any] = []
    total = 0
    for item in items:
        total += separator + (len(item) if isinstance(item, str) else written(item))
        if total > CHARACTERS or len(result) > ITEMS:
            raise TooLarge
        result.append(item)
    return result


def multiply(left: Any, right: Any) -> None:
    """left * right."""
    if isinstance(left, int) and isinstance(right, int):
        at_most(left.bit_length() + right.bit_length(), BITS)
        return
    sequence, count = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(count, int):
        if isinstance(sequence, (str, bytes)):
            at_most(len(sequence) * max(count, 0))
        elif isinstance(sequence, (list, tuple)):
            at_most(written(sequence) * max(count, 0), 32 * ITEMS)


def add(left: Any, right: Any) -> None:
    """left + right."""
    if isinstance(left, int) and isinstance(right, int):
        at_most(max(left.bit_length(), right.bit_length()), BITS)
    elif isinstance(left, (str, bytes)) and isinstance(right, (str, bytes)):
        at_most(len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        # Templates gather messages one by one: looking at all of them every time would be quadratic work for nothing.
        total = len(left) + len(right)
        at_most(total, ITEMS)
        if len(right) > 1 or total % 64 == 0:
            written(left)
            written(right)


def power(left: Any, right: Any) -> None:
    """left ** right."""
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        at_most(left.bit_length() * abs(right), BITS)


def percent(text: Any, values: Any) -> None:
    """text % values, for strings."""
    fields = _PERCENT.findall(text if isinstance(text, str) else text.decode("latin-1"))
    if any("*" in field for field in fields):
        raise TooLarge
    size = len(text) + _widths(fields)
    if isinstance(values, tuple):
        size += sum(written(value) for value in values)
    elif isinstance(values, Mapping):
        size += len(fields) * max((written(value) for value in values.values()), default=0)
    else:
        size += written(values) * max(1, len(fields))
    at_most(2 * size if isinstance(text, str) else size)


def formatted(text: str, values: Iterable[Any]) -> None:
    """text.format(...) and format_map: widths count, a width that is itself a field is refused."""
    largest = max((written(value) for value in values), default=0)
    size = len(text)
    for _, name, specification, _ in string.Formatter().parse(text):
        if name is not None:
            if "{" in (specification or ""):
                raise TooLarge
            size += 2 * largest + _widths([specification or ""])
    at_most(size)


def _widths(fields: list[str]) -> int:
    numbers = [number for field in fields for number in _WIDTH.findall(field)]
    return sum(CHARACTERS + 1 if len(number) > 8 else int(number) for number in numbers)


def replaced(text: Any, old: Any, new: Any) -> None:
    """text.replace(old, new)."""
    if isinstance(text, (str, bytes)) and type(old) is type(text) and type(new) is type(text):
        at_most(len(text) + text.count(old) * len(new))  # type: ignore[arg-type]


def number(value: Any, bound: int = ITEMS) -> int:
    """A count or a width; 0 for what is none (the built-in then complains by itself)."""
    if not isinstance(value, int):
        return 0
    at_most(abs(value), bound)
    return abs(value)


def method(text: str | bytes, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments for a method of a string, checked; join gets a list."""
    first = arguments[0] if arguments else None
    if name == "join" and arguments:
        return (collected(first or (), len(text)),)
    if name == "replace" and len(arguments) > 1:
        replaced(text, first, arguments[1])
    elif name in ("center", "ljust", "rjust", "zfill"):
        number(first, CHARACTERS)
    elif name == "expandtabs":
        tabs = text.count("\t" if isinstance(text, str) else b"\t")  # type: ignore[arg-type]
        at_most(len(text) + tabs * (number(first, CHARACTERS) if arguments else 8))
    elif name == "translate" and isinstance(first, Mapping):
        at_most(len(text) * max([1, *(len(value) for value in first.values() if isinstance(value, str))]))
    elif name in ("split", "rsplit"):
        marks = text.count(first) if isinstance(first, str) and first else len(text) // 2  # type: ignore[arg-type]
        at_most(marks, ITEMS)
    elif name == "splitlines":
        at_most(text.count("\n" if isinstance(text, str) else b"\n"), ITEMS)  # type: ignore[arg-type]
    for argument in arguments:
        written(argument)
    return arguments


def filter_arguments(name: str, values: list[Any], named: dict[str, Any]) -> list[Any]:
    """The arguments of a filter or test (values[0] is what it is applied to), checked."""

    def argument(position: int, keyword: str, default: Any = None) -> Any:
        return values[position] if position < len(values) else named.get(keyword, default)

    for value in [*values, *named.values()]:
        written(value)
    if not values:
        return values
    subject = values[0]
    if isinstance(subject, str) and name not in _TEXT_FILTERS:
        at_most(len(subject), ITEMS)
    if name == "join":
        separator = argument(1, "d", "")
        values = [collected(subject, len(separator) if isinstance(separator, str) else 32), *values[1:]]
    elif name == "replace":
        replaced(subject, argument(1, "old"), argument(2, "new"))
    elif name == "format":
        percent(str(subject), tuple(values[1:]) or named)
    elif name == "indent" and isinstance(subject, str):
        width = argument(1, "width", 4)
        size = len(width) if isinstance(width, str) else number(width)
        at_most(len(subject) + (subject.count("\n") + 2) * size)
    elif name == "wordwrap" and isinstance(subject, str):
        mark = argument(3, "wrapstring", "\n") or "\n"
        width = max(1, number(argument(1, "width", 79)))
        at_most(len(subject) + (len(subject) // width + len(subject.split()) + subject.count("\n") + 1) * len(mark))
    elif name in ("batch", "slice", "center", "truncate", "round"):
        for value in [*values[1:], *named.values()]:
            number(value, 1 << 16)
    return values
