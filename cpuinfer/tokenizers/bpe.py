"""GGUF tokenizer `gpt2`: byte-level BPE, run by the tokenizers library. Vocabulary texts spell bytes with the printable characters that GPT-2 chose for them.

The library knows ordinary tokens only: no merge and no look-up can then make a special one, whatever its text is.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
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
_NO_TEXT = "\U0010ffff"  # no text that spells bytes
_at_space = operator.methodcaller("partition", " ")


def _merges_that_make(texts: Collection[str]) -> set[str]:
    """Lines of merges that may make one of these tokens (Qwen's make </s>): looking for them takes milliseconds, a try with them a tenth of a second.

    Long texts are left to the try: their lines would fill the memory.
    """
    return {f"{text[:n]} {text[n:]}" for text in texts if len(text) <= 64 for n in range(1, len(text))}


def load(metadata: Mapping[str, Any]) -> BPETokenizer:
    return BPETokenizer(metadata)


class BPETokenizer(Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]):
        from tokenizers import Regex, models, pre_tokenizers
        from tokenizers import Tokenizer as Library

        rule = pretokenizers.get(str(metadata.get("tokenizer.ggml.pre", "default")))
        super().__init__(metadata, add_bos=rule.add_bos)
        ordinary = list(self.tokens)
        for i in self.special.all_ids:
            ordinary[i] = _NO_TEXT
        vocabulary = dict(zip(reversed(ordinary), range(self.n_vocab - 1, -1, -1)))  # of twins the first counts
        vocabulary[_NO_TEXT] = self.n_vocab  # of bytes that have no token, which the library would drop without a word
        options: dict[str, Any] = {"ignore_merges": rule.ignore_merges, "unk_token": _NO_TEXT}
        merges = list(required(metadata, "merges"))
        if unwanted := _merges_that_make(self.special.texts).intersection(merges):
            merges = [merge for merge in merges if merge not in unwanted]
        pairs = [(left, right) for left, _, right in map(_at_space, merges)]
        try:
            try:
                model = models.BPE(vocabulary, pairs, **options)
            except Exception:  # a merge whose pieces or result are no ordinary tokens, which can never take part: 0.3 s to look for in a large file
                pairs = [(left, right) for left, right in pairs if left in vocabulary and right in vocabulary and left + right in vocabulary]
                model = models.BPE(vocabulary, pairs, **options)
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
