"""The life of a model beside its answers: closed, forked, interrupted, answers that are dropped, paused or read by turns."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time

import pytest
import tiny

from cpuinfer.engine.sequence import MOST_EVENTS
from cpuinfer.errors import ContextFull, InvalidRequest, MachineError
from cpuinfer.model import Model

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPT = [5, 9, 14, 3]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("models") / "m.gguf", "llama", "F32")


@pytest.fixture
def model(path):
    with Model(path, threads=2, context_length=128) as model:
        yield model


def tokens_of(model, prompt, count=20) -> list[int]:
    return [event.token for event in model.generate(prompt, max_tokens=count, **GREEDY)]


# ---- closed ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.generate("x"),
        lambda model: model.chat([{"role": "user", "content": "x"}]),
        lambda model: model.logits([1]),
        lambda model: model.engine.add([1]),
        lambda model: model.engine.step(),
        lambda model: model.engine.visit_logits([1], lambda start, part: None),
    ],
)
def test_every_use_of_a_closed_model_is_an_error_at_once(path, use) -> None:
    model = Model(path, threads=2, context_length=128)
    model.close()
    model.close()  # twice is no harm
    with pytest.raises(MachineError, match="closed"):
        use(model)


def test_closing_a_model_ends_the_answer_that_another_thread_reads(path) -> None:
    model = Model(path, threads=2, context_length=8192)
    answer, failures, begun = model.generate(PROMPT, **GREEDY), [], threading.Event()

    def read() -> None:
        try:
            for _ in answer:
                begun.set()
        except MachineError as error:
            failures.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    model.close()
    reader.join(60)
    assert not reader.is_alive() and len(failures) == 1 and "closed" in failures[0]
    answer.close()


# ---- dropped ---------------------------------------------------------------------------------------------------------------------------


def refused(model) -> list[tuple[type, object]]:
    long = [5] * 200
    return [
        (ContextFull, lambda: model.generate(long)),
        (InvalidRequest, lambda: model.generate([])),
        (InvalidRequest, lambda: model.generate([10**9])),
        (InvalidRequest, lambda: model.generate("x", top_k=-1)),
        (InvalidRequest, lambda: model.generate("x", nonsense=1)),
        (ContextFull, lambda: model.chat([{"role": "user", "content": "a b c " * 100}])),
    ]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_refused_prompt_leaves_nothing_behind(model) -> None:
    for kind, call in refused(model):
        with pytest.raises(kind):
            call()
    gc.collect()
    assert not model.engine.has_work()


def test_a_dropped_answer_is_cancelled_and_frees_its_pages(model) -> None:
    free = model.engine._scheduler.pool.n_free
    answer = model.generate(PROMPT, **GREEDY)
    next(answer)
    del answer
    gc.collect()
    assert not model.engine.has_work() and model.engine._scheduler.pool.n_free == free


def test_an_answer_that_is_dropped_within_a_step_is_cancelled_after_it(model, monkeypatch) -> None:
    """Garbage is collected anywhere: also between planning a step and counting it."""
    first, second = (model.generate([i, *PROMPT], max_tokens=12, **GREEDY) for i in (1, 2))
    next(first)
    doomed = [first]
    del first
    run = model.engine.team.run

    def run_and_drop(*arguments) -> None:
        doomed.clear()
        run(*arguments)

    monkeypatch.setattr(model.engine.team, "run", run_and_drop)
    read = [event.token for event in second]
    monkeypatch.undo()
    assert read == tokens_of(model, [2, *PROMPT], 12)
    assert not model.engine.has_work()


def test_an_answer_dropped_by_another_thread_waits_for_the_step(model) -> None:
    answers = [model.generate([i, *PROMPT], max_tokens=60, **GREEDY) for i in range(8)]
    last = model.generate(PROMPT, max_tokens=60, **GREEDY)

    def drop() -> None:
        while answers:
            answers.pop()
            time.sleep(0.002)

    dropper = threading.Thread(target=drop)
    dropper.start()
    read = [event.token for event in last]
    dropper.join()
    assert read == tokens_of(model, PROMPT, 60)
    assert not model.engine.has_work()


# ---- paused ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_sequences", [1, 3])
def test_a_paused_answer_holds_up_no_other_and_goes_on_where_it_was(path, max_sequences) -> None:
    with Model(path, threads=2, context_length=128, max_sequences=max_sequences) as model:
        expected = [tokens_of(model, [i, *PROMPT], 100) for i in (1, 2)]
        paused, other = (model.generate([i, *PROMPT], max_tokens=100, **GREEDY) for i in (1, 2))
        start = [next(paused).token]
        assert [event.token for event in other] == expected[1]
        assert paused.sequence.n_generated <= 1 + MOST_EVENTS, "nobody read it, yet it went on"
        assert start + [event.token for event in paused] == expected[0]
        assert len(paused.tokens) == paused.stats.generated_tokens == 100


def test_answers_may_be_read_by_turns(model) -> None:
    expected = [tokens_of(model, [i, *PROMPT]) for i in (1, 2, 3)]
    answers = [model.generate([i, *PROMPT], max_tokens=20, **GREEDY) for i in (1, 2, 3)]
    assert [[event.token for event in events] for events in zip(*answers)] == [list(tokens) for tokens in zip(*expected)]


def test_turns_in_a_cache_that_holds_one_only_are_right_too(path) -> None:
    with Model(path, threads=2, context_length=96, max_sequences=2, cache_tokens=96) as model:
        assert model.engine._scheduler.pool.n_free == 3
        expected = [tokens_of(model, [i] * 40, 50) for i in (1, 2)]
        first, second = (model.generate([i] * 40, max_tokens=50, **GREEDY) for i in (1, 2))
        assert [[a.token, b.token] for a, b in zip(first, second)] == [list(pair) for pair in zip(*expected)]


def test_closing_an_answer_that_was_driven_ahead_gives_the_text_made_so_far(path) -> None:
    with Model(path, threads=2, context_length=128, max_sequences=2) as model:
        ahead, other = (model.generate([i, *PROMPT], max_tokens=30, **GREEDY) for i in (1, 2))
        next(ahead)
        list(other)
        rest = ahead.close()
        assert ahead.text.endswith(rest) and len(ahead.tokens) == ahead.stats.generated_tokens == ahead.sequence.n_generated > 1


def test_logits_are_computed_beside_a_paused_answer(model) -> None:
    expected = tokens_of(model, PROMPT)
    answer = model.generate(PROMPT, max_tokens=20, **GREEDY)
    start = [next(answer).token for _ in range(3)]
    text = [7] * 128
    assert model.logits(text).shape == (128, model.engine.n_vocab)
    assert start + [event.token for event in answer] == expected


# ---- interrupted and forked ------------------------------------------------------------------------------------------------------------


def test_an_interrupt_at_any_moment_leaves_a_model_that_works(path) -> None:
    with Model(path, threads=2, context_length=4096) as model:
        expected = tokens_of(model, PROMPT)
        for n in range(60):
            timer = threading.Timer(0.0007 * (n + 1), os.kill, (os.getpid(), signal.SIGINT))
            answer = model.generate(PROMPT, **GREEDY)
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                list(answer)
                timer.join()
                time.sleep(0.5)
            answer.close()
        assert tokens_of(model, PROMPT) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_answers_with_threads_of_its_own(model) -> None:
    expected = tokens_of(model, PROMPT)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = [pool.apply_async(tokens_of_inherited, (id(model),)) for _ in range(4)]
        assert [r.get(60) for r in results] == [expected] * 4
    assert tokens_of(model, PROMPT) == expected


def tokens_of_inherited(address: int) -> list[int]:
    """In a child: the model that it inherited."""
    model = next(o for o in gc.get_objects() if isinstance(o, Model) and id(o) == address)
    return tokens_of(model, PROMPT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_generates_gives_a_child_that_answers(model) -> None:
    expected = tokens_of(model, PROMPT)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            tokens_of(model, [2, *PROMPT], 40)

    worker = threading.Thread(target=keep_busy)
    worker.start()
    try:
        for _ in range(5):
            with multiprocessing.get_context("fork").Pool(1) as pool:
                assert pool.apply_async(tokens_of_inherited, (id(model),)).get(60) == expected
    finally:
        stop.set()
        worker.join()
