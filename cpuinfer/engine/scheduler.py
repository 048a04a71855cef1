"""Who gets how many tokens this step. There is no prefill phase and no decode phase: only sequences whose n_computed must catch up with their tokens."""

from __future__ import annotations

from bisect import insort
from collections.abc import Container

from ..errors import ContextFull
from ..kernels.records import PAGE
from .kv_cache import PagePool, pages_for
from .sequence import Sequence


class Scheduler:
    """Sequences wait in order of arrival until the pool has room for their prompts; up to max_sequences of those that have pages run in a step, batch_size tokens in all.

    If pages run out, the youngest sequence gives its own back and waits, one that nobody reads (`stalled`) before all others; what is still in the cache then need not be
    computed again. The oldest one always has room: the pool holds at least a whole context. A stalled sequence has no turn, but keeps its pages while nobody needs them.
    The sequence that a caller waits for (`wanted`) has the first turn, and may enter before older ones that do not fit; it takes no pages from older ones.
    """

    def __init__(self, pool: PagePool, batch_size: int, max_sequences: int):
        self.pool, self.batch_size, self.max_sequences = pool, batch_size, max_sequences
        # Both by age, which is the order of ids.
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_age)

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def finish(self, sequence: Sequence) -> None:
        """A sequence ended or was cancelled, wherever it is: its pages are free."""
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)
        self.pool.release(sequence.pages)
        sequence.pages = []

    def plan(self, wanted: Sequence | None = None) -> list[tuple[Sequence, int]]:
        """(sequence, tokens to compute), at most batch_size tokens in all: those that need one token come before prompts, then age decides.

        Never empty where a sequence can go on: not stalled, or wanted.
        """
        self._admit(wanted)
        ready = sorted((s for s in self.running if not s.stalled), key=lambda s: (s is not wanted, s.id))
        turn, others = ready[: self.max_sequences], ready[self.max_sequences :]
        budget, counts = self.batch_size, {}
        for sequence in sorted(turn, key=lambda s: len(s.tokens) - s.n_computed > 1):
            counts[sequence] = min(budget, len(sequence.tokens) - sequence.n_computed)
            budget -= counts[sequence]
        plan: dict[Sequence, int] = {}
        for sequence in turn:
            self._take(sequence, counts[sequence], plan)
        # A wanted sequence may find no page that it could take while an older one, which has all, was left without a turn.
        for sequence in others if not plan else ():
            self._take(sequence, min(self.batch_size, len(sequence.tokens) - sequence.n_computed), plan)
            if plan:
                break
        return list(plan.items())

    def _admit(self, wanted: Sequence | None) -> None:
        """Move waiting sequences that fit to the running ones, the wanted one first; the others stay in order."""
        if wanted is not None and wanted in self.waiting:
            self._enter(wanted)
        for sequence in [s for s in self.waiting if not s.stalled]:
            if sum(not s.stalled for s in self.running) >= self.max_sequences or not self._enter(sequence):
                break

    def _enter(self, sequence: Sequence) -> bool:
        """Take cached pages for a waiting sequence; refuse where the rest of its tokens has no room, with a page to grow for each that runs."""
        pages = self.pool.match(sequence.tokens)
        others = [s for s in self.running if not s.stalled]
        if not self._make_room(sequence, pages_for(len(sequence.tokens)) - len(pages) + len(others)):
            self.pool.release(pages)
            return False
        sequence.pages = pages
        sequence.n_computed = len(pages) * PAGE
        sequence.n_cached = min(sequence.n_computed, sequence.n_prompt)
        sequence.n_hashed = len(pages)
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_age)
        return True

    def _take(self, sequence: Sequence, count: int, plan: dict[Sequence, int]) -> None:
        """Put up to `count` tokens of a sequence into the plan, as many as have room."""
        if sequence not in self.running:
            return  # it gave its pages to an older one
        needed = pages_for(sequence.n_computed + count) - len(sequence.pages)
        if not self._make_room(sequence, needed, plan):
            needed = self.pool.n_free
            count = min(count, (len(sequence.pages) + needed) * PAGE - sequence.n_computed)
        if count > 0:
            sequence.pages += [self.pool.take() for _ in range(needed)]
            plan[sequence] = count

    def _make_room(self, sequence: Sequence | None, needed: int, served: Container[Sequence] = ()) -> bool:
        """Have `needed` pages free: sequences that must yield to this one (all, where it is None) and are not served yet give theirs back.

        Stalled and young ones come first; none yields if all together are too little.
        """
        if self.pool.n_free >= needed:
            return True
        victims = [s for s in self.running if s is not sequence and s not in served and (sequence is None or s.stalled or s.id > sequence.id)]
        if self.pool.n_free + self.pool.freed_by([s.pages for s in victims]) < needed:
            return False
        victims.sort(key=lambda s: (s.stalled, s.id))
        while self.pool.n_free < needed:
            self._preempt(victims.pop())
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.pages)
        sequence.pages, sequence.n_computed, sequence.n_hashed = [], 0, 0
        self.add(sequence)

    def borrow(self, n_tokens: int) -> list[int]:
        """Pages for so many tokens outside any sequence, to be released by the caller; whoever runs yields. Raises ContextFull if the whole pool has fewer."""
        needed = pages_for(n_tokens)
        if not self._make_room(None, needed):
            raise ContextFull(f"{n_tokens} tokens need {needed} cache pages, more than the {self.pool.n_free} that there are; use a larger context (-c)")
        return [self.pool.take() for _ in range(needed)]

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


def _age(sequence: Sequence) -> int:
    return sequence.id
