"""Byte-level BPE, against a plain reimplementation: within a word, merge the adjacent pair of the lowest rank, leftmost first."""

from __future__ import annotations

import re
from typing import Any

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuinfer import tokenizers
from cpuinfer.errors import GGUFError, UnsupportedModel
from cpuinfer.tokenizers import pretokenizers

HELLO = ("h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ")


def merged(merges: tuple[str, ...], word: str) -> list[str]:
    """Tokens of one word that is already spelled in the byte alphabet."""
    ranks = {tuple(merge.split(" ")): n for n, merge in reversed(list(enumerate(merges)))}
    parts = list(word)
    while True:
        pairs = [(ranks[pair], n) for n, pair in enumerate(zip(parts, parts[1:])) if pair in ranks]
        if not pairs:
            return parts
        n = min(pairs)[1]
        parts[n : n + 2] = [parts[n] + parts[n + 1]]


def spelled(text: str) -> str:
    return "".join(oracle.alphabet()[byte] for byte in text.encode())


def tokens_of(tokenizer: Any, text: str, **options: Any) -> list[str]:
    return [tokenizer.tokens[i] for i in tokenizer.encode(text, **options)]


def words_of(pre: str, text: str) -> list[str]:
    """The words into which a pre-tokenizer cuts a text."""
    from tokenizers import Regex, pre_tokenizers

    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pretokenizers.get(pre).patterns]
    return [word for word, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@st.composite
def merge_lists(draw: Any) -> tuple[str, ...]:
    known = list("abĠÃ")
    merges: list[str] = []
    for _ in range(draw(st.integers(1, 8))):
        left, right = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        if left + right not in known:
            known.append(left + right)
            merges.append(f"{left} {right}")
    return tuple(draw(st.permutations(merges)))


@settings(max_examples=150, deadline=None)
@given(merge_lists(), st.text("ab ", max_size=14))
def test_any_merges_and_text_give_the_tokens_of_plain_merging(merges: tuple[str, ...], text: str) -> None:
    words = re.findall(r" ?[ab]+| +(?![ab])| +", text)
    assert "".join(words) == text
    assert tokens_of(tokenizers.load(oracle.bpe(merges)), text) == [token for word in words for token in merged(merges, spelled(word))]


@pytest.mark.parametrize("pre", sorted(pretokenizers.RULES))
@settings(max_examples=12, deadline=None)
@given(text=st.text(max_size=40) | st.text("aB1 \n\r\t'.,é中🦙\u0301", max_size=40))
def test_with_any_pre_tokenizer_any_text_comes_back(pre: str, text: str) -> None:
    tokenizer = tokenizers.load(oracle.bpe(HELLO, pre=pre))
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False, add_bos=False)) == text
    assert "".join(words_of(pre, text)) == text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'll go  to 12345!?\n\n x", ["I", "'ll", " go", " ", " to", " 12345", "!?", "\n\n", " x"]),
        ("gpt-2", "ab\n\nc", ["ab", "\n", "\n", "c"]),
        ("llama-bpe", "I'LL go  to 12345!?\n\n x", ["I", "'LL", " go", " ", " to", " ", "123", "45", "!?\n\n", " x"]),
        ("llama-bpe", "a\n\n\n b", ["a", "\n\n\n", " b"]),
        ("qwen2", "a 123", ["a", " ", "1", "2", "3"]),
        ("qwen35", "a\u0301b", ["a\u0301b"]),
        ("starcoder", "x123 4", ["x", "1", "2", "3", " ", "4"]),
        ("smollm", "x12", ["x", "1", "2"]),
        ("falcon", "a1234...b", ["a", "123", "4", "...", "b"]),
        ("deepseek-llm", "a 12\n中文", ["a", " ", "12", "\n", "中文"]),
        ("deepseek-coder", "a 12\n", ["a", " ", "1", "2", "\n"]),
        ("deepseek-v3", "abc1234 中文.x", ["abc", "123", "4", " ", "中文", ".x"]),
        ("command-r", "a 12", ["a", " ", "1", "2"]),
        ("tekken", "HelloWorld 12/\n", ["Hello", "World", " ", "1", "2", "/\n"]),
        ("gpt-4o", "HelloWorld's 1234/\n", ["Hello", "World's", " ", "123", "4", "/\n"]),
        ("default", "a 1234$", ["a", " ", "123", "4", "$"]),
        ("superbpe", "a 1234567", ["a ", "1", "234", "567"]),
        ("superbpe", "12 123 1234", ["12", " ", "123", " ", "1", "234"]),
        ("superbpe", "123456b12345", ["123", "456", "b", "12", "345"]),
        ("viking", "a b 12", ["a", " b", " ", "1", "2"]),
    ],
)
def test_a_pre_tokenizer_cuts_where_its_model_was_trained_to(pre: str, text: str, words: list[str]) -> None:
    assert [word for word in words_of(pre, text) if word] == words


def test_a_word_that_is_a_token_is_one_token_whatever_the_merges_say_for_llama_3_alone() -> None:
    assert tokens_of(tokenizers.load(oracle.bpe(words=("abc",), pre="llama-bpe")), "abc", add_bos=False) == ["abc"]
    assert tokens_of(tokenizers.load(oracle.bpe(words=("abc",), pre="gpt-2")), "abc", add_bos=False) == ["a", "b", "c"]


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModel, match=r"'nonsense'.*llama-bpe.*qwen2"):
        tokenizers.load(oracle.bpe(pre="nonsense"))


def test_a_file_without_the_key_gets_the_default_pre_tokenizer() -> None:
    metadata = oracle.bpe()
    del metadata["tokenizer.ggml.pre"]
    assert tokens_of(tokenizers.load(metadata), "12") == ["1", "2"]


def test_merges_that_make_no_token_are_left_out() -> None:
    metadata = oracle.bpe(("a b", "c d"))
    metadata["tokenizer.ggml.merges"] += ["x y", "zz a"]
    assert tokens_of(tokenizers.load(metadata), "abcdxyzza") == ["ab", "cd", "x", "y", "z", "z", "a"]


def test_merges_are_required() -> None:
    metadata = oracle.bpe()
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(GGUFError, match="tokenizer.ggml.merges"):
        tokenizers.load(metadata)


def test_bos_is_added_if_the_file_or_the_kind_says_so() -> None:
    assert tokenizers.load(oracle.bpe(control=("<s>",), bos_token_id=256)).add_bos is False
    assert tokenizers.load(oracle.bpe(control=("<s>",), bos_token_id=256, add_bos_token=True)).encode("a") == [256, ord("a")]
    llama = tokenizers.load(oracle.bpe(control=("<s>",), bos_token_id=256, pre="llama-bpe"))
    assert llama.encode("a") == [256, ord("a")]
    assert llama.encode("a", add_bos=False) == [ord("a")]
    assert tokenizers.load(oracle.bpe(control=("<s>",), bos_token_id=256, pre="llama-bpe", add_bos_token=False)).encode("a") == [ord("a")]


def test_no_space_is_put_before_the_text() -> None:
    assert tokens_of(tokenizers.load(oracle.bpe(HELLO)), "hello hello") == ["hello", "Ġhello"]


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    tokenizer = tokenizers.load(oracle.bpe(HELLO))
    assert tokenizer.decode(tokenizer.encode("a\udfffb")) == "a\ufffdb"
