"""Attention over the paged cache against softmax(q k^T) v in float64, on the values that the cache holds."""

from __future__ import annotations

import numpy as np
import pytest
from call import Sequences, rows, run

from cpuinfer.kernels.records import PAGE
from cpuinfer.program.reference import decode_rows, encode_rows


class Case:
    """Random queries, keys and values of some sequences; `heads` is (query heads, KV heads), `dims` (key, value)."""

    def __init__(self, sequences: Sequences, heads, dims, types=("f16", "f16"), scale=None, seed=0):
        self.sequences, self.types, (self.n_heads, self.n_kv_heads), (self.key_dim, self.value_dim) = sequences, types, heads, dims
        self.scale = self.key_dim**-0.5 if scale is None else scale
        random = np.random.default_rng(seed)
        self.q = random.standard_normal((sequences.n_tokens, self.n_heads, self.key_dim)).astype(np.float32)
        self.caches = []
        for cache_type, dim in zip(types, dims):
            values = 2 * random.standard_normal((sequences.n_pages, self.n_kv_heads, PAGE, dim)).astype(np.float32)
            self.caches.append(encode_rows(values, cache_type))

    def expected(self, window=0, softcap=0.0, slopes=None, sinks=None) -> np.ndarray:
        s, group = self.sequences, self.n_heads // self.n_kv_heads
        keys, values = (decode_rows(c, t, d).astype(np.float64) for c, t, d in zip(self.caches, self.types, (self.key_dim, self.value_dim)))
        y = np.zeros((s.n_tokens, self.n_heads, self.value_dim))
        for i, (start, stop) in enumerate(zip(s.query_starts[:-1], s.query_starts[1:])):
            seen = np.arange(s.lengths[i])
            slots = s.slots_of(np.full(len(seen), i), seen)
            k, v = (c[slots // PAGE, :, slots % PAGE].transpose(1, 0, 2).repeat(group, 0) for c in (keys, values))
            scores = self.q[start:stop].transpose(1, 0, 2).astype(np.float64) @ k.transpose(0, 2, 1) * self.scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            behind = s.positions[start:stop, None] - seen
            if slopes is not None:
                scores -= slopes[:, None, None] * behind
            scores[:, (behind < 0) | (behind >= (window or len(seen)))] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            total = weights.sum(-1, keepdims=True)
            if sinks is not None:
                total += np.exp(sinks[:, None, None].astype(np.float64) - scores.max(-1, keepdims=True))
            y[start:stop] = (weights / total @ v).transpose(1, 0, 2)
        return y

    def actual(self, window=0, softcap=0.0, slopes=None, sinks=None, ranks=1, at_once=False) -> np.ndarray:
        n = self.sequences.n_tokens
        q = rows(self.q.reshape(n, -1))
        y = rows(np.full((n, self.n_heads * self.value_dim), np.nan, np.float32))
        y[n:] = 7
        fields = {
            **{"q": q, "q_stride": q.shape[1], "n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads},
            **{"key_dim": self.key_dim, "value_dim": self.value_dim, "keys": self.caches[0], "values": self.caches[1]},
            **{"key_row_bytes": self.caches[0].shape[-1], "value_row_bytes": self.caches[1].shape[-1], "window": window},
            **{"y": y, "y_stride": y.shape[1], "scale": self.scale, "softcap": softcap},
        }
        fields |= {name: array for name, array in (("slopes", slopes), ("sinks", sinks)) if array is not None}
        run(("attention", *self.types), fields, self.sequences.batch(), ranks, at_once)
        width = self.n_heads * self.value_dim
        assert not y[:n, width:].any() and (y[n:] == 7).all(), "wrote outside its rows"
        return y[:n, :width].reshape(n, self.n_heads, self.value_dim)


def check(case: Case, ranks=1, tolerance=2e-5, **options):
    expected = case.expected(**options)
    np.testing.assert_allclose(case.actual(ranks=ranks, **options), expected, atol=tolerance / 5 * np.abs(expected).max(), rtol=tolerance)


HEADS_AND_DIMS = [
    ((9, 3), (64, 64)),
    ((4, 1), (256, 256)),
    ((6, 6), (20, 20)),
    ((8, 2), (80, 80)),
    ((7, 1), (96, 96)),
    ((5, 1), (128, 128)),
    ((4, 2), (24, 40)),
    ((16, 1), (48, 16)),
]
each_shape = pytest.mark.parametrize("heads, dims", HEADS_AND_DIMS, ids=lambda pair: "x".join(map(str, pair)))
RANKS = [1, 3]


@each_shape
@pytest.mark.parametrize("before", [0, 1, 31, 32, 300])
def test_one_token_after_a_history_sees_all_of_it(heads, dims, before):
    check(Case(Sequences((before, 1)), heads, dims))


@each_shape
@pytest.mark.parametrize("lengths", [(0, 70), (45, 133)], ids=str)
def test_a_prompt_attends_to_itself_and_to_what_came_before(heads, dims, lengths):
    check(Case(Sequences(lengths), heads, dims))


@pytest.mark.parametrize("ranks", RANKS)
def test_a_prompt_longer_than_a_tile_of_queries(ranks):
    check(Case(Sequences((10, 310)), (3, 1), (32, 32)), ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 16])
@pytest.mark.parametrize("before", [5, 1000])
def test_keys_shared_out_among_threads_give_the_same(ranks, before):
    check(Case(Sequences((before, 1)), (4, 1), (64, 64)), ranks)


@pytest.mark.parametrize("ranks", RANKS)
def test_sequences_of_one_batch_see_only_their_own_tokens(ranks):
    """Decode steps, a short draft, a prompt and a continued prompt side by side."""
    check(Case(Sequences((200, 1), (0, 40), (63, 1), (90, 2), (64, 33), (0, 1)), (6, 2), (32, 48)), ranks)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("lengths", [(0, 90), (300, 64), (500, 1), (250, 3), (0, 1)], ids=str)
def test_far_keys_lose_by_their_distance(lengths, ranks):
    slopes = np.float32([0.5, 0.25, 0.125, 2, 0.01, 0])
    check(Case(Sequences(lengths), (6, 2), (32, 48)), ranks, slopes=slopes)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("lengths", [(0, 90), (300, 64), (500, 1), (250, 3), (0, 1)], ids=str)
def test_a_sink_takes_its_share_of_the_softmax(lengths, ranks):
    """Sinks far below, near and far above the scores: nothing, some and nearly all of the weight."""
    sinks = np.float32([-100, 0, 3, 8, 60, 200])
    case = Case(Sequences(lengths), (6, 2), (32, 48))
    expected = case.expected(sinks=sinks)
    np.testing.assert_allclose(case.actual(ranks=ranks, sinks=sinks), expected, atol=2e-5, rtol=2e-5)
    assert np.abs(expected[:, 5]).max() < 1e-20


@pytest.mark.parametrize("lengths", [(0, 90), (300, 64), (500, 1), (33, 1), (250, 3)], ids=str)
@pytest.mark.parametrize("window", [1, 7, 32, 100, 4096])
def test_a_window_shows_only_the_last_tokens(lengths, window):
    check(Case(Sequences(lengths), (4, 2), (32, 32)), window=window)


@pytest.mark.parametrize("lengths", [(0, 64), (120, 1)], ids=str)
@pytest.mark.parametrize("window", [0, 20])
def test_scores_are_capped(lengths, window):
    check(Case(Sequences(lengths), (4, 1), (64, 64), scale=1.0), softcap=5.0, window=window)


@pytest.mark.parametrize("types", [("f16", "f16"), ("q8_0", "f32"), ("f32", "q8_0")], ids="-".join)
@pytest.mark.parametrize("lengths", [(30, 40), (70, 1)], ids=str)
def test_cache_types_may_differ_for_keys_and_values(types, lengths):
    check(Case(Sequences(lengths), (4, 2), (80, 48), types))


@pytest.mark.parametrize("lengths", [(0, 64), (100, 1)], ids=str)
def test_scores_of_any_size_stay_finite(lengths):
    """A softmax that does not subtract the largest score overflows at 88."""
    check(Case(Sequences(lengths), (2, 1), (64, 64), scale=3.0), tolerance=1e-4)


@pytest.mark.parametrize("lengths", [(40, 60), (70, 1)], ids=str)
@pytest.mark.parametrize("window", [0, 10])
def test_what_other_sequences_left_in_a_page_is_never_seen(lengths, window):
    """Slots that no position refers to hold NaN, those before the window an infinity of another time."""
    case = Case(Sequences(lengths), (4, 2), (32, 32))
    expected = case.expected(window=window)
    s = case.sequences
    own = np.zeros((s.n_pages, PAGE), bool)
    slots = s.slots_of(np.zeros(s.lengths[0], int), np.arange(s.lengths[0]))
    own[slots // PAGE, slots % PAGE] = True
    for cache in case.caches:
        cache.transpose(0, 2, 1, 3)[~own] = 0xFF
    np.testing.assert_allclose(case.actual(window=window), expected, atol=1e-5)


@pytest.mark.parametrize("lengths", [(0, 100), (300, 1)], ids=str)
def test_the_answer_does_not_depend_on_which_thread_works(lengths):
    """Bit for bit, so that a seed gives the same text again on the same number of threads."""
    case = Case(Sequences(lengths), (4, 1), (64, 64))
    np.testing.assert_array_equal(case.actual(ranks=2), case.actual(ranks=2))


@pytest.mark.parametrize("lengths", [[(0, 100)], [(1500, 1)], [(700, 1), (20, 40), (3, 2), (900, 1)]], ids=["prompt", "one token", "mixed"])
def test_threads_at_once_give_what_threads_in_turn_give(lengths):
    case = Case(Sequences(*lengths), (4, 2), (64, 64))
    expected = case.actual(ranks=3)
    for _ in range(20):
        np.testing.assert_array_equal(case.actual(ranks=3, at_once=True), expected)


def test_a_case_whose_answer_is_known():
    """Equal keys: the mean of the values seen so far."""
    case = Case(Sequences((0, 40)), (1, 1), (16, 16), ("q8_0", "f32"))
    case.caches[0][:] = 0
    values = decode_rows(case.caches[1], "f32", 16)
    slots = case.sequences.slots
    v = values[slots // PAGE, 0, slots % PAGE]
    np.testing.assert_allclose(case.actual()[:, 0], np.cumsum(v, 0) / np.arange(1, 41)[:, None], atol=1e-5)
