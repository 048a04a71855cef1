"""The engine on tiny models: many sequences equal each alone, prefix reuse, limits, stops, seeds."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from cpuinfer import tokenizers
from cpuinfer.engine.engine import Engine
from cpuinfer.engine.sequence import SamplingParams
from cpuinfer.errors import ContextFull, InvalidRequest, MachineError, ModelFailure
from cpuinfer.formats.gguf import GGUFFile

GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("models") / "m.gguf", "llama", "F32")


def make(path, **options) -> Engine:
    file = GGUFFile.open(path)
    return Engine.from_gguf(file, tokenizers.load(file.metadata), **({"cache_type": "f32", "threads": 2} | options))


@pytest.fixture
def engine(model_path):
    engine = make(model_path, context_length=256, max_sequences=8, batch_size=64)
    yield engine
    engine.close()


def finish(engine, sequences) -> None:
    for _ in range(10_000):
        if not engine.has_work():
            break
        engine.step()
    assert all(s.finish_reason for s in sequences)


def prompt(n: int, salt: int = 0) -> list[int]:
    return [(13 * i * i + 7 * i + salt) % 290 for i in range(n)]


def test_eight_sequences_at_once_equal_each_alone(engine) -> None:
    prompts = [prompt(5 + 11 * i, i) for i in range(8)]
    together = [engine.add(p, SamplingParams(max_tokens=20, **GREEDY)) for p in prompts]
    finish(engine, together)
    for p, sequence in zip(prompts, together):
        alone = engine.generate(p, SamplingParams(max_tokens=20, **GREEDY))
        list(alone)
        assert alone.tokens == sequence.tokens[len(p) :]


def test_a_second_turn_computes_at_most_one_page_more_than_what_is_new(engine) -> None:
    first = engine.generate(prompt(70), SamplingParams(max_tokens=10, **GREEDY))
    list(first)
    turn = prompt(70) + first.tokens + prompt(6, 5)
    second = engine.generate(turn, SamplingParams(max_tokens=3, **GREEDY))
    list(second)
    assert second.stats.prompt_tokens - second.stats.cached_tokens <= 6 + 1 + 32
    fresh = engine.generate([1, *turn], SamplingParams(max_tokens=3, **GREEDY))
    list(fresh)
    assert fresh.stats.cached_tokens == 0


def test_cached_pages_give_the_same_answer(model_path) -> None:
    with_cache, without = make(model_path, context_length=256), make(model_path, context_length=256)
    text = prompt(100)
    list(with_cache.generate(text[:80], SamplingParams(max_tokens=1, **GREEDY)))
    warm, cold = (e.generate(text, SamplingParams(max_tokens=30, **GREEDY)) for e in (with_cache, without))
    list(warm), list(cold)
    assert warm.stats.cached_tokens >= 64 and cold.stats.cached_tokens == 0
    assert warm.tokens == cold.tokens
    with_cache.close(), without.close()


def test_the_cache_has_a_size_of_its_own(model_path, monkeypatch) -> None:
    from cpuinfer.engine import memory

    def pages(**options) -> tuple[int, int, list[str]]:
        engine = make(model_path, **options)
        engine.close()
        return engine.context_length, engine._scheduler.pool.n_free, engine.notes

    per_token = 4 * 2 * 2 * 2 * 16  # f32, keys and values, layers, KV heads, head_dim
    assert pages(context_length=96, max_sequences=3) == (96, 9, [])
    assert pages(context_length=96, max_sequences=3, cache_tokens=130) == (96, 5, [])
    assert pages(cache_tokens=100)[:2] == (100, 4)
    monkeypatch.setattr(memory, "available_memory", lambda: 400 * per_token)
    context, n_pages, notes = pages(context_length=96, max_sequences=8)
    assert (context, n_pages) == (96, 6) and "192 tokens" in notes[0], "half of what is free, and a note"
    assert pages(context_length=256)[:2] == (256, 8)
    assert pages()[0] == 192
    for options in ({"context_length": 401}, {"cache_tokens": 401}):
        with pytest.raises(MachineError, match="more than is free"):
            pages(**options)


def test_the_context_ends_a_sequence_and_a_longer_prompt_is_refused_with_both_numbers(model_path) -> None:
    engine = make(model_path, context_length=64)
    answer = engine.generate(prompt(50), SamplingParams(**GREEDY))
    events = list(answer)
    assert events[-1].finish_reason == "context" and answer.stats.generated_tokens == 14
    with pytest.raises(ContextFull, match="64 tokens, the context 64"):
        engine.add(prompt(64))
    list(engine.generate(prompt(63), SamplingParams(**GREEDY)))
    engine.close()


def test_cancelling_frees_pages_and_others_go_on(engine) -> None:
    free = engine._scheduler.pool.n_free
    first, second = (engine.add(prompt(40, i), SamplingParams(max_tokens=30, **GREEDY)) for i in range(2))
    engine.step()
    engine.cancel(first)
    finish(engine, [first, second])
    assert first.finish_reason == "cancelled" and second.n_generated == 30
    assert engine._scheduler.pool.n_free == free


def test_closing_an_answer_early_cancels_it(engine) -> None:
    answer = engine.generate(prompt(10), SamplingParams(**GREEDY))
    next(answer)
    answer.close()
    assert answer.stats.finish_reason == "cancelled" and not engine.has_work()


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(engine) -> None:
    def tokens(seed):
        answer = engine.generate(prompt(10), SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed, max_tokens=30, ignore_eos=True))
        list(answer)
        return answer.tokens

    assert tokens(7) == tokens(7) != tokens(8)


def test_end_tokens_stop_unless_ignored_and_add_no_text(engine) -> None:
    answer = engine.generate(prompt(10), SamplingParams(max_tokens=5, **GREEDY))
    list(answer)
    engine.tokenizer.end_ids = frozenset({answer.tokens[2]})
    stopped = engine.generate(prompt(10), SamplingParams(temperature=0.0))
    events = list(stopped)
    first = answer.tokens.index(answer.tokens[2])
    assert len(events) == first + 1 and events[-1].finish_reason == "stop" and events[-1].text == ""


def test_logits_of_a_long_text_equal_those_of_its_steps(engine) -> None:
    text = prompt(150)
    whole = engine.logits(text)
    assert whole.shape == (150, engine.n_vocab)
    for n in (1, 33, 150):
        answer = engine.generate(text[:n], SamplingParams(max_tokens=1, **GREEDY))
        list(answer)
        assert answer.tokens[0] == int(whole[n - 1].argmax())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 1.5},
        {"top_k": -3},
        {"min_p": "x"},
        {"repeat_penalty": 0},
        {"stop": ("",)},
        {"max_tokens": -2},
        {"seed": 1.5},
        {"seed": 1 << 64},
        {"seed": -2},
        {"seed": True},
        {"temperature": "0.5"},
        {"temperature": 10**400},
        {"top_k": 2.0},
        {"ignore_eos": 1},
        {"logprobs": 10**9},
    ],
)
def test_wrong_sampling_values_are_refused_by_name(options) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        SamplingParams(**options)


def test_numbers_of_numpy_are_numbers_and_every_seed_is_its_own() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**64 - 1))
    assert (params.temperature, params.top_k, params.seed) == (0.5, 3, 2**64 - 1)
    states = {SamplingParams(seed=seed).first_state() for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1)}
    assert len(states) == 5 and SamplingParams(seed=-1).first_state() != SamplingParams(seed=None).first_state()


BAD_IDS = [[10**6], [-1], [2**40], [-(2**70)], [1.5], [1, 2.0], ["a"], "abc", b"abc", [None], [True], 5, None, [[1]], [float("nan")], np.array([1.5])]


@pytest.mark.parametrize("bad", BAD_IDS, ids=str)
def test_no_id_reaches_a_kernel_unchecked(engine, bad) -> None:
    for use in (engine.add, engine.generate, engine.logits, lambda ids: engine.visit_logits(ids, lambda start, part: None)):
        with pytest.raises(InvalidRequest, match="token id"):
            use(bad)


def test_ids_of_numpy_are_ids_and_an_empty_prompt_is_refused(engine) -> None:
    ids = np.array([5, 6, 7], np.int32)
    assert np.array_equal(engine.logits(ids), engine.logits([5, 6, 7])) and engine.logits([]).shape == (0, engine.n_vocab)
    engine.cancel(engine.add(ids))
    with pytest.raises(InvalidRequest, match="empty"):
        engine.add([])


@pytest.mark.parametrize(
    "options",
    [
        {"threads": -1},
        {"threads": 1.5},
        {"threads": 10**9},
        {"context_length": "512"},
        {"context_length": 1 << 40},
        {"batch_size": 0},
        {"batch_size": True},
        {"max_sequences": 0},
        {"cache_tokens": -5},
        {"cache_tokens": 100, "context_length": 101},
    ],
    ids=str,
)
def test_wrong_engine_options_are_refused_with_their_range(model_path, options) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        make(model_path, **({"context_length": 64} | options))


def test_broken_weights_end_the_answer_with_an_error_and_others_go_on(model_path, engine, monkeypatch) -> None:
    answers = [engine.generate(prompt(6, i), SamplingParams(max_tokens=8, **GREEDY)) for i in range(2)]
    sample = engine._sampler.sample

    def broken(logits, sequence):
        if sequence is answers[0].sequence and sequence.n_generated == 3:
            logits[:] = np.nan
        return sample(logits, sequence)

    monkeypatch.setattr(engine._sampler, "sample", broken)
    with pytest.raises(ModelFailure, match="no finite number"):
        list(answers[0])
    assert len(answers[0].tokens) == 3 and answers[0].stats.finish_reason == "error"
    assert len(list(answers[1])) == 8 and not engine.has_work()


@pytest.mark.parametrize(
    "arch, changes, cache_type",
    [
        ("gemma3", {}, "f16"),
        ("llama", {}, "q8_0"),
        ("llama", {"heads": 4, "head_dim": 20, "kv_heads": 2}, "f16"),
        ("llama", {"head_dim": 36}, "q8_0"),
        ("phi3", {"head_dim": 50}, "f32"),
    ],
    ids=["window", "q8_0", "head_dim 20", "head_dim 36 q8_0", "head_dim 50"],
)
def test_five_sequences_with_common_beginnings_in_a_small_cache_equal_each_alone(tmp_path, arch, changes, cache_type) -> None:
    path = tiny.model(tmp_path / "m.gguf", arch, "F32", **changes)
    common = prompt(70)
    prompts = [[*common[: 70 - 32 * (i // 3)], *prompt(9 + 3 * i, i)] for i in range(5)]
    alone = make(path, context_length=160, cache_type=cache_type)
    expected = []
    for p in prompts:
        fresh = make(path, context_length=160, cache_type=cache_type)
        answer = fresh.generate(p, SamplingParams(max_tokens=50, **GREEDY))
        list(answer)
        assert answer.stats.cached_tokens == 0
        expected.append(answer.tokens)
        fresh.close()
    alone.close()
    engine = make(path, context_length=160, max_sequences=5, batch_size=48, cache_type=cache_type, cache_tokens=300)
    free, preempted = engine._scheduler.pool.n_free, []
    preempt = engine._scheduler._preempt
    engine._scheduler._preempt = lambda sequence: (preempted.append(sequence), preempt(sequence))
    sequences = [engine.add(p, SamplingParams(max_tokens=50, **GREEDY)) for p in prompts]
    finish(engine, sequences)
    assert preempted and sum(s.n_cached for s in sequences) >= 64, "neither preemption nor reuse was tried"
    assert [s.tokens[s.n_prompt :] for s in sequences] == expected
    assert engine._scheduler.pool.n_free == free
    engine.close()


def test_two_python_threads_may_use_one_model(model_path) -> None:
    import threading

    from cpuinfer.model import Model

    with Model(model_path, threads=2, context_length=128, cache_type="f32") as model:
        alone = [model.generate(prompt(8, i), max_tokens=20, **GREEDY) for i in range(2)]
        expected = []
        for answer in alone:
            list(answer)
            expected.append(answer.tokens)
        results = [None, None]

        def work(i: int) -> None:
            answer = model.generate(prompt(8, i), max_tokens=20, **GREEDY)
            list(answer)
            results[i] = answer.tokens

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        [t.start() for t in threads]
        [t.join(60) for t in threads]
        assert results == expected
