"""Special tokens in text, end tokens, and what tokens show."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuinfer import tokenizers
from cpuinfer.errors import GGUFError, InvalidRequest
from cpuinfer.tokenizers.special import CONTROL, USER_DEFINED, SpecialTokens


def by_length(texts: list[str], text: str) -> list[str]:
    """llama.cpp's way: token by token, the longest first, cut every piece of plain text at it."""
    pieces: list[tuple[str, bool]] = [(text, False)]
    for token in sorted(texts, key=len, reverse=True):
        new: list[tuple[str, bool]] = []
        for piece, is_token in pieces:
            if is_token:
                new.append((piece, True))
                continue
            for n, part in enumerate(piece.split(token)):
                new += [(token, True)] if n else []
                new += [(part, False)] if part else []
        pieces = new
    return [f"[{piece}]" if is_token else piece for piece, is_token in pieces]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=6, unique=True), st.text("ab<", max_size=14))
def test_the_longest_tokens_are_cut_out_first_as_llama_cpp_does(texts: list[str], text: str) -> None:
    # Tokens of one length have no order among them that could be relied on: only one of each.
    texts = list({len(token): token for token in texts}.values())
    special = SpecialTokens(texts, [CONTROL] * len(texts))
    assert [piece if isinstance(piece, str) else f"[{texts[piece]}]" for piece in special.cut(text, [])] == by_length(texts, text)


@settings(max_examples=200, deadline=None)
@given(st.text("ab<>", max_size=12), st.text("ab<>", min_size=1, max_size=12), st.text("ab<>", max_size=12))
def test_no_control_token_touches_plain_text_and_user_defined_ones_may(before: str, plain: str, after: str) -> None:
    texts = ["<a>", "<b>", "ab", "<", "a>"]
    special = SpecialTokens(texts, [CONTROL, USER_DEFINED, CONTROL, CONTROL, USER_DEFINED])
    text = before + plain + after
    at = 0
    for piece in special.cut(text, [(len(before), len(before) + len(plain))]):
        size = len(piece) if isinstance(piece, str) else len(texts[piece])
        if not isinstance(piece, str) and piece in (0, 2, 3):
            assert at + size <= len(before) or at >= len(before) + len(plain)
        at += size
    assert at == len(text)


def test_control_tokens_are_parsed_where_asked_for_and_user_defined_ones_always() -> None:
    tokenizer = tokenizers.load(oracle.bpe(control=("<c>",), user=("<u>",)))
    control, defined = 256, 257
    plain = [ord(character) for character in "<c>"]
    assert tokenizer.encode("<c><u>") == [control, defined]
    assert tokenizer.encode("<c><u>", parse_special=False) == [*plain, defined]
    assert tokenizer.encode_parts([("<c>", True), ("<c>", False), ("<u>", False)]) == [control, *plain, defined]


@st.composite
def vocabularies(draw: Any) -> dict[str, Any]:
    """Both kinds, with any spelling and any type for any token: twins of words, what merges make, single characters, byte tokens."""
    texts = draw(st.lists(st.text("abcé ▁Ġ<0x61>", min_size=1, max_size=5) | st.sampled_from(["<0x61>", "a", "é", "ab", "Ã©", "<unk>"]), min_size=1, max_size=8))
    if draw(st.booleans()):
        metadata = oracle.spm({text: -float(n) for n, text in enumerate(texts)} | {"a": -9.0, "ab": -1.0}, add_space_prefix=False, add_bos_token=False)
        kinds, first = [oracle.NORMAL, oracle.CONTROL, oracle.USER_DEFINED, oracle.UNKNOWN, oracle.UNUSED], 259
    else:
        merges = ("a b", "ab c", "b c", "Ã ©", "Ġ a", "< 0")
        metadata = oracle.bpe(merges, words=tuple(texts), pre=draw(st.sampled_from(["gpt-2", "llama-bpe"])), add_bos_token=False)
        kinds, first = [oracle.NORMAL, oracle.CONTROL, oracle.USER_DEFINED, oracle.UNKNOWN], draw(st.sampled_from([97, 256]))
    types = metadata["tokenizer.ggml.token_type"]
    for i in range(first, len(types)):
        types[i] = draw(st.sampled_from(kinds)) if first != 97 or i in (97, 98, 99) or i > 255 else types[i]
    order = draw(st.permutations(range(first, len(types)))) if first == 256 else range(first, len(types))  # twins in any order
    for key in ("tokens", "token_type", "scores"):
        if (values := metadata.get(f"tokenizer.ggml.{key}")) is not None:
            new = [*list(values[:first]), *(values[i] for i in order)]
            metadata[f"tokenizer.ggml.{key}"] = new if key == "tokens" else np.array(new, values.dtype)
    if first == 259:  # a space has a token of its own in any case
        metadata["tokenizer.ggml.tokens"].append("▁")
        metadata["tokenizer.ggml.scores"] = np.append(metadata["tokenizer.ggml.scores"], np.float32(-10))
        metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], np.int32(oracle.NORMAL))
    return metadata


