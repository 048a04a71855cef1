"""Streaming text: whole characters, and stop strings cut at the leftmost match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuinfer.engine.text_stream import TextStream
from cpuinfer.tokenizers.detokenizer import Detokenizer


class Bytes:
    """A tokenizer whose tokens are byte strings."""

    def __init__(self, pieces: list[bytes]):
        self.pieces = pieces

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        return self.pieces[token]


def stream(pieces: list[bytes], stop=()) -> tuple[list[str], bool]:
    text = TextStream(Detokenizer(Bytes(pieces)), stop)
    out = []
    for i in range(len(pieces)):
        out.append(text.push(i))
        if text.stopped:
            break
    out.append(text.flush())
    return out, text.stopped


@pytest.mark.parametrize("cuts", [[1], [2], [3], [1, 2], [1, 2, 3]])
def test_a_character_over_several_tokens_comes_once_and_whole(cuts) -> None:
    raw = "🦙".encode()
    edges = [0, *cuts, len(raw)]
    out, _ = stream([raw[a:b] for a, b in zip(edges, edges[1:])])
    assert "".join(out) == "🦙" and "\ufffd" not in "".join(out)


def test_an_unfinished_character_ends_as_one_replacement() -> None:
    out, _ = stream([b"ok", "é".encode()[:1]])
    assert out == ["ok", "", "\ufffd"]


def test_a_text_that_was_cut_ends_before_an_unfinished_character() -> None:
    for n in (1, 2, 3):
        text = TextStream(Detokenizer(Bytes([b"ok" + "🦙".encode()[:n]])))
        assert text.push(0) + text.flush(cut=True) == "ok"


def test_stop_strings_over_tokens_and_within_them() -> None:
    assert stream([b"UNO D", b"UE TR", b"E\nAAAAAAA"], ("TRE\nAAAAAAAA",)) == (["UNO D", "UE ", "", "TRE\nAAAAAAA"], False)
    assert stream([b"one ST", b"O", b"P two"], ("STOP",)) == (["one ", "", "", ""], True)
    assert stream([b"aXbYc"], ("Y", "X")) == (["a", ""], True)


@given(st.text(alphabet="abX", max_size=30), st.lists(st.text(alphabet="abX", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_what_comes_out_is_the_text_before_the_leftmost_stop(text, stops, data) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    out, stopped = stream([text[a:b].encode() for a, b in zip(edges, edges[1:])], tuple(stops))
    whole = "".join(out)
    first = min((at for s in stops if (at := text.find(s)) >= 0), default=None)
    assert stopped == (first is not None)
    if first is None:
        assert whole == text
    else:
        # A stop that completes first may end the text before one that would have begun earlier.
        assert text.startswith(whole) and any(text[len(whole) :].startswith(s) for s in stops)
