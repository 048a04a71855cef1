"""Text of tokens as they come: whole characters, each once."""

from __future__ import annotations

import oracle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cpuinfer import tokenizers
from cpuinfer.tokenizers.detokenizer import Detokenizer

BYTES = tokenizers.load(oracle.bpe(("ð Ł", "¦ Ļ"), control=("<c>",)))


def pushed(ids: list[int], tokenizer: object = BYTES) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def test_a_character_of_two_byte_tokens_comes_whole_with_the_second() -> None:
    assert pushed(list("aá!".encode())) == ["a", "", "á", "!", ""]


@pytest.mark.parametrize("cut", [[1, 3], [2, 2], [1, 1, 2], [1, 1, 1, 1], [4], [3, 1]])
def test_an_emoji_over_any_number_of_tokens_comes_once_and_whole(cut: list[int]) -> None:
    raw = "🦙".encode()
    parts, at = [], 0
    for size in cut:
        parts.append("".join(oracle.alphabet()[byte] for byte in raw[at : at + size]))
        at += size
    words = tuple(part for part in parts if len(part) > 1)
    tokenizer = tokenizers.load(oracle.bpe(words=words))
    out = pushed([tokenizer.tokens.index(part) for part in parts], tokenizer)
    assert out == [""] * (len(cut) - 1) + ["🦙", ""]


def test_byte_tokens_of_sentencepiece_join_too() -> None:
    tokenizer = tokenizers.load(oracle.spm({"▁a": -1.0}))
    ids = [tokenizer.tokens.index(text) for text in ("▁a", "<0xC3>", "<0xA1>", "▁a")]
    assert pushed(ids, tokenizer) == [" a", "", "á", " a", ""]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_unfinished_character_at_the_end_gives_one_replacement_character(size: int) -> None:
    out = pushed(list("🦙".encode()[:size]))
    assert out == [""] * size + ["\ufffd"]


def test_a_broken_character_does_not_swallow_the_next() -> None:
    assert "".join(pushed([0xC3, ord("a"), 0xE2, 0x82, ord("b")])) == "\ufffda\ufffdb"


def test_control_tokens_add_nothing() -> None:
    assert pushed([97, BYTES.tokens.index("<c>"), 98]) == ["a", "", "b", ""]


def test_nothing_is_left_after_a_flush() -> None:
    detokenizer = Detokenizer(BYTES)
    detokenizer.push(0xC3)
    assert (detokenizer.flush(), detokenizer.flush(), detokenizer.push(0xA1)) == ("\ufffd", "", "\ufffd")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20))
def test_any_text_comes_piece_by_piece_as_it_is(text: str) -> None:
    pieces = pushed(list(text.encode()))
    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=20))
@example(b"\xed\xa0")  # begins no character, which Python's incremental decoder says only at the end
def test_any_bytes_come_as_python_decodes_them(raw: bytes) -> None:
    assert "".join(pushed(list(raw))) == raw.decode("utf-8", "replace")
    assert BYTES.decode(list(raw)) == raw.decode("utf-8", "replace")
