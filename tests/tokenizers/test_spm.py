"""SentencePiece vocabularies, against a plain reimplementation of llama.cpp's rule: merge the adjacent pair whose union scores best, leftmost first."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuinfer import tokenizers
from cpuinfer.errors import GGUFError, UnsupportedModel

SPACE = "▁"
WORDS = {"▁": -1.0, "h": -2.0, "e": -3.0, "l": -4.0, "o": -5.0, "he": -6.0, "ll": -7.0, "▁he": -8.0, "llo": -9.0, "▁hello": -10.0, "▁▁": -11.0}


def merged(metadata: dict[str, Any], text: str) -> list[int]:
    """Ids of a text (spaces already as U+2581), by trying every pair at every step."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    types = metadata["tokenizer.ggml.token_type"]
    ids = {token: i for i, token in enumerate(tokens) if types[i] not in (oracle.CONTROL, oracle.UNKNOWN, oracle.BYTE)}
    parts = list(text)
    while True:
        pairs = [(scores[ids[a + b]], -n) for n, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ids]
        if not pairs:
            break
        n = -max(pairs)[1]
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    result = []
    for part in parts:
        result += [ids[part]] if part in ids else [tokens.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return result


@st.composite
def vocabularies(draw: Any) -> dict[str, Any]:
    words = draw(st.lists(st.text("ab▁é", min_size=1, max_size=4), min_size=1, max_size=12, unique=True))
    scores = draw(st.lists(st.sampled_from([-1.0, -2.0, -3.0]), min_size=len(words), max_size=len(words)))
    unused = draw(st.lists(st.sampled_from(words), max_size=2, unique=True))
    kept = {word: score for word, score in zip(words, scores) if word not in unused}
    return oracle.spm(kept, unused=tuple(unused), add_space_prefix=False, add_bos_token=False)


@settings(max_examples=150, deadline=None)
@given(vocabularies(), st.text("ab é\n", max_size=12))
def test_any_vocabulary_and_text_give_the_ids_of_plain_merging(metadata: dict[str, Any], text: str) -> None:
    assert tokenizers.load(metadata).encode(text) == merged(metadata, text.replace(" ", SPACE))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.booleans())
def test_any_text_comes_back(text: str, prefix: bool) -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS, add_space_prefix=prefix))
    text = text.replace(SPACE, "")  # which stands for a space itself
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special=True) == text


def test_unknown_characters_are_bytes() -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS, add_space_prefix=False))
    assert [tokenizer.tokens[i] for i in tokenizer.encode("á🦙", add_bos=False)] == ["<0xC3>", "<0xA1>", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]


def test_a_space_is_put_before_the_first_word_and_after_special_tokens_by_default() -> None:
    for keys, wanted in (({}, ["▁hello", "</s>", "▁he"]), ({"add_space_prefix": False}, ["he", "llo", "</s>", "he"])):
        tokenizer = tokenizers.load(oracle.spm(WORDS, **keys))
        assert [tokenizer.tokens[i] for i in tokenizer.encode("hello</s>he", add_bos=False)] == wanted


def test_no_text_gives_bos_alone() -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS))
    assert (tokenizer.encode(""), tokenizer.encode("", add_bos=False)) == ([1], [])


def test_bos_is_added_by_default_and_eos_is_not() -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS))
    assert (tokenizer.add_bos, tokenizer.add_eos) == (True, False)
    both = tokenizers.load(oracle.spm(WORDS, add_bos_token=False, add_eos_token=True))
    assert both.encode("hello") == [*tokenizer.encode("hello", add_bos=False), 2]
    assert both.encode("hello", add_bos=True)[0] == 1


def test_text_of_a_control_token_is_text_where_special_tokens_are_not_parsed() -> None:
    # The best merges would end in the control token itself; its pieces are in the vocabulary.
    words = {"<": -1.0, "s": -2.0, ">": -3.0, "<s": -4.0, "/": -5.0}
    tokenizer = tokenizers.load(oracle.spm(words, add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("<s>") == [1]
    assert [tokenizer.tokens[i] for i in tokenizer.encode("<s>", parse_special=False)] == ["<s", ">"]


def test_text_of_a_byte_token_is_text() -> None:
    tokenizer = tokenizers.load(oracle.spm({c: -1.0 for c in "<0x41>"} | {"<0x4": -2.0, "<0": -2.0, "<0x": -2.0, "1>": -2.0}, add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode("<0x41>", add_bos=False)) == "<0x41>"


def test_user_defined_tokens_keep_their_own_spaces() -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS, user=("a b",), add_space_prefix=False))
    ids = tokenizer.encode("hea bhe", parse_special=False, add_bos=False)
    assert [tokenizer.tokens[i] for i in ids] == ["he", "a b", "he"]
    assert tokenizer.decode(ids) == "hea bhe"


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS, add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode("he\ud800", add_bos=False)) == "he\ufffd"


def test_a_nul_is_a_byte_like_others() -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS, add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode("h\0e", add_bos=False)) == "h\0e"


def test_whitespace_is_neither_joined_nor_dropped() -> None:
    tokenizer = tokenizers.load(oracle.spm(WORDS, add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode("  h   e \n ", add_bos=False)) == "  h   e \n "


def test_phi_3_drops_whitespace_after_its_special_tokens() -> None:
    metadata = oracle.spm(WORDS, control=("<|user|>",), add_space_prefix=False) | {"general.name": "Phi-3 mini"}
    tokenizer = tokenizers.load(metadata)
    assert tokenizer.decode(tokenizer.encode("<|user|>\n \nhe<s> he", add_bos=False)) == "<|user|>he<s> he"


def test_a_vocabulary_with_twins_empty_texts_or_no_bytes_still_works() -> None:
    metadata = oracle.spm({"h": -1.0, "e": -2.0}, byte_tokens=False, add_space_prefix=False)
    metadata["tokenizer.ggml.tokens"] += ["h", "", "", "a\0b"]
    metadata["tokenizer.ggml.scores"] = np.append(metadata["tokenizer.ggml.scores"], np.float32([0, 0, 0, 0]))
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], np.int32([1, 1, 1, 1]))
    tokenizer = tokenizers.load(metadata)
    assert tokenizer.encode("he", add_bos=False) == [3, 4]
    assert tokenizer.encode("z", add_bos=False) == [0]


@pytest.mark.parametrize("key", ["tokens", "scores"])
def test_missing_keys_are_named(key: str) -> None:
    metadata = oracle.spm(WORDS)
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(GGUFError, match=f"tokenizer.ggml.{key}"):
        tokenizers.load(metadata)


@pytest.mark.parametrize("key", ["scores", "token_type"])
def test_arrays_of_another_length_are_refused(key: str) -> None:
    metadata = oracle.spm(WORDS)
    metadata[f"tokenizer.ggml.{key}"] = metadata[f"tokenizer.ggml.{key}"][:-1]
    with pytest.raises(GGUFError, match=key):
        tokenizers.load(metadata)


def test_other_kinds_of_tokenizer_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="'t5'"):
        tokenizers.load({"tokenizer.ggml.model": "t5"})
    with pytest.raises(GGUFError, match="tokenizer.ggml.model"):
        tokenizers.load({})
