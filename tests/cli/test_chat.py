"""cpuinfer chat in a pseudo-terminal: interrupts, typing while it answers, the terminal's state."""

from __future__ import annotations

import json
import os
import signal
import termios
import time

import pytest
import tiny
from console import Console

MOMENTS = 40  # over the first 200 ms after Enter


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", "Q8_0", context=65536))


def chat(model: str, *options: str, **environment: str) -> Console:
    """A conversation whose answers do not end by themselves, at its first prompt."""
    console = Console("chat", model, "--temp", "0", "--ignore-eos", *options, **environment)
    console.until(">>>")
    return console


def saved(console: Console, path) -> list[str]:
    console.type(f"/save {path}\r")
    console.until("messages to")
    console.until(">>>")
    messages = json.loads(path.read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
    return [m["content"] for m in messages if m["role"] == "user"]


def test_an_interrupt_at_any_moment_after_enter_stops_the_answer_and_keeps_the_conversation(model, tmp_path) -> None:
    with chat(model) as console:
        for i in range(MOMENTS):
            console.type(f"number {i}\r")
            time.sleep(0.2 * i / MOMENTS)
            console.type("\x03")
            console.until("tokens/s")
            console.until(">>>")
        assert saved(console, tmp_path / "c.json") == [f"number {i}" for i in range(MOMENTS)]
        console.type("/bye\r")
        assert console.left() == 0


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("moment", range(5))
def test_an_interrupt_during_the_first_answer_of_a_program_stops_only_this(model, moment, silent, tmp_path) -> None:
    """The first answer imports what the others find. Not silent: the editor asks the terminal where the cursor is, and waits after Enter for a reply that does not come."""
    with chat(model, PROMPT_TOOLKIT_NO_CPR="1" if silent else "") as console:
        console.type("the\r" + "\x03" * (moment == 0))
        time.sleep(0.04 * moment)
        console.type("\x03\x03\x03")
        console.until("tokens/s")
        console.until(">>>")
        assert saved(console, tmp_path / "c.json") == ["the"]


def test_a_signal_at_the_prompt_does_what_the_key_does(model, tmp_path) -> None:
    with chat(model) as console:
        console.type("half a li")
        console.until("half a li")
        os.kill(console.process, signal.SIGINT)
        console.until("Ctrl-D or /exit leaves.")
        console.type("the\r")
        console.until("the\n")
        os.kill(console.process, signal.SIGINT)
        console.until("tokens/s")
        console.until(">>>")
        assert saved(console, tmp_path / "c.json") == ["the"]


def test_what_is_typed_during_an_answer_waits_for_the_next_line(model, tmp_path) -> None:
    with chat(model) as console:
        console.type("the\r")
        console.until("the\n")
        time.sleep(0.1)
        console.type("zebra crossing\r\x1b[Aand mor👨\u200d👩\u200d👧\x7fe\r")
        time.sleep(0.3)
        console.type("\x03")
        answer = console.until("tokens/s")
        assert "zebra" not in answer and "\x1b[A" not in answer
        console.until(">>>")
        console.until("zebra crossing")
        console.until("and more")
        time.sleep(0.3)
        console.type("!\r")  # only now it is sent
        time.sleep(0.3)
        console.type("\x03")
        console.until("tokens/s")
        console.until(">>>")
        assert saved(console, tmp_path / "c.json") == ["the", "zebra crossing\nand more!"]


def test_a_large_paste_during_an_answer_loses_neither_itself_nor_the_interrupt(model, tmp_path) -> None:
    paste = "".join(f"line {i} of a long text\n" for i in range(600))
    assert len(paste) > 12_000
    with chat(model) as console:
        console.type("the\r")
        console.until("the\n")
        time.sleep(0.2)
        console.type(paste)
        console.type("\x03")
        assert "line 1" not in console.until("tokens/s")
        console.until("line 599 of a long text")  # the prompt's window shows the end
        console.type("\r\x03")
        console.until("tokens/s")
        console.until(">>>")
        assert saved(console, tmp_path / "c.json") == ["the", paste.rstrip("\n")]


def test_statistics_of_a_prompt_that_was_not_read_to_its_end_are_of_what_was_read(model) -> None:
    with chat(model, "-b", "1") as console:
        console.type("\x1b[200~" + "the and in an " * 1000 + "\x1b[201~\r")
        console.until("Reading the prompt")
        time.sleep(0.5)
        console.type("\x03")
        console.until("[stopped while the prompt was read: ")
        read, total = map(int, console.until(" tokens, ").split(" of "))
        assert 0 < read < total and total > 4000
        assert 0 < int(console.until(" tokens/s")) < 100_000
        console.until(f"context {read}/65536]")
        console.until(">>>")


@pytest.mark.parametrize("way", ["/bye\r", "\x04", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_left_as_it_was(model, way) -> None:
    with Console("chat", model, "--temp", "0", "--ignore-eos") as console:
        before = console.attributes()
        console.until(">>>")
        if isinstance(way, str):
            console.type(way)
        else:
            os.kill(console.process, way)
        assert console.left() == (0 if isinstance(way, str) else 128 + way)
        assert console.attributes() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_left_as_it_was_in_the_middle_of_an_answer(model, number) -> None:
    with Console("chat", model, "--temp", "0", "--ignore-eos") as console:
        before = console.attributes()
        console.until(">>>")
        console.type("the\r")
        console.until("the\n")
        time.sleep(0.1)
        assert before[3] & termios.ECHO and not console.attributes()[3] & termios.ECHO and console.attributes()[3] & termios.ISIG
        os.kill(console.process, number)
        assert console.left() == 128 + number
        assert console.attributes() == before
