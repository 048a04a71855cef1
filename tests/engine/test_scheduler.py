"""Scheduler and page pool in pure Python: whatever arrives, is cancelled or stops being read, every page returns and every sequence sees the keys of its own tokens only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuinfer.engine.kv_cache import PagePool, pages_for
from cpuinfer.engine.scheduler import Scheduler
from cpuinfer.engine.sequence import MOST_EVENTS, SamplingParams, Sequence, TokenEvent
from cpuinfer.errors import ContextFull
from cpuinfer.kernels.records import PAGE

CONTEXT_PAGES = 4


def answer_to(tokens: list[int]) -> int:
    """The next token of a text, a function of all of it."""
    return hash(tuple(tokens)) % 3


class Machine:
    """Runs plans as the engine would. A page remembers which tokens were stored in it, as the KV cache would their keys."""

    def __init__(self, n_pages: int, batch_size: int, max_sequences: int):
        self.pool = PagePool(n_pages)
        self.n_free = self.pool.n_free
        self.scheduler = Scheduler(self.pool, batch_size, max_sequences)
        self.stored: dict[int, list[int]] = {}
        self.limits: dict[Sequence, int] = {}
        self.sequences: list[Sequence] = []

    def add(self, tokens: list[int], n_answer: int) -> Sequence:
        sequence = Sequence(len(self.sequences), list(tokens), SamplingParams(), None)
        self.sequences.append(sequence)
        self.limits[sequence] = min(n_answer, CONTEXT_PAGES * PAGE - len(tokens))
        self.scheduler.add(sequence)
        return sequence

    def step(self, wanted: Sequence | None = None, reading: bool = True) -> list[Sequence]:
        plan = self.scheduler.plan(wanted)
        assert len(plan) <= self.scheduler.max_sequences and sum(count for _, count in plan) <= self.scheduler.batch_size
        for sequence, count in plan:
            assert count > 0 and len(sequence.pages) >= pages_for(sequence.n_computed + count)
            for position in range(sequence.n_computed, sequence.n_computed + count):
                page = self.stored.setdefault(sequence.pages[position // PAGE], [-1] * PAGE)
                page[position % PAGE] = sequence.tokens[position]
        for sequence, count in plan:
            end = sequence.n_computed + count
            seen = [self.stored[sequence.pages[p // PAGE]][p % PAGE] for p in range(end)]
            assert seen == sequence.tokens[:end], "attention would see another sequence's keys"
            self.scheduler.computed(sequence, count)
            if end == len(sequence.tokens):
                sequence.tokens.append(answer_to(sequence.tokens))
                if not reading and sequence is not wanted:
                    sequence.events.append(TokenEvent(sequence.tokens[-1], ""))
                if sequence.n_generated >= self.limits[sequence]:
                    self.end(sequence, "length")
        return [sequence for sequence, _ in plan]

    def end(self, sequence: Sequence, reason: str) -> None:
        if sequence.finish_reason is None:
            sequence.finish_reason = reason
            self.scheduler.finish(sequence)

    def check_answers(self) -> None:
        for sequence in self.sequences:
            if sequence.finish_reason == "length":
                assert sequence.n_generated == self.limits[sequence]
            for n in range(sequence.n_prompt, len(sequence.tokens)):
                assert sequence.tokens[n] == answer_to(sequence.tokens[:n])


prompts = st.tuples(st.integers(1, 3), st.integers(1, CONTEXT_PAGES * PAGE - 1)).map(lambda p: [p[0] % 3] * p[1])  # few kinds: many common beginnings
events = st.one_of(
    st.tuples(st.just("add"), prompts, st.integers(1, 60)),
    st.tuples(st.just("step"), st.integers(1, 12), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.none()),
    st.tuples(st.just("want"), st.integers(0, 30), st.integers(1, 40)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=40), st.integers(0, 8), st.integers(1, 4), st.integers(4, 64))
def test_whatever_happens_every_page_returns_and_every_answer_is_as_if_alone(happening, more_pages, max_sequences, batch_size) -> None:
    machine = Machine(1 + CONTEXT_PAGES + more_pages, batch_size, max_sequences)
    for what, first, second in happening:
        if what == "add":
            machine.add(first, second)
        elif what == "step":
            for _ in range(first):
                machine.step()
        elif machine.sequences:
            sequence = machine.sequences[first % len(machine.sequences)]
            if what == "cancel":
                machine.end(sequence, "cancelled")
            else:  # one is read, all others are not
                for _ in range(second):
                    if sequence.finish_reason is None:
                        sequence.events.clear()
                        assert machine.step(sequence, reading=False), "a sequence is waited for, but nobody has a turn"
    for sequence in machine.sequences:
        sequence.events.clear()  # everybody reads again
    for _ in range(20_000):
        if not machine.scheduler.has_work():
            break
        assert machine.step(), "work is left, but nobody has a turn"
    assert all(s.finish_reason for s in machine.sequences)
    assert machine.pool.n_free == machine.n_free
    machine.check_answers()


def test_the_youngest_yields_and_the_oldest_is_never_driven_out() -> None:
    machine = Machine(1 + CONTEXT_PAGES + 1, 64, 3)
    sequences = [machine.add([i] * (PAGE - 2), 2 * PAGE) for i in range(3)]
    preempted = []
    for _ in range(10_000):
        if not machine.scheduler.has_work():
            break
        before = list(machine.scheduler.running)
        machine.step()
        preempted += [s.id for s in before if s in machine.scheduler.waiting]
        running, waiting = ([s.id for s in group if s.finish_reason is None] for group in (machine.scheduler.running, machine.scheduler.waiting))
        assert not running or not waiting or min(running) < min(waiting), "an older sequence waits while a younger one runs"
    assert preempted and 0 not in preempted, "five pages cannot hold three sequences of three pages"
    assert [s.finish_reason for s in sequences] == ["length"] * 3
    machine.check_answers()


def test_a_sequence_that_nobody_reads_stops_after_a_bound_and_gives_its_pages_to_one_that_is_read() -> None:
    machine = Machine(1 + CONTEXT_PAGES, 64, 1)
    unread = machine.add([1] * 70, 50)
    read = machine.add([2] * 70, 20)
    for _ in range(500):
        if read.finish_reason:
            break
        machine.step(read, reading=False)
    assert read.finish_reason == "length" and len(unread.events) == unread.n_generated <= MOST_EVENTS
    unread.events.clear()
    for _ in range(500):
        if unread.finish_reason:
            break
        machine.step(unread)
    assert unread.finish_reason == "length"
    machine.check_answers()


def test_a_wanted_sequence_that_lacks_a_page_lets_the_older_one_go_on() -> None:
    machine = Machine(1 + CONTEXT_PAGES, 64, 1)
    paused = machine.add([1] * 30, 60)
    machine.step(paused)
    read = machine.add([2] * 30, 60)
    for _ in range(500):
        if read.finish_reason:
            break
        assert machine.step(read, reading=False)
    assert read.finish_reason == "length"


def test_a_wanted_sequence_has_the_first_turn_and_the_other_keeps_its_pages_while_they_suffice() -> None:
    machine = Machine(1 + 2 * CONTEXT_PAGES, 64, 1)
    paused, read = machine.add([1] * 40, 30), machine.add([2] * 40, 5)
    machine.step(paused)
    pages = list(paused.pages)
    for _ in range(5):
        assert machine.step(read, reading=False) == [read]
    assert read.finish_reason == "length" and paused.pages == pages and paused.n_generated == 1


def test_borrowed_pages_come_from_whoever_runs_and_more_than_there_are_is_refused() -> None:
    machine = Machine(1 + CONTEXT_PAGES, 64, 2)
    machine.add([1] * 60, 40), machine.add([2] * 30, 40)
    machine.step(), machine.step()
    pages = machine.scheduler.borrow(CONTEXT_PAGES * PAGE)
    assert len(pages) == CONTEXT_PAGES and machine.pool.n_free == 0
    machine.pool.release(pages)
    with pytest.raises(ContextFull, match="5 cache pages"):
        machine.scheduler.borrow(CONTEXT_PAGES * PAGE + 1)
    for _ in range(300):
        machine.step()
    assert not machine.scheduler.has_work() and machine.pool.n_free == machine.n_free
    machine.check_answers()
