"""GGUF tokenizer `gpt2`: byte-level BPE, run by the tokenizers library. Vocabulary texts spell bytes with the printable characters that GPT-2 chose for them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ..errors import GGUFError
from . import Tokenizer, pretokenizers, required
from .special import NORMAL


def _byte_characters() -> dict[str, int]:
    """Character -> byte: printable Latin-1 stands for itself, the other bytes for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


BYTES = _byte_characters()
_at_space = operator.methodcaller("partition", " ")


def load(metadata: Mapping[str, Any]) -> BPETokenizer:
    return BPETokenizer(metadata)


class BPETokenizer(Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]):
        from tokenizers import Regex, models, pre_tokenizers
        from tokenizers import Tokenizer as Library

        rule = pretokenizers.get(str(metadata.get("tokenizer.ggml.pre", "default")))
        super().__init__(metadata, add_bos=rule.add_bos)
        vocabulary = dict(zip(reversed(self.tokens), range(self.n_vocab - 1, -1, -1)))  # of twins the first counts
        merges = [(left, right) for left, _, right in map(_at_space, required(metadata, "merges"))]
        try:
            try:
                model = models.BPE(vocabulary, merges, ignore_merges=rule.ignore_merges)
            except Exception:  # a merge whose pieces or result are no tokens, which can never take part: 0.3 s to look for in a large file
                merges = [(left, right) for left, right in merges if left in vocabulary and right in vocabulary and left + right in vocabulary]
                model = models.BPE(vocabulary, merges, ignore_merges=rule.ignore_merges)
        except Exception as error:  # the library raises plain exceptions of many kinds
            raise GGUFError(f"the tokenizer's vocabulary and merges cannot be used: {error}; the file is damaged") from error
        self._library = Library(model)
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        self._library.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        return self._library.encode(text, add_special_tokens=False).ids

    def _text_bytes(self, token: int) -> bytes:
        text = self.tokens[token]
        if self.types[token] != NORMAL:
            return text.encode()
        try:
            return bytes([BYTES[c] for c in text])
        except KeyError:
            return text.encode()
