"""The line editor: what is seen as one character is moved over and deleted as one."""

from __future__ import annotations

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from cpuinfer.cli import editing

LEFT, RIGHT, DELETE, BACKSPACE, HOME, META_2, UNDO = "\x1b[D", "\x1b[C", "\x1b[3~", "\x7f", "\x01", "\x1b2", "\x1f"
FAMILY, FLAG, KEYCAP, ACCENT, SKIN, SYLLABLE, HANGUL = "👨\u200d👩\u200d👧", "🇫🇷", "1\ufe0f\u20e3", "e\u0301\u0323", "👍🏽", "क्षि", "\u1112\u1161\u11ab"
SEEN_AS_ONE = [FAMILY, FLAG, KEYCAP, ACCENT, SKIN, SYLLABLE, HANGUL, "x", "é", "漢"]


def line(keys: str) -> str:
    """What the editor makes of these keys and Enter."""
    with create_pipe_input() as source:
        source.send_text(keys + "\r")
        return PromptSession(key_bindings=editing.keys(), input=source, output=DummyOutput()).prompt(handle_sigint=False)


@pytest.mark.parametrize("one", SEEN_AS_ONE)
def test_deleting_takes_the_character_that_is_seen(one) -> None:
    assert line(f"a{one}{BACKSPACE}b") == "ab"
    assert line(f"a{one}{one}{BACKSPACE}") == f"a{one}"
    assert line(f"{BACKSPACE}a{one}\x08") == "a"
    assert line(f"a{one}b{HOME}{RIGHT}{DELETE}") == "ab"
    assert line(f"a{one}b{HOME}{RIGHT}\x04") == "ab"
    assert line(f"a{one}b{DELETE}") == f"a{one}b"
    assert line(f"a{one}{one}{META_2}{BACKSPACE}") == "a"
    assert line(f"a{one}{BACKSPACE}{UNDO}") == f"a{one}"


@pytest.mark.parametrize("one", SEEN_AS_ONE)
def test_the_cursor_moves_over_the_character_that_is_seen(one) -> None:
    assert line(f"a{one}b{LEFT}{LEFT}-") == f"a-{one}b"
    assert line(f"a{one}b{HOME}{RIGHT}{RIGHT}-") == f"a{one}-b"
    assert line(f"{one}{LEFT}{LEFT}-") == f"-{one}"


@pytest.mark.parametrize("one", SEEN_AS_ONE)
@pytest.mark.parametrize("around", ["", "a", FAMILY, "\n"])
def test_a_position_within_a_character_belongs_to_it(one, around) -> None:
    text = around + one + around
    for position in range(len(around), len(around) + len(one)):
        assert editing.cluster(text, position) == (len(around), len(around) + len(one))
    assert editing.without_last(around + one) == around and editing.without_last("") == ""


def test_lines_keep_their_ends_when_the_cursor_moves() -> None:
    assert line(f"a\x1b\rb{LEFT}{LEFT}-") == "a\n-b"
    assert line(f"a\x1b\rb{LEFT}{BACKSPACE}") == "ab"
