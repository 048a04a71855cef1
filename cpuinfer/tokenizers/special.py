"""Special tokens in text: which there are, and how a text is cut at them before the tokenizer proper sees it.

Control and unknown tokens are recognized only where the caller allows it; user-defined ones always. The longest occurrence in the text is taken first, then the next longest among
what does not overlap it, as llama.cpp does.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import GGUFError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Texts that end a turn or the text, whatever the metadata says: files often name only one of a model's end tokens.
END_TEXTS = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <turn|> <|tool_response> <|endoftext|> <|end_of_text|> <|eom_id|> <EOT> _<EOT> [EOT]
    [EOS] <eos> </s> <|end_of_turn|> <|endofturn|> <|END_OF_TURN_TOKEN|> <｜end▁of▁sentence｜> <end_of_utterance> [|endofturn|] [e~[""".split()
) | {"< EOT >"}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def types_of(types: object, n_vocab: int) -> list[int]:
    """GGUF's token types as a list, all NORMAL where the file has none."""
    if types is None:
        return [NORMAL] * n_vocab
    array = np.asarray(types)
    if array.shape != (n_vocab,):
        raise GGUFError(f"tokenizer.ggml.token_type has {array.size} entries for {n_vocab} tokens; the file is damaged")
    result: list[int] = array.astype(int).tolist()
    return result


class SpecialTokens:
    """tokens: vocabulary texts; types: GGUF's token types. strip_right: ids after which whitespace in the text is dropped."""

    def __init__(self, tokens: list[str], types: list[int], strip_right: frozenset[int] = frozenset()):
        kinds = np.array(types)
        controls: dict[str, int] = {}
        users: dict[str, int] = {}
        for wanted, found in (((CONTROL, UNKNOWN), controls), ((USER_DEFINED,), users)):
            for i in np.flatnonzero(np.isin(kinds, wanted)).tolist():
                if tokens[i]:
                    found.setdefault(tokens[i], i)
        self.control_ids = frozenset(controls.values())
        self.control_texts = frozenset(controls)
        self._strip_right = strip_right
        self._finder = _Finder({**users, **controls})

    def controls_in(self, text: str) -> list[tuple[int, int, int]]:
        """(start, end, id) of the control tokens that a text holds."""
        return [found for found in self._finder.find(text) if found[2] in self.control_ids]

    def cut(self, text: str, plain: list[tuple[int, int]]) -> list[str | int]:
        """Pieces of plain text and ids of special tokens, in order. plain: sorted spans (start, end); a control token that touches one is text."""
        pieces: list[str | int] = []
        at = 0
        for start, end, token in _without_overlaps(self._allowed(self._finder.find(text), plain)):
            if start < at:  # inside the whitespace that a token before it took along
                continue
            if start > at:
                pieces.append(text[at:start])
            pieces.append(token)
            at = end
            if token in self._strip_right:
                at += len(text) - at - len(text[at:].lstrip())
        if at < len(text):
            pieces.append(text[at:])
        return pieces

    def _allowed(self, found: list[tuple[int, int, int]], plain: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        allowed = []
        n = 0
        for start, end, token in found:
            while n < len(plain) and plain[n][1] <= start:
                n += 1
            if token not in self.control_ids or n == len(plain) or plain[n][0] >= end:
                allowed.append((start, end, token))
        return allowed


def _without_overlaps(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The longest first, among equals the leftmost, each only where nothing chosen before overlaps it; sorted by place."""
    taken: dict[int, tuple[int, int, int]] = {}
    covered: set[int] = set()
    for start, end, token in sorted(found, key=lambda f: (f[0] - f[1], f[0])):
        # What is chosen is at least as long as this, so it reaches over one of its ends.
        if start not in covered and end - 1 not in covered:
            taken[start] = (start, end, token)
            covered.update(range(start, end))
    return [taken[start] for start in sorted(taken)]


class _Finder:
    """Finds given texts in another. Vocabularies have thousands of them: they are looked up by first character and length."""

    def __init__(self, ids: dict[str, int]):
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes) for first, sizes in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, lengths)) + "]") if lengths else None

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """(start, end, id) of every occurrence, overlapping ones too, sorted by start."""
        if self._first is None:
            return []
        ids, lengths = self._ids, self._lengths
        found = []
        for match in self._first.finditer(text):
            start = match.start()
            for length in lengths[match[0]]:
                token = ids.get(text[start : start + length])
                if token is not None:
                    found.append((start, start + length, token))
        return found
