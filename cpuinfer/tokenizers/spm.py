"""GGUF tokenizer `llama`: SentencePiece BPE with byte fallback, run by the sentencepiece library on a model that is made from the file's tokens and scores.

The model is written in protobuf's wire format here, since the library takes nothing else and its Python classes for it need another package (sentencepiece_model.proto).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import GGUFError
from . import Tokenizer, required
from .special import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED

SPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# sentencepiece_model.proto
_BPE = 2


def load(metadata: Mapping[str, Any]) -> SPMTokenizer:
    return SPMTokenizer(metadata)


class SPMTokenizer(Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]):
        import sentencepiece

        super().__init__(metadata, add_bos=True, strip_right=_strip_right(metadata))
        self._add_space_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        scores = required(metadata, "scores")
        if len(scores) != self.n_vocab:
            raise GGUFError(f"tokenizer.ggml.scores has {len(scores)} entries for {self.n_vocab} tokens; the file is damaged")
        try:
            self._library = sentencepiece.SentencePieceProcessor()
            self._library.LoadFromSerializedProto(_model(self.tokens, scores, self.types, self._unknown(metadata)))
        except GGUFError:
            raise
        except Exception as error:  # the library raises RuntimeError with its own words
            raise GGUFError(f"the tokenizer's vocabulary cannot be used: {error}; the file is damaged") from error

    def _unknown(self, metadata: Mapping[str, Any]) -> int:
        """The library needs an unknown token: the file's, or the first token that no text can become."""
        named = self._id(metadata, "unknown_token_id")
        if named is not None and self.types[named] != BYTE:
            return named
        for wanted in (UNKNOWN, CONTROL):
            if wanted in self.types:
                return list(self.types).index(wanted)
        raise GGUFError("the tokenizer has neither an unknown nor a control token; the file is damaged")

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        if self._add_space_prefix and after_special:
            text = " " + text
        return self._library.EncodeAsIds(text)

    def _text_bytes(self, token: int) -> bytes:
        text = self.tokens[token]
        if self.types[token] == BYTE and (match := _BYTE_PIECE.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if self.types[token] == USER_DEFINED:
            return text.encode()
        return text.replace(SPACE, " ").encode()

    def decode(self, ids: Any, skip_special: bool = False) -> str:
        ids = list(ids)
        text = super().decode(ids, skip_special)
        first = ids[1] if len(ids) > 1 and ids[0] == self.bos_id else (ids[0] if ids else None)
        if self._add_space_prefix and first is not None and not self.is_control(first):
            # The space that encoding put before the first word is not part of the text.
            start = self.tokens[ids[0]] if first is not ids[0] and not skip_special and self.is_control(ids[0]) else ""
            if text.startswith(f"{start} "):
                text = start + text[len(start) + 1 :]
        return text


def _strip_right(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Phi 3 drops whitespace after its control tokens; files do not say so, the reference implementation knows it by the model's name."""
    name = str(metadata.get("general.name", "")).lower()
    if not any(part in name for part in ("phi-3", "phi3")):
        return frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}
    tokens, types = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    return frozenset(i for i, (text, kind) in enumerate(zip(tokens, types)) if kind in (CONTROL, USER_DEFINED) and text not in keep)


# ---- the model ------------------------------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _model(tokens: list[str], scores: Any, types: Any, unknown: int) -> bytes:
    """ModelProto: pieces (text, score, type), BPE with byte fallback, no normalization, no added space. Special tokens never come here as text, so they are plain controls."""
    # 262,144 pieces in a warm start: everything of a fixed size is made at once, outside the loop.
    packed = np.asarray(scores, "<f4").tobytes()
    ends = {kind: b"\x18" + bytes([kind]) for kind in range(16)}
    headers = [(b"\x0a" + _varint(n + len(_varint(n)) + 8), b"\x0a" + _varint(n)) for n in range(512)]
    pieces: list[bytes] = []
    seen: set[str] = set()
    for i, text in enumerate(tokens):
        kind = types[i]
        if i == unknown:
            kind = UNKNOWN
        elif kind != CONTROL and kind != BYTE:
            kind = CONTROL if kind == UNKNOWN else NORMAL
        if not text or text in seen:  # the library wants unique texts; a twin can never be made from text anyway
            text, kind = f"\x00{i}", CONTROL
        seen.add(text)
        raw = text.encode()
        n = len(raw)
        outer, inner = headers[n] if n < 512 else (b"\x0a" + _varint(n + len(_varint(n)) + 8), b"\x0a" + _varint(n))
        pieces += (outer, inner, raw, b"\x15", packed[4 * i : 4 * i + 4], ends[kind])
    has_bytes = sum(1 for kind in types if kind == BYTE) == 256
    trainer = _integer(3, _BPE) + _integer(4, len(tokens)) + _integer(35, int(has_bytes)) + _integer(40, unknown)
    for number, ident in ((41, -1), (42, -1), (43, -1)):
        trainer += _integer(number, ident & (1 << 64) - 1)
    trainer += _field(45, tokens[unknown].encode())
    normalizer = _field(1, b"identity") + _integer(3, 0) + _integer(4, 0) + _integer(5, 1)
    return b"".join(pieces) + _field(2, trainer) + _field(3, normalizer)
