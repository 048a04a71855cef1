"""The compiled sampler against a plain numpy definition: the same candidates, the same probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from cpuinfer.engine.sampler import Sampler
from cpuinfer.engine.sequence import SamplingParams, Sequence
from cpuinfer.kernels import jit


def probabilities(logits: np.ndarray, history: list[int], p: SamplingParams) -> np.ndarray:
    """llama.cpp's default chain: penalties, top-k, typical-p, top-p, min-p, temperature."""
    x = logits.astype(np.float64).copy()
    recent = history[len(history) - p.repeat_last_n :] if 0 <= p.repeat_last_n < len(history) else history
    for token in set(recent) if p.repeat_last_n else ():
        x[token] = x[token] * p.repeat_penalty if x[token] <= 0 else x[token] / p.repeat_penalty
        x[token] -= recent.count(token) * p.frequency_penalty + p.presence_penalty
    order = np.lexsort((np.arange(len(x)), -x))
    if 0 < p.top_k < len(x):
        order = order[: p.top_k]

    def softmax(ids):
        e = np.exp(x[ids] - x[ids].max())
        return e / e.sum()

    if p.typical_p < 1:
        q = softmax(order)
        distance = np.abs(-np.log(q) - -(q * np.log(q)).sum())
        nearest = np.argsort(distance, kind="stable")
        count = int(np.searchsorted(np.cumsum(q[nearest]), p.typical_p, side="right")) + 1
        order = order[np.sort(nearest[:count])]
    if p.top_p < 1:
        order = order[: int(np.searchsorted(np.cumsum(softmax(order)), p.top_p)) + 1]
    if p.min_p > 0:
        order = order[x[order] >= x[order[0]] + np.log(p.min_p)]
    result = np.zeros(len(x))
    e = np.exp((x[order] - x[order[0]]) / p.temperature)
    result[order] = e / e.sum()
    return result


@pytest.fixture(scope="module")
def sampler():
    return Sampler(jit.build([("sample",)])[("sample",)], 500, 64)


OPTIONS = [
    {},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 0.7, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.2},
    {"top_k": 7, "top_p": 1.0, "min_p": 0.0, "temperature": 2.0},
    {"top_k": 0, "typical_p": 0.6, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 30, "typical_p": 0.8},
    {"repeat_penalty": 1.8, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"repeat_penalty": 1.8, "repeat_last_n": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_frequencies_fit_the_definition(options, sampler) -> None:
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal(500) * 2.5).astype(np.float32)
    history = [int(t) for t in np.argsort(-logits)[[0, 0, 2, 5, 9, 400]]]
    params = SamplingParams(seed=11, **options)
    expected = probabilities(logits, history, params)
    sequence = Sequence(0, list(history), params, None)
    draws = 4000
    counts = np.zeros(500)
    for _ in range(draws):
        token, _ = sampler.sample(logits.copy(), sequence)
        counts[token] += 1
    assert not counts[expected == 0].any(), "a token was drawn that the filters remove"
    likely = expected * draws >= 5
    chi2 = ((counts[likely] - expected[likely] * draws) ** 2 / (expected[likely] * draws)).sum()
    degrees = max(1, likely.sum() - 1)
    assert chi2 < degrees + 5 * np.sqrt(2 * degrees), (chi2, degrees)


def test_temperature_zero_takes_the_first_of_the_largest(sampler) -> None:
    logits = np.zeros(512, np.float32)
    logits[[77, 400]] = 3
    logits[505] = 9  # padding, no token
    assert sampler.sample(logits, Sequence(0, [1], SamplingParams(temperature=0), None))[0] == 77


def test_logprobs_are_the_models_own(sampler) -> None:
    logits = np.random.default_rng(5).standard_normal(500).astype(np.float32)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    sequence = Sequence(0, [3, 3, 8], SamplingParams(seed=2, logprobs=5, repeat_penalty=1.7), None)
    token, logprobs = sampler.sample(logits.copy(), sequence)
    assert logprobs[0][0] == token
    assert [i for i, _ in logprobs[1:]] == [i for i in np.argsort(-logits)[:5].tolist() if i != token]
    assert all(abs(value - expected[i]) < 1e-4 for i, value in logprobs)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("places", [[0], [499], [7, 16, 250], list(range(100, 480))], ids=["first", "last", "some", "most"])
@pytest.mark.parametrize("options", [{"temperature": 0}, *OPTIONS], ids=str)
def test_a_logit_that_is_no_number_is_never_chosen_and_disturbs_nothing(broken, places, options, sampler) -> None:
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal(500) * 2.5).astype(np.float32)
    lowest, history = logits.copy(), [int(i) for i in np.argsort(-logits)[:3]]
    logits[places], lowest[places] = broken, -np.inf
    first, second = (Sequence(0, list(history), SamplingParams(seed=5, **options), None) for _ in range(2))
    drawn = [(sampler.sample(logits.copy(), first)[0], sampler.sample(lowest.copy(), second)[0]) for _ in range(300)]
    assert all(a == b and a not in places for a, b in drawn)
    if options.get("temperature") != 0 and options.get("top_k", 40) != 7:
        assert len({a for a, _ in drawn}) > 3, "the filters take too much away"
    if broken != -np.inf:
        p = SamplingParams(seed=5, logprobs=4, **options)
        token, logprobs = sampler.sample(logits.copy(), Sequence(0, list(history), p, None))
        assert [i for i, _ in logprobs if i != token] == [i for i in np.argsort(-lowest)[:4].tolist() if i != token]
        assert all(np.isfinite(value) for _, value in logprobs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"logprobs": 3}, *OPTIONS], ids=str)
def test_a_row_without_a_finite_logit_has_no_token(value, options, sampler) -> None:
    assert sampler.sample(np.full(500, value, np.float32), Sequence(0, [1], SamplingParams(seed=1, **options), None)) == (-1, None)


@pytest.mark.parametrize("options", [{"typical_p": 0.0}, {"top_p": 0.0}, {"min_p": 1.0}, {"typical_p": 0.0, "top_k": 0, "top_p": 1.0}, {"top_k": 1}], ids=str)
@pytest.mark.parametrize("logits", [np.zeros(500), np.arange(500) / 9, np.where(np.arange(500) == 3, 0, -np.inf)], ids=["equal", "rising", "one"])
def test_the_tightest_filter_keeps_a_candidate(options, logits, sampler) -> None:
    token, _ = sampler.sample(logits.astype(np.float32), Sequence(0, [1], SamplingParams(seed=1, **options), None))
    assert 0 <= token < 500 and np.isfinite(logits[token])


@pytest.mark.parametrize("asked", [1, 3, 100])
def test_as_many_logprobs_as_asked_for_and_one_more_for_an_unlikely_choice(asked, sampler) -> None:
    logits = np.random.default_rng(6).standard_normal(500).astype(np.float32)
    likeliest = np.argsort(-logits)[:asked].tolist()
    sequence = Sequence(0, [1], SamplingParams(seed=2, logprobs=asked, temperature=5.0, top_k=0, top_p=1.0, min_p=0.0), None)
    for _ in range(30):
        token, logprobs = sampler.sample(logits.copy(), sequence)
        assert [i for i, _ in logprobs] == [token, *(i for i in likeliest if i != token)]


def test_a_vocabulary_of_equal_or_infinite_logits_still_gives_a_token(sampler) -> None:
    for value in (0.0, -np.inf):
        for options in OPTIONS:
            logits = np.full(500, value, np.float32)
            logits[9] = 0.0
            token, _ = sampler.sample(logits, Sequence(0, [1], SamplingParams(seed=1, **options), None))
            assert 0 <= token < 500
