"""Tokenizers of GGUF files. `load(metadata)` picks one by tokenizer.ggml.model; the libraries that do the work are imported only then."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments import token_ids
from ..errors import GGUFError, InvalidRequest, UnsupportedModel
from .special import CONTROL, END_KEYS, END_TEXTS, FILL_TEXTS, UNDEFINED, UNKNOWN, UNUSED, SpecialTokens, types_of

MODELS = {"llama": "spm", "gpt2": "bpe"}
# Python strings may hold halves of surrogate pairs (from JSON, or bytes that were not UTF-8), which no tokenizer takes.
_SURROGATES = re.compile("[\ud800-\udfff]")


def load(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a file's metadata describes. Raises UnsupportedModel for a kind that is not supported, GGUFError where its data is missing or damaged."""
    import importlib

    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise GGUFError("the file has no tokenizer (tokenizer.ggml.model is missing); use a complete model file")
    if kind not in MODELS:
        raise UnsupportedModel(f"tokenizer model {kind!r} is not supported; supported: {', '.join(sorted(MODELS))}")
    return importlib.import_module(f".{MODELS[kind]}", __name__).load(metadata)


def required(metadata: Mapping[str, Any], name: str) -> Any:
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        raise GGUFError(f"the metadata lacks {key}; the file is incomplete, download or convert it again")
    return metadata[key]


class Tokenizer:
    """What the kinds share: special tokens, BOS and EOS rules. A kind gives _encode_text, _text_bytes and its defaults.

    n_vocab; bos_id, eos_id: int or None; add_bos, add_eos: whether `encode` adds them by default; end_ids: every token that ends an answer.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        add_bos: bool,
        strip_right: frozenset[int] = frozenset(),
        default_bos: int | None = None,
        default_eos: int | None = None,
    ):
        tokens = required(metadata, "tokens")
        self.tokens: list[str] = list(tokens)
        self.n_vocab = len(self.tokens)
        self.types = types_of(metadata.get("tokenizer.ggml.token_type"), self.n_vocab)
        end_texts = END_TEXTS.intersection(self.tokens)
        if "<|tool_response>" in end_texts:  # gemma 4 ends turns with its own markers; </s> is a tag of HTML there
            end_texts -= {"</s>"}
        # Such markers are control tokens, whatever type the file gives them: message text must not end a turn.
        for text in end_texts | FILL_TEXTS.intersection(self.tokens):
            self.types[self.tokens.index(text)] = CONTROL
        self.special = SpecialTokens(self.tokens, self.types, strip_right)
        self.bos_id, self.eos_id = self._id(metadata, "bos_token_id", default_bos), self._id(metadata, "eos_token_id", default_eos)
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)) and self.bos_id is not None
        self.add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and self.eos_id is not None
        ends = {self.eos_id, *(self._id(metadata, key) for key in END_KEYS)}
        if {"<|return|>", "<|call|>"} <= end_texts or {"<|calls|>", "<|flush|>"} <= end_texts:
            end_texts -= {"<|end|>"}  # ends a message of several in one turn there
            ends = {i for i in ends if i is None or self.tokens[i] != "<|end|>"}
        ends |= {self.tokens.index(text) for text in end_texts}
        self.end_ids: frozenset[int] = frozenset(i for i in ends if i is not None)

    def _id(self, metadata: Mapping[str, Any], name: str, default: int | None = None) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}")
        if value is None and default is not None and default < self.n_vocab and self.types[default] == CONTROL:
            return default
        if value is None or isinstance(value, bool) or not isinstance(value, int) or value in (-1, 0xFFFFFFFF):
            return None
        if not 0 <= value < self.n_vocab:
            raise GGUFError(f"tokenizer.ggml.{name} is {value}, outside the vocabulary of {self.n_vocab}; the file is damaged")
        return value

    # ---- text to ids ---------------------------------------------------------------------------------------------------------------

    def encode(self, text: str, parse_special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Ids of a text. parse_special: special tokens in it become their ids, else they are plain text. add_bos: None by the file's rule, which may add EOS too."""
        ids = self.encode_parts([(text, parse_special)])
        if add_bos or (add_bos is None and self.add_bos):
            if self.bos_id is not None:
                ids = [self.bos_id, *ids]
        if add_bos is None and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def encode_parts(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Ids of one text that is given in pieces (text, parse_special), no BOS or EOS added. No control token touches a piece whose parse_special is False."""
        plain: list[tuple[int, int]] = []
        at = 0
        for piece, parse_special in parts:
            if piece and not parse_special:
                plain.append((at, at + len(piece)))
            at += len(piece)
        return self.encode_marked("".join(piece for piece, _ in parts), plain)

    def encode_marked(self, text: str, plain: list[tuple[int, int]], guarded: frozenset[int] = frozenset()) -> list[int]:
        """As encode_parts, for a text and the sorted spans (start, end) of it that are plain text. guarded: user-defined tokens that count as control tokens."""
        text = _SURROGATES.sub("\ufffd", text)
        ids: list[int] = []
        after_special = True
        for piece in self.special.cut(text, plain, guarded):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encode_text(piece, after_special)
            after_special = isinstance(piece, int)
        if self.n_vocab in ids:
            lost = next(c for c in text if self.n_vocab in self._encode_text(c, False))
            raise InvalidRequest(f"the model's vocabulary has no token for the character U+{ord(lost):04X} of this text; leave it out or use another model")
        return ids

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        """Ids of a text, never of special tokens; n_vocab for what the vocabulary cannot spell."""
        raise NotImplementedError

    # ---- ids to text ---------------------------------------------------------------------------------------------------------------

    def is_control(self, token: int) -> bool:
        return self.types[token] in (CONTROL, UNKNOWN)

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """What a token adds to the text: UTF-8, perhaps part of a character. Control tokens add nothing unless special is asked for."""
        kind = self.types[token]
        if kind in (UNUSED, UNDEFINED):
            return b""
        if kind in (CONTROL, UNKNOWN):
            return self.tokens[token].encode() if special else b""
        return self._text_bytes(token)

    def _text_bytes(self, token: int) -> bytes:
        raise NotImplementedError

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD. Raises InvalidRequest for ids that are not in the vocabulary."""
        return self._decoded(token_ids(ids, self.n_vocab), skip_special)

    def _decoded(self, ids: list[int], skip_special: bool) -> str:
        return b"".join(self.token_bytes(i, not skip_special) for i in ids).decode("utf-8", "replace")

    def piece(self, token: int) -> str:
        """A token for display: its text, also where it adds nothing to an answer."""
        if self.types[token] in (UNUSED, UNDEFINED):
            return self.tokens[token]
        return self.token_bytes(token, special=True).decode("utf-8", "replace")
