"""The program in a pseudo-terminal, as a user meets it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07")


class Console:
    """Context manager. `seen` is what came and was not yet waited for, without control sequences."""

    def __init__(self, *arguments: str, **environment: str):
        self.seen = b""
        self._partial = b""
        self.status: int | None = None
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"} | environment
            os.execv(sys.executable, [sys.executable, "-m", "cpuinfer", *arguments])

    def type(self, keys: str | bytes) -> None:
        """As fast as the terminal takes them, reading meanwhile."""
        left = keys.encode() if isinstance(keys, str) else keys
        end = time.time() + 90
        while left:
            assert time.time() < end, (len(left), self.seen[-2000:])
            self._read(0)
            if select.select([], [self.terminal], [], 0.2)[1]:
                left = left[os.write(self.terminal, left[:512]) :]

    def until(self, text: str, seconds: float = 90) -> str:
        """Wait for this text; what came before it."""
        wanted, end = text.encode(), time.time() + seconds
        while wanted not in self.seen:
            assert time.time() < end and self.status is None, (text, self.status, self.seen[-2000:])
            self._read(0.5)
        before, _, self.seen = self.seen.partition(wanted)
        return before.decode("utf-8", "replace")

    def left(self, seconds: float = 60) -> int:
        """Wait for the program's end; its exit code, negative for a signal."""
        end = time.time() + seconds
        while self.status is None:
            assert time.time() < end, self.seen[-2000:]
            self._read(0.2)
        return self.status

    def _read(self, seconds: float) -> None:
        if select.select([self.terminal], [], [], seconds)[0]:
            try:
                data = self._partial + os.read(self.terminal, 65536)
            except OSError:  # nobody has the other end open
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
                return
            cut = data.rfind(b"\x1b", max(0, len(data) - 16))  # perhaps half a control sequence
            cut = cut if cut >= 0 and not _CONTROL.match(data[cut:]) else len(data)
            self.seen, self._partial = self.seen + _CONTROL.sub(b"", data[:cut]), data[cut:]

    def attributes(self) -> list:
        return termios.tcgetattr(self.terminal)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is None:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self.terminal)
