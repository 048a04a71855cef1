"""Keys of the line editor that are ours. Those that move or delete a character take what is seen as one: a grapheme cluster, which may be many code points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cluster(text: str, position: int) -> tuple[int, int]:
    """(start, end) of the grapheme cluster that holds the code point at a position. It must be one of the text."""
    from wcwidth import iter_graphemes

    start = text.rfind("\n", 0, position) + 1
    for found in iter_graphemes(text, start):
        if start + len(found) > position:
            return start, start + len(found)
        start += len(found)
    raise IndexError(position)


def without_last(text: str) -> str:
    return text[: cluster(text, len(text) - 1)[0]] if text else text


def _delete(buffer: Any, position: int) -> None:
    start, end = cluster(buffer.text, position)
    buffer.cursor_position = end
    buffer.delete_before_cursor(end - start)


def _backspace(buffer: Any) -> None:
    if buffer.cursor_position:
        _delete(buffer, buffer.cursor_position - 1)


def _delete_here(buffer: Any) -> None:
    if buffer.cursor_position < len(buffer.text):
        _delete(buffer, buffer.cursor_position)


def _left(buffer: Any) -> None:
    if buffer.document.cursor_position_col:
        buffer.cursor_position = cluster(buffer.text, buffer.cursor_position - 1)[0]


def _right(buffer: Any) -> None:
    if not buffer.document.is_cursor_at_the_end_of_line:
        buffer.cursor_position = cluster(buffer.text, buffer.cursor_position)[1]


def keys() -> Any:
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition, has_selection
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()
    has_text = Condition(lambda: bool(get_app().current_buffer.text))  # on an empty line Ctrl-D leaves

    @bindings.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    def bind(action: Callable[[Any], None], filter: Any, *names: str) -> None:
        def run(event: Any) -> None:
            for _ in range(event.arg):
                action(event.current_buffer)

        for name in names:
            bindings.add(name, filter=filter, save_before=lambda event: not event.is_repeat)(run)

    bind(_backspace, ~has_selection, "backspace")
    bind(_delete_here, ~has_selection, "delete")
    bind(_delete_here, ~has_selection & has_text, "c-d")
    bind(_left, ~has_selection, "left", "c-b")
    bind(_right, ~has_selection, "right", "c-f")
    return bindings
