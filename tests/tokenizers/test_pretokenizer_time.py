"""Every distinct pre-tokenizer rule takes time in proportion to the text, whatever it consists of; and the patterns that were changed for it cut as the models' own do."""

from __future__ import annotations

import time
from typing import Any

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuinfer import tokenizers
from cpuinfer.tokenizers import pretokenizers

BYTES = 200_000
SMALLER = 8
# Runs of one kind of character, and short patterns that rules treat as one thing.
CLASSES = (
    *("a", "A", "ǅ", "ʰ", "ª", "中", "か", "가", "\u0301", "7", "٧", "½", "Ⅷ", " ", "\u00a0", "\t", "\n", "\r", "\r\n", "!", "'", "/", "$", "_", "🦙", "\x01", "\u0378", "\ue000"),
    *("a ", "1a", "7,", " \n", "Aa", "a's", "é", " !", "a\u0301", "<sentinel:7", "IMGIMGA"),
)
FOLLOWERS = ("a", "7", "中", "!", "\n", "\u0301", " ")  # what ends a run: rules look ahead for it
RULES = {rule: name for name, rule in sorted(pretokenizers.RULES.items(), reverse=True)}


def text_of(run: str, size: int) -> str:
    """About so many bytes: one long run, then shorter ones with something after each."""
    count = size // 2 // len(run.encode())
    return run * count + "".join(run * (count // len(FOLLOWERS)) + follower for follower in FOLLOWERS)


def seconds(work: Any, text: str, times: int) -> float:
    """Of this process, the least of several tries."""
    best = 1e9
    for _ in range(times):
        started = time.process_time()
        work(text)
        best = min(best, time.process_time() - started)
    return best


def slow(work: Any) -> list[str]:
    """Runs for which eight times the text takes much more than eight times as long. (Quadratic time would be 64 times as long.)"""
    return [run for run in CLASSES if seconds(work, text_of(run, BYTES), 1) > 3.5 * SMALLER * seconds(work, text_of(run, BYTES // SMALLER), 2) + 0.02]


@pytest.mark.parametrize("pre", sorted(RULES.values()))
def test_the_time_of_a_rule_grows_with_the_length_of_any_text_only(pre: str) -> None:
    assert slow(cutter(pretokenizers.get(pre).patterns).pre_tokenize_str) == []


@pytest.mark.parametrize(
    "metadata",
    [oracle.bpe(("a a", "aa aa", "7 7", "77 77", "Ġ Ġ", "! !", "!! !!"), pre="bloom"), oracle.spm({"a": -2.0, "aa": -1.0, "▁": -2.0, "▁▁": -1.0, "!!": -1.0})],
    ids=["bpe", "spm"],
)
def test_so_does_the_time_of_merging_within_a_word(metadata: dict[str, Any]) -> None:
    assert slow(tokenizers.load(metadata).encode) == []


OWN_PATTERNS = {
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", pretokenizers.O200K),
    "deepseek-llm": tuple(r"\s+$" if pattern == r"(?<!\s)(?>\s+)$" else pattern for pattern in pretokenizers.DEEPSEEK_LLM),
    "jais-2": (pretokenizers.JAIS2.replace(r"(?<![^\S\r\n])", ""),),
}


def cutter(patterns: tuple[str, ...]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns])


def words(patterns: tuple[str, ...], text: str) -> list[str]:
    return [word for word, _ in cutter(patterns).pre_tokenize_str(text) if word]


@pytest.mark.parametrize("pre", sorted(OWN_PATTERNS))
@settings(max_examples=400, deadline=None)
@given(st.text("0123777  a_!²٣é.,\n\t\r-½Ⅷ\u0301Z中", max_size=16))
def test_a_faster_pattern_cuts_as_the_models_own(pre: str, text: str) -> None:
    own = OWN_PATTERNS[pre]
    assert own != pretokenizers.get(pre).patterns
    assert words(pretokenizers.get(pre).patterns, text) == words(own, text)