@settings(max_examples=400, deadline=None)
@given(vocabularies(), st.text("abcé <0x61>", max_size=12))
def test_whatever_control_tokens_are_called_text_yields_none_and_loses_nothing(metadata: dict[str, Any], text: str) -> None:
    tokenizer = tokenizers.load(metadata)
    try:
        ids = tokenizer.encode(text, parse_special=False)
    except InvalidRequest as error:  # a byte that has no other token than a control token
        assert "no token for the character" in str(error)
        return
    assert not any(tokenizer.is_control(i) for i in ids)
    shown = b"".join(tokenizer.token_bytes(i) if tokenizer.token_bytes(i) else tokenizer.piece(i).replace("▁", " ").encode() for i in ids)
    assert shown == text.encode()


def test_a_merge_that_spells_a_control_token_does_not_make_it_from_text() -> None:
    for pre in ("gpt-2", "llama-bpe"):
        metadata = oracle.bpe(("e n", "en d", "end s"), pre=pre, add_bos_token=False)
        metadata["tokenizer.ggml.token_type"][257] = CONTROL
        tokenizer = tokenizers.load(metadata)
        assert tokenizer.encode("end ends", parse_special=False) == [256, ord("d"), 32, 256, ord("d"), ord("s")] or pre == "llama-bpe"
        assert 257 not in tokenizer.encode("end ends", parse_special=False)
        assert tokenizer.encode("end") == [257]


def test_a_character_without_a_token_is_refused_by_name() -> None:
    metadata = oracle.bpe()
    metadata["tokenizer.ggml.token_type"][ord("q")] = CONTROL
    with pytest.raises(InvalidRequest, match=r"U\+0071"):
        tokenizers.load(metadata).encode("faq", parse_special=False)
    metadata = oracle.spm({"a": -1.0}, byte_tokens=False)
    metadata["tokenizer.ggml.token_type"][0] = CONTROL
    with pytest.raises(InvalidRequest, match=r"U\+00E9"):
        tokenizers.load(metadata).encode("aé", add_bos=False)


def test_parts_are_one_text_for_the_tokenizer() -> None:
    tokenizer = tokenizers.load(oracle.bpe(("a b", "ab c"), control=("<c>",)))
    assert tokenizer.encode_parts([("a", True), ("b", False), ("c", True)]) == tokenizer.encode("abc")
    assert 258 not in tokenizer.encode_parts([("<", True), ("c", False), (">", True)])
    assert 258 in tokenizer.encode_parts([("<", True), ("c", True), (">", True)])


def test_the_time_for_a_text_grows_with_its_length_only() -> None:
    import time

    special = SpecialTokens(["\n" * n for n in range(1, 32)] + [f"<unused{n}>" for n in range(6000)], [USER_DEFINED] * 31 + [CONTROL] * 6000)

    def seconds(text: str) -> float:
        best = 1e9
        for _ in range(3):
            started = time.perf_counter()
            special.cut(text, [])
            best = min(best, time.perf_counter() - started)
        return best

    for piece in ("\n", "<", "<unused1", "x"):
        # Eight times the text: quadratic time would be 64 times as long.
        assert seconds(piece * 40_000) < 32 * seconds(piece * 5_000) + 0.05


