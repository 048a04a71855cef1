"""Ctrl-C while a model answers: a request to stop, served between two steps of the engine, so that the conversation can go on afterwards."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interrupts:
    """Context manager: inside it the first Ctrl-C sets `stopped`, a second one raises KeyboardInterrupt as usual."""

    def __init__(self) -> None:
        self.stopped = False
        self._before: Any = None

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
