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

        super().__init__(metadata, add_bos=True, strip_right=_strip_right(metadata), default_bos=1, default_eos=2)
        self._add_space_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        scores = required(metadata, "scores")
        if len(scores) != self.n_vocab:
            raise GGUFError(f"tokenizer.ggml.scores has {len(scores)} entries for {self.n_vocab} tokens; the file is damaged")
        self._unknown = self._file_unknown(metadata)
        try:
            self._library = sentencepiece.SentencePieceProcessor()
            self._library.LoadFromSerializedProto(_model(self.tokens, scores, self.types))
        except GGUFError:
            raise
        except Exception as error:  # the library raises RuntimeError with its own words
            raise GGUFError(f"the tokenizer's vocabulary cannot be used: {error}; the file is damaged") from error

    def _file_unknown(self, metadata: Mapping[str, Any]) -> int:
        """What stands for characters that the vocabulary cannot spell: the file's own unknown token, else n_vocab, which `encode` refuses."""
        named = self._id(metadata, "unknown_token_id")
        if named is not None and self.types[named] == UNKNOWN:
            return named
        return self.types.index(UNKNOWN) if UNKNOWN in self.types else self.n_vocab

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        if self._add_space_prefix and after_special:
            text = " " + text
        ids = self._library.EncodeAsIds(text)
        if self._unknown != self.n_vocab and self.n_vocab in ids:
            return [self._unknown if token == self.n_vocab else token for token in ids]
        return ids

    def _text_bytes(self, token: int) -> bytes:
        text = self.tokens[token]
        if self.types[token] == BYTE and (match := _BYTE_PIECE.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if self.types[token] == USER_DEFINED:  # their texts have spaces as they are
            return text.encode()
        return text.replace(SPACE, " ").encode()

    def _decoded(self, ids: list[int], skip_special: bool) -> str:
        text = super()._decoded(ids, skip_special)
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

# Each piece is: field 1 of ModelProto {field 1: text, field 2: score f32, field 3: type}. Lengths are written as varints of two bytes, always, so that a piece has a fixed frame
# and numpy can lay out all of a vocabulary at once (262,144 pieces in a warm start: 0.7 s in a loop, 0.15 s so; 2 cores of a Zen 5, 2026-12).
_HEAD, _TAIL = 6, 7
_LONGEST_PIECE = (1 << 14) - 1 - _HEAD - _TAIL


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


def _two_byte_varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (values & 127 | 128).astype("u1"), (values >> 7).astype("u1")


def _no_text(token: int) -> bytes:
    """A unique text that nothing written can become: of more than one character, and the first is none."""
    return b"\xf4\x8f\xbf\xbf%d" % token


def _model(tokens: list[str], scores: Any, types: list[int]) -> bytes:
    """ModelProto: pieces (text, score, type), BPE with byte fallback, no normalization, no added space. The piece after the vocabulary is the library's unknown one.

    Special tokens have no text here: nothing that is written can become one, whatever theirs is. Text may become any other token that is not a byte, unused ones too: llama.cpp
    makes no difference.
    """
    kinds = np.array(types)
    special = np.isin(kinds, (CONTROL, UNKNOWN, USER_DEFINED))
    kinds = np.where(special, CONTROL, np.where(kinds == BYTE, BYTE, NORMAL))
    raw = [text.encode() for text in tokens]
    for i in np.flatnonzero(special).tolist():
        raw[i] = _no_text(i)
    if len(set(raw)) < len(raw) or b"" in raw or b"\0" in b"".join(raw):
        # The library wants unique texts without NUL. Of twins a byte counts (without all of them the library has no byte fallback), else the first; NUL is a byte token.
        order = np.argsort(kinds != BYTE, kind="stable").tolist()
        seen = {b""}
        for i in order:
            text = raw[i]
            if text in seen or b"\0" in text:
                raw[i], kinds[i] = _no_text(i), CONTROL
            seen.add(text)
    raw.append(_no_text(len(raw)))
    kinds = np.append(kinds, UNKNOWN)
    trainer = _integer(3, _BPE) + _integer(4, len(raw)) + _integer(35, int(np.count_nonzero(kinds == BYTE) == 256)) + _integer(40, len(tokens))
    for number in (41, 42, 43):  # bos, eos and padding are none of the library's business
        trainer += _integer(number, -1 & (1 << 64) - 1)
    trainer += _field(45, raw[-1])
    normalizer = _field(1, b"identity") + _integer(3, 0) + _integer(4, 0) + _integer(5, 1)
    return _pieces(raw, np.append(scores, 0.0).astype("<f4"), kinds).tobytes() + _field(2, trainer) + _field(3, normalizer)


def _pieces(raw: list[bytes], scores: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """u1[bytes]: all pieces in protobuf's wire format."""
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    if sizes.max() > _LONGEST_PIECE:
        raise GGUFError(f"a token of the vocabulary has {sizes.max()} bytes; the file is damaged")
    ends = np.cumsum(sizes + _HEAD + _TAIL)
    starts = ends - sizes - _HEAD - _TAIL
    out = np.empty(ends[-1], "u1")
    out[starts], out[starts + 3] = 0x0A, 0x0A
    out[starts + 1], out[starts + 2] = _two_byte_varints(sizes + _HEAD - 3 + _TAIL)
    out[starts + 4], out[starts + 5] = _two_byte_varints(sizes)
    text_places = np.ones(ends[-1], bool)
    for n in range(_HEAD):
        text_places[starts + n] = False
    for n in range(_TAIL):
        text_places[ends - _TAIL + n] = False
    out[text_places] = np.frombuffer(b"".join(raw), "u1")
    out[ends - 7], out[ends - 2], out[ends - 1] = 0x15, 0x18, kinds
    for n, score_bytes in enumerate(scores.view("u1").reshape(-1, 4).T):
        out[ends - 6 + n] = score_bytes
    return out
