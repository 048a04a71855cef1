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
    assert [i for i, _ in logprobs[1:]] == np.argsort(-logits)[:5].tolist()
    assert all(abs(value - expected[i]) < 1e-4 for i, value in logprobs)


def test_a_vocabulary_of_equal_or_infinite_logits_still_gives_a_token(sampler) -> None:
    for value in (0.0, -np.inf):
        for options in OPTIONS:
            logits = np.full(500, value, np.float32)
            logits[9] = 0.0
            token, _ = sampler.sample(logits, Sequence(0, [1], SamplingParams(seed=1, **options), None))
            assert 0 <= token < 500
