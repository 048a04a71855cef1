"""Who gets how many tokens this step. There is no prefill phase and no decode phase: only sequences whose n_computed must catch up with their tokens."""

from __future__ import annotations

from collections import deque

from ..kernels.records import PAGE
from .kv_cache import PagePool
from .sequence import Sequence


class Scheduler:
    """Sequences wait in order of arrival and run up to max_sequences at a time, batch_size tokens a step.

    If pages run out, the youngest running sequence gives its own back and waits; what is still in the cache then need not be computed again. One sequence alone always
    has room: the pool holds at least a whole context.
    """

    def __init__(self, pool: PagePool, batch_size: int, max_sequences: int):
        self.pool, self.batch_size, self.max_sequences = pool, batch_size, max_sequences
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def finish(self, sequence: Sequence) -> None:
        """A sequence ended or was cancelled, wherever it is: its pages are free."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.release(sequence.pages)
        sequence.pages = []

    def plan(self) -> list[tuple[Sequence, int]]:
        """(sequence, tokens to compute), at most batch_size tokens in all. First those that need one token, then prompts in order of arrival."""
        while self.waiting and len(self.running) < self.max_sequences:
            if not self._admit(self.waiting[0]):
                break
            self.running.append(self.waiting.popleft())
        budget = self.batch_size
        plan: list[tuple[Sequence, int]] = []
        for sequence in sorted(self.running, key=lambda s: len(s.tokens) - s.n_computed > 1):
            if sequence not in self.running:
                continue  # it gave its pages to an older one
            count = min(budget, len(sequence.tokens) - sequence.n_computed)
            if count > 0 and self._reserve(sequence, count, plan):
                plan.append((sequence, count))
                budget -= count
        return plan

    def _admit(self, sequence: Sequence) -> bool:
        """Take cached pages for a waiting sequence; refuse while the rest of its prompt has no room beside the running ones."""
        if self.running and self.pool.n_free < (len(sequence.tokens) + PAGE - 1) // PAGE:
            return False
        sequence.pages = self.pool.match(sequence.tokens)
        sequence.n_computed = len(sequence.pages) * PAGE
        sequence.n_cached = min(sequence.n_computed, sequence.n_prompt)
        sequence.n_hashed = len(sequence.pages)
        return True

    def _reserve(self, sequence: Sequence, count: int, plan: list[tuple[Sequence, int]]) -> bool:
        needed = (sequence.n_computed + count + PAGE - 1) // PAGE - len(sequence.pages)
        while self.pool.n_free < needed:
            planned = {s for s, _ in plan}
            victims = [s for s in self.running if s is not sequence and s not in planned]
            if not victims:
                return False
            self._preempt(victims[-1])
        sequence.pages += [self.pool.take() for _ in range(needed)]
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.pages)
        sequence.pages, sequence.n_computed, sequence.n_hashed = [], 0, 0
        self.waiting.appendleft(sequence)

    def computed(self, sequence: Sequence, count: int) -> None:
        """The step computed `count` tokens of it; full pages are registered for reuse."""
        sequence.n_computed += count
        while (sequence.n_hashed + 1) * PAGE <= sequence.n_computed:
            n = sequence.n_hashed
            parent = sequence.pages[n - 1] if n else 0
            known = self.pool.register(sequence.pages[n], parent, sequence.tokens[n * PAGE : (n + 1) * PAGE])
            if known != sequence.pages[n]:
                break  # a twin computed the same page: this one stays private, and so does what follows it
            sequence.n_hashed += 1
