"""From tokens to text that can be shown: whole characters only, and nothing that might become a stop string."""

from __future__ import annotations

from typing import Any


class TextStream:
    """push(token) gives the text that is now certain; `stopped` tells that a stop string came, which is not part of the text.

    The text ends at the leftmost match of any stop string. Only a proper prefix of one is held back, and given out when it turns out not to match or at flush.
    """

    def __init__(self, detokenizer: Any, stop: tuple[str, ...] = ()):
        self._detokenizer, self._stop = detokenizer, stop
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        return self._release(self._detokenizer.push(token))

    def flush(self, cut: bool = False) -> str:
        """The rest at the end of generation. An unfinished character becomes one replacement character, or nothing where the text was cut (by a limit, by the user)."""
        text = self._release(self._detokenizer.flush(cut))
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        matches = [at for s in self._stop if (at := text.find(s)) >= 0]
        if matches:
            self.stopped, self._held = True, ""
            return text[: min(matches)]
        keep = max(self._overlap(text, s) for s in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of text that is a proper beginning of stop."""
        for n in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:n]):
                return n
        return 0
