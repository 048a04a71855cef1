"""Special tokens in text: which there are, and how a text is cut at them before the tokenizer proper sees it.

Control and unknown tokens are recognized only where the caller asks for it; user-defined ones always. Longer tokens are looked for first, over the whole text, as llama.cpp does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Texts that end a turn or the text, whatever the metadata says: files often name only one of a model's end tokens.
END_TEXTS = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <turn|> <|endoftext|> <|end_of_text|> <|eom_id|> <EOT> _<EOT> [EOT] [EOS]
    <|end_of_turn|> <|endofturn|> <|eot|> <|END_OF_TURN_TOKEN|> <|end_of_sentence|> <｜end▁of▁sentence｜> <end_of_utterance> [|endofturn|] <|user|>END </s>""".split()
) | {"< EOT >"}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class SpecialTokens:
    """tokens: vocabulary texts; types: GGUF's token types. strip_right: ids after which whitespace in the text is dropped."""

    def __init__(self, tokens: list[str], types: Iterable[int], strip_right: frozenset[int] = frozenset()):
        controls: dict[str, int] = {}
        users: dict[str, int] = {}
        for i, kind in enumerate(types):
            if kind in (CONTROL, UNKNOWN) and tokens[i]:
                controls.setdefault(tokens[i], i)
            elif kind == USER_DEFINED and tokens[i]:
                users.setdefault(tokens[i], i)
        self.control_ids = frozenset(controls.values())
        self.control_texts = frozenset(controls)
        self._strip_right = strip_right
        self._always, self._all = _Finder(users), _Finder(controls | users)

    def cut(self, text: str, parse_special: bool) -> list[str | int]:
        """Pieces of plain text and ids of special tokens, in order."""
        pieces: list[str | int] = []
        at = 0
        for start, end, token in (self._all if parse_special else self._always).find(text):
            if start < at:
                continue  # whitespace that a token before it took along
            if start > at:
                pieces.append(text[at:start])
            pieces.append(token)
            at = end
            if token in self._strip_right:
                at += len(text) - at - len(text[at:].lstrip())
        if at < len(text):
            pieces.append(text[at:])
        return pieces


class _Finder:
    """Finds given texts in another, the longest at each place. Vocabularies have thousands: they are looked up by first character and length."""

    def __init__(self, ids: dict[str, int]):
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, lengths)) + "]") if lengths else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each occurrence, left to right, none overlapping."""
        at = 0
        while self._first is not None and (match := self._first.search(text, at)):
            start = match.start()
            at = start + 1
            for length in self._lengths[match[0]]:
                token = self._ids.get(text[start : start + length])
                if token is not None:
                    yield start, start + length, token
                    at = start + length
                    break
