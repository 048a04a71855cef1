"""Special tokens in text: which there are, and how a text is cut at them before the tokenizer proper sees it.

Control and unknown tokens are recognized only where the caller allows it; user-defined ones always. The longest occurrence in the text is taken first, then the next longest among
what does not overlap it, as llama.cpp does.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right

import numpy as np

from ..errors import GGUFError

UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)

# Texts that end a turn or the text, whatever the metadata says: files often name only one of a model's end tokens.
END_TEXTS = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <turn|> <|tool_response> <|endoftext|> <|end_of_text|> <|eom_id|> <EOT> _<EOT> [EOT]
    [EOS] <eos> </s> <|end_of_turn|> <|endofturn|> <|END_OF_TURN_TOKEN|> <｜end▁of▁sentence｜> <end_of_utterance> [|endofturn|] [e~[
    <|fim_pad|> <fim-pad> <fim_pad> <|fim_repo|> <|repo_name|> <fim-repo> <reponame> <|file_sep|>""".split()
) | {"< EOT >"}
# Markers of fill-in-the-middle, which some files wrongly give as ordinary text.
FILL_TEXTS = frozenset(
    """<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|>""".split()
)
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
        self.all_ids: list[int] = []  # twins too
        for wanted, found in (((CONTROL, UNKNOWN), controls), ((USER_DEFINED,), users)):
            for i in np.flatnonzero(np.isin(kinds, wanted)).tolist():
                self.all_ids.append(i)
                if tokens[i]:
                    found.setdefault(tokens[i], i)
        self.control_ids = frozenset(controls.values())
        self.control_texts = frozenset(controls)
        self.user_texts = frozenset(users)
        self.texts = self.control_texts | self.user_texts
        self._strip_right = strip_right
        self._ids = {**users, **controls}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, lengths)) + "]") if lengths else None

    def id_of(self, text: str) -> int:
        """Id of a special token's text; KeyError if it is none."""
        return self._ids[text]

    def cut(self, text: str, plain: list[tuple[int, int]], guarded: frozenset[int] = frozenset()) -> list[str | int]:
        """Pieces of plain text and ids of special tokens, in order. plain: sorted spans (start, end); a control or guarded token that touches one is text."""
        pieces: list[str | int] = []
        at = 0
        for start, end, token in self.find(text, plain, guarded):
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

    def find(self, text: str, plain: list[tuple[int, int]], guarded: frozenset[int] = frozenset()) -> list[tuple[int, int, int]]:
        """(start, end, id) of the special tokens in a text, sorted by place; plain and guarded as in `cut`."""
        plain_starts = [start for start, _ in plain]
        # Only the longest candidate of each place waits in the heap; a shorter one takes its turn when the longer is refused.
        waiting = self._candidates(text)
        covered = bytearray(len(text))
        found = []
        while waiting:
            negative, start = heapq.heappop(waiting)
            end = start - negative
            if covered[start]:
                continue
            token = self._ids[text[start:end]]
            n = bisect_right(plain_starts, end - 1) - 1  # the last plain span that starts before the end
            is_plain = (token in self.control_ids or token in guarded) and n >= 0 and plain[n][1] > start
            # What was taken before is at least as long as this, so an overlap shows at one of the ends.
            if is_plain or covered[end - 1]:
                if shorter := self._longest(text, start, -negative):
                    heapq.heappush(waiting, (-shorter, start))
                continue
            covered[start:end] = b"\1" * (end - start)
            found.append((start, end, token))
        return sorted(found)

    def _candidates(self, text: str) -> list[tuple[int, int]]:
        """A heap of (-length, start): the longest special token at each place that has one."""
        if self._first is None:
            return []
        places = ((self._longest(text, match.start(), len(text) + 1), match.start()) for match in self._first.finditer(text))
        heap = [(-length, start) for length, start in places if length]
        heapq.heapify(heap)
        return heap

    def _longest(self, text: str, start: int, below: int) -> int:
        """Length of the longest special token at a place that is shorter than `below`; 0 if none is."""
        for length in self._lengths[text[start]]:
            if length < below and start + length <= len(text) and text[start : start + length] in self._ids:
                return length
        return 0
