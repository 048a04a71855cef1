"""Signals during a conversation. Whenever an interrupt comes, what it does is settled: no moment of the conversation has Python's own handler, which would end the program."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn


class Interrupts:
    """Context manager for the length of a conversation.

    From the end of a line (`entered`) until the next is read (`reading`), an interrupt sets `stopped` and nothing else, however many come: the answer's loop looks at it.
    While a line is read, `at_prompt` is called. Without it (input from a pipe) an interrupt while a line is read, or a second one during an answer, ends the program as usual.
    SIGTERM and SIGHUP end the program through its `with` blocks, so that the terminal is left as it was.
    """

    def __init__(self, at_prompt: Callable[[], None] | None = None) -> None:
        self.stopped = False
        self._reading = False
        self._at_prompt = at_prompt
        self._before: dict[int, Any] = {}

    def reading(self) -> None:
        self._reading = True

    def entered(self) -> None:
        self._reading = self.stopped = False

    def interrupt(self, *_: object) -> None:
        if not self._reading and not self.stopped:
            self.stopped = True
        elif self._at_prompt is None:
            raise KeyboardInterrupt
        elif self._reading:
            self._at_prompt()

    def __enter__(self) -> Interrupts:
        handlers: dict[int, Any] = {signal.SIGINT: self.interrupt, signal.SIGTERM: _leave}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = _leave
        for number, handler in handlers.items():
            if signal.getsignal(number) != signal.SIG_IGN:  # ignored from outside (nohup, a script's background job): stays so
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
