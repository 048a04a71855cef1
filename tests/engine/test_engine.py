"""The engine on tiny models: many sequences equal each alone, prefix reuse, limits, stops, seeds."""

from __future__ import annotations

import pytest
import tiny

from cpuinfer import tokenizers
from cpuinfer.engine.engine import Engine
from cpuinfer.engine.sequence import SamplingParams
from cpuinfer.errors import ContextFull, InvalidRequest
from cpuinfer.formats.gguf import GGUFFile

GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("models") / "m.gguf", "llama", "F32")


def make(path, **options) -> Engine:
    file = GGUFFile.open(path)
    return Engine.from_gguf(file, tokenizers.load(file.metadata), threads=2, **({"cache_type": "f32"} | options))


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


def test_many_more_sequences_than_pages_all_finish_and_free_everything(model_path) -> None:
    engine = make(model_path, context_length=96, max_sequences=3, batch_size=32)
    free = engine._scheduler.pool.n_free
    sequences = [engine.add(prompt(20 + 5 * i, i), SamplingParams(max_tokens=12, **GREEDY)) for i in range(9)]
    finish(engine, sequences)
    assert [s.finish_reason for s in sequences] == ["length"] * 9
    assert engine._scheduler.pool.n_free == free
    engine.close()


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
        {"logprobs": 10**9},
    ],
)
def test_wrong_sampling_values_are_refused_by_name(options) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        SamplingParams(**options)


def test_ids_outside_the_vocabulary_and_empty_prompts_are_refused(engine) -> None:
    for bad in ([], [10**6], [-1]):
        with pytest.raises(InvalidRequest):
            engine.add(bad)


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
