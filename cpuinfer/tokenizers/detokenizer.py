"""Tokens to text, one token at a time, never half a character."""

from __future__ import annotations

import codecs
from typing import Any


class Detokenizer:
    """push(id) gives the characters that are complete now; bytes of an unfinished one (at most 3) wait. flush() gives U+FFFD for them."""

    def __init__(self, tokenizer: Any, special: bool = False):
        self._tokenizer, self._special = tokenizer, special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token, self._special))

    def flush(self, cut: bool = False) -> str:
        """The end. cut: it was not the model that ended the text, so an unfinished character is none of its faults and is dropped."""
        if cut:
            self._decoder.reset()
        return self._decoder.decode(b"", final=True)
