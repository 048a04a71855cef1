"""The terminal's own handling of keys, as it is while a conversation runs."""

from __future__ import annotations

import os
import signal
from typing import Any

try:
    import termios
except ImportError:  # Windows: its console has no such modes
    termios = None  # type: ignore[assignment]


class Unechoed:
    """Context manager: keys come one by one and are not echoed; keys that make signals still do, and drop nothing of what was typed.

    The terminal is as it was before when this ends, and while the program is suspended.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._attributes: Any = None  # as they were before
        self._suspend: Any = None  # what SIGTSTP did before

    def __enter__(self) -> Unechoed:
        if termios is None:
            return self
        try:
            self._attributes = termios.tcgetattr(self._descriptor)
        except termios.error:
            return self  # not a terminal after all
        self._suspend = signal.signal(signal.SIGTSTP, self._suspended)
        changed = list(self._attributes)
        changed[3] = changed[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
        changed[6] = [*changed[6]]
        changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
        self._set(changed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._attributes is not None:
            signal.signal(signal.SIGTSTP, self._suspend)
            self._set(self._attributes)

    def _set(self, attributes: Any) -> None:
        try:
            termios.tcsetattr(self._descriptor, termios.TCSANOW, attributes)
        except termios.error:
            pass  # the terminal is gone

    def _suspended(self, *_: object) -> None:
        """Ctrl-Z: stop with the terminal as it was before, go on with what it is now, which while a line is read is the editor's mode."""
        try:
            now = termios.tcgetattr(self._descriptor)
        except termios.error:
            return
        self._set(self._attributes)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspended)
        self._set(now)
