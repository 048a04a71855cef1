"""Small vocabularies made in memory, and the fixture folder where it is there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for realmodels
FIXTURES = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def fixture(name: str) -> Path:
    path = FIXTURES / name
    if not path.exists():
        pytest.skip(f"needs the shared fixture {name}")
    return path


def spm(
    words: dict[str, float],
    control: tuple[str, ...] = (),
    user: tuple[str, ...] = (),
    unused: tuple[str, ...] = (),
    byte_tokens: bool = True,
    **keys: Any,
) -> dict[str, Any]:
    """SentencePiece metadata: <unk>, <s>, </s>, 256 byte tokens, then words with scores, then special ones. keys: further `tokenizer.ggml.` keys."""
    rows: list[tuple[str, float, int]] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    if byte_tokens:
        rows += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    rows += [(word, score, NORMAL) for word, score in words.items()]
    rows += [(text, 0.0, CONTROL) for text in control] + [(text, 0.0, USER_DEFINED) for text in user] + [(text, -1.0, UNUSED) for text in unused]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.scores": np.array([row[1] for row in rows], np.float32),
        "tokenizer.ggml.token_type": np.array([row[2] for row in rows], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def alphabet() -> list[str]:
    """The 256 characters of byte-level BPE, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    result, spare = [], 256
    for byte in range(256):
        if byte in printable:
            result.append(chr(byte))
        else:
            result.append(chr(spare))
            spare += 1
    return result


def bpe(
    merges: tuple[str, ...] = (),
    control: tuple[str, ...] = (),
    user: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    pre: str = "gpt-2",
    **keys: Any,
) -> dict[str, Any]:
    """Byte-level metadata: the 256 bytes (id = byte), the merges' results, words that no merge makes, control tokens, user-defined tokens."""
    tokens = [*alphabet(), *(merge.replace(" ", "") for merge in merges), *words]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control) + [USER_DEFINED] * len(user)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *control, *user],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