@pytest.mark.parametrize(
    "text",
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>"],
)
def test_known_end_markers_end_an_answer_whatever_their_type(text: str) -> None:
    for metadata in (oracle.bpe(control=(text,)), oracle.bpe(user=(text,)), oracle.bpe(words=(text,))):
        tokenizer = tokenizers.load(metadata)
        assert 256 in tokenizer.end_ids
        assert tokenizer.is_control(256)
        assert 256 not in tokenizer.encode(text, parse_special=False)


def test_the_files_own_end_tokens_end_an_answer() -> None:
    tokenizer = tokenizers.load(oracle.bpe(control=("<x>", "<y>", "<z>", "<w>"), eos_token_id=256, eot_token_id=257, eom_token_id=258))
    assert tokenizer.end_ids == {256, 257, 258}


def test_end_of_a_message_is_no_end_of_the_turn_in_the_harmony_format() -> None:
    tokenizer = tokenizers.load(oracle.bpe(control=("<|end|>", "<|return|>", "<|call|>")))
    assert tokenizer.end_ids == {257, 258}
    assert tokenizers.load(oracle.bpe(control=("<|end|>",))).end_ids == {256}


def test_control_tokens_add_nothing_to_an_answer_unless_asked_for() -> None:
    tokenizer = tokenizers.load(oracle.bpe(control=("<c>",), user=("<u>",)))
    assert (tokenizer.token_bytes(256), tokenizer.token_bytes(256, special=True), tokenizer.token_bytes(257)) == (b"", b"<c>", b"<u>")
    assert (tokenizer.decode([97, 256, 98]), tokenizer.decode([97, 256, 98], skip_special=True)) == ("a<c>b", "ab")
    assert (tokenizer.piece(256), tokenizer.piece(97), tokenizer.piece(0xC3)) == ("<c>", "a", "\ufffd")
    assert [tokenizer.is_control(i) for i in (97, 256, 257)] == [False, True, False]


@pytest.mark.parametrize("make", [oracle.bpe, lambda: oracle.spm({"▁a": -1.0})], ids=["bpe", "spm"])
@pytest.mark.parametrize("bad", [-1, 100_000, 2**40, 1.5, "a", None])
def test_ids_that_are_not_in_the_vocabulary_are_refused_with_its_size(make: Any, bad: Any) -> None:
    tokenizer = tokenizers.load(make())
    for ids in ([bad], [97, bad, 98]):
        with pytest.raises(InvalidRequest, match=f"{tokenizer.n_vocab - 1}"):
            tokenizer.decode(ids)
    for ids in ("ab", 97):
        with pytest.raises(InvalidRequest):
            tokenizer.decode(ids)
    assert tokenizer.decode(np.array([97])) == tokenizer.decode([97]) and tokenizer.decode([]) == ""


@pytest.mark.parametrize("make", [oracle.bpe, lambda: oracle.spm({"▁a": -1.0}, unused=("b",))])
def test_every_token_has_a_piece_and_bytes(make: Any) -> None:
    tokenizer = tokenizers.load(make())
    for i in range(tokenizer.n_vocab):
        assert isinstance(tokenizer.piece(i), str)
        assert isinstance(tokenizer.token_bytes(i), bytes)
    assert tokenizer.n_vocab == len(tokenizer.tokens)


def test_a_special_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(GGUFError, match="eos_token_id"):
        tokenizers.load(oracle.bpe(eos_token_id=100_000))


def test_arrays_of_types_may_be_missing() -> None:
    metadata = oracle.bpe(("a b",))
    del metadata["tokenizer.ggml.token_type"]
    assert tokenizers.load(metadata).encode("ab") == [256]
