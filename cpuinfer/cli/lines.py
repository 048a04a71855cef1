"""Where the messages of a conversation come from: a pipe, or a user at a terminal. Both know when an interrupt asks to stop an answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from .interrupts import Interrupts
from .keyboard import Unechoed
from .terminal import Terminal, decoded, is_terminal


class Lines:
    """Context manager for the length of a conversation. A subclass reads one line: `read(prompt)`, None at the end."""

    interrupts: Interrupts

    def read(self, prompt: str) -> str | None:
        raise NotImplementedError

    def poll(self) -> bool:
        """To be called between two steps of an answer: whether an interrupt asks to stop it. Takes what was typed meanwhile."""
        return self.interrupts.stopped

    def message(self) -> str | None:
        """One message: lines that end with a backslash go on, lines between triple quotes belong together."""
        line = self.read(">>> ")
        if line is None:
            return None
        if line.startswith('"""'):
            parts = [line[3:]]
            while not parts[-1].rstrip().endswith('"""'):
                more = self.read("... ")
                if more is None:
                    return "\n".join(parts).strip("\n")
                parts.append(more)
            parts[-1] = parts[-1].rstrip()[:-3]
            return "\n".join(parts).strip("\n")
        while line.endswith("\\"):
            more = self.read("... ")
            if more is None:
                return line[:-1]
            line = line[:-1] + "\n" + more
        return line

    def __enter__(self) -> Lines:
        self.interrupts.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupts.__exit__()


class Piped(Lines):
    """Lines from a pipe or a file."""

    def __init__(self, terminal: Terminal):
        self._terminal = terminal
        self.interrupts = Interrupts()

    def read(self, prompt: str) -> str | None:
        self.interrupts.reading()
        try:
            data = sys.stdin.buffer.readline() if sys.stdin is not None else b""
        except (OSError, ValueError, AttributeError):
            return None
        finally:
            self.interrupts.entered()
        return decoded(data, self._terminal).rstrip("\r\n") if data else None


class Typed(Lines):
    """Lines from the user, with editing, history and pasting of several lines.

    What is typed while no line is read is never shown in between nor sent by itself: it becomes the beginning of the next line.
    """

    def __init__(self, terminal: Terminal):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output
        from prompt_toolkit.utils import is_dumb_terminal

        from . import editing

        self._terminal = terminal
        self._unechoed = Unechoed(sys.stdin.fileno())
        self._typed = ""
        # Where stdout is a pipe or a file it carries answers only: the prompt then shows on stderr.
        output = None if is_terminal(sys.stdout) else create_output(sys.stderr)
        self._shows_typed = output is not None or not is_dumb_terminal()
        self._session: Any = PromptSession(history=_history(), key_bindings=editing.keys(), output=output)
        self.interrupts = Interrupts(self._interrupt_prompt)
        accept: Any = self._session.default_buffer.accept_handler

        def entered(buffer: Any) -> Any:
            self.interrupts.entered()  # with the key itself: an interrupt after it is for the answer
            return accept(buffer)

        self._session.default_buffer.accept_handler = entered

    def __enter__(self) -> Typed:
        super().__enter__()
        self._unechoed.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._unechoed.__exit__()
        super().__exit__()

    def read(self, prompt: str) -> str | None:
        typed, self._typed = self._typed.rstrip("\n"), ""
        while True:
            self.interrupts.reading()
            try:
                # Its own handling of the signal would replace ours, and leave Python's for a moment.
                line = self._session.prompt(prompt if self._shows_typed else prompt + typed, default=typed, handle_sigint=False)
                return decoded(line.encode("utf-8", "surrogateescape"), self._terminal)
            except EOFError:
                return None
            except KeyboardInterrupt:
                typed = ""
                self._terminal.note("Ctrl-D or /exit leaves.")

    def _interrupt_prompt(self) -> None:
        """From the signal's handler: a signal at the prompt does what the key does there."""
        from prompt_toolkit.application import get_app_or_none

        app: Any = get_app_or_none()

        def interrupt() -> None:
            if app.is_done:  # Enter came first
                self.interrupts.stopped = True
            else:
                app.key_processor.send_sigint()

        if app is not None and app.loop is not None:
            app.loop.call_soon_threadsafe(interrupt)

    def poll(self) -> bool:
        from prompt_toolkit.input.typeahead import get_typeahead
        from prompt_toolkit.keys import Keys

        from .editing import without_last

        source = self._session.input
        keys = get_typeahead(source)  # typed after Enter, before the editor ended
        while more := source.read_keys():
            keys += more
        for press in keys:
            if press.key == Keys.ControlC:
                self.interrupts.stopped = True
            elif press.key in (Keys.ControlM, Keys.ControlJ):
                self._typed += "\n"
            elif press.key == Keys.ControlH:
                self._typed = without_last(self._typed)
            elif press.key in (Keys.BracketedPaste, Keys.ControlI) or not isinstance(press.key, Keys):
                self._typed += press.data
        return super().poll()


def _history() -> Any:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        import platformdirs

        folder = Path(platformdirs.user_state_dir("cpuinfer", appauthor=False))
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(folder / "history", os.O_CREAT | os.O_WRONLY, 0o600))  # what was asked is nobody else's business
        return FileHistory(str(folder / "history"))
    except (OSError, RuntimeError):
        return InMemoryHistory()  # no home or a read-only one: history lasts for this session
