"""Engine: one model, its KV cache, and the loop that serves all sequences. Chat, run, benchmarks and a server see only this."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..arguments import limited, one_of, token_ids
from ..errors import ContextFull, InvalidRequest, MachineError, ModelFailure
from ..formats.gguf import GGUFFile
from ..kernels.records import CACHE_TYPES
from .batch import Batch
from .generation import Generation
from .kv_cache import PagedKVCache, PagePool, pages_for
from .memory import cache_size
from .sampler import KEY as SAMPLE_KEY
from .sampler import Sampler
from .scheduler import Scheduler
from .sequence import SamplingParams, Sequence, TokenEvent
from .text_stream import TextStream

LOGIT_ROWS = 64  # tokens a step when the logits of all are wanted


class Engine:
    """See from_gguf. Calls from several threads take turns, step by step. After close() every use raises MachineError."""

    def __init__(self, program: Any, cache: PagedKVCache, team: Any, sampler: Sampler, tokenizer: Any, context_length: int, batch_size: int, max_sequences: int):
        self.program, self.cache, self.team, self.tokenizer = program, cache, team, tokenizer
        self.context_length, self.batch_size, self.max_sequences = context_length, batch_size, max_sequences
        self.n_vocab = program.logits.columns  # rows of the embedding; those from tokenizer.n_vocab on have no token: they are never sampled and no prompt holds them
        self.notes: list[str] = []
        self.timings: dict[str, float] = {}
        self._sampler = sampler
        self._scheduler = Scheduler(PagePool(cache.n_pages), batch_size, max_sequences)
        self._batch = Batch(batch_size, max_sequences, pages_for(context_length), program.max_logit_rows)
        self._ids = itertools.count()
        self._lock = threading.RLock()
        self._abandoned: deque[Sequence] = deque()
        self._in_use, self._closed = False, False
        _engines.add(self)

    @classmethod
    def from_gguf(
        cls,
        gguf: GGUFFile,
        tokenizer: Any,
        threads: int | None = None,
        context_length: int | None = None,
        cache_type: str | tuple[str, str] = "f16",
        batch_size: int = 512,
        max_sequences: int = 1,
        cache_tokens: int | None = None,
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> Engine:
        """Build a model's program, compile what the kernel cache lacks, and allocate.

        context_length: tokens of a sequence; None or 0: the model's own, less if its cache would take more than half of the free memory (a note says so). cache_type: of keys
        and values, or of each: f16, f32, q8_0. batch_size: tokens computed in one step. max_sequences: how many run at once. cache_tokens: room in the cache for all
        sequences together, at least one context; None: a context for each, less if that would take more than half of the free memory. on_progress(done, total, kernel) while
        compiling.
        """
        from .. import architectures
        from ..kernels import jit
        from ..kernels.team import KEYS as TEAM_KEYS
        from ..kernels.team import Team

        started = time.perf_counter()
        types = (cache_type, cache_type) if isinstance(cache_type, str) else (cache_type[0], cache_type[1])
        for name in types:
            one_of("cache_type", name, CACHE_TYPES)
        threads = limited("threads", threads or 0)
        context_length = limited("context_length", context_length or 0)
        batch_size = limited("batch_size", batch_size)
        max_sequences = limited("max_sequences", max_sequences)
        cache_tokens = limited("cache_tokens", cache_tokens or 0)
        notes: list[str] = []
        program = architectures.build(gguf, context_length, notes)
        context, n_pages = cache_size(program, types, context_length, max_sequences, cache_tokens, notes)
        # Room for a sampled logit row of every sequence, and for whole prompts of `logits`.
        batch_size = max(max_sequences, min(batch_size, context))
        cache = PagedKVCache(program.kv_layers, n_pages, *types)
        addresses = jit.build([*program.kernels_needed(types), SAMPLE_KEY, *TEAM_KEYS], on_progress)
        compiled = time.perf_counter()
        team = Team(threads or None)
        try:
            program.assemble(addresses, cache, batch_size, max(max_sequences, min(LOGIT_ROWS, batch_size)), team.size)
        except MemoryError as error:
            team.close()
            raise MachineError("not enough memory for the model's workspace; use a smaller batch size (-b) or context (-c)") from error
        engine = cls(program, cache, team, Sampler(addresses[SAMPLE_KEY], tokenizer.n_vocab, context), tokenizer, context, batch_size, max_sequences)
        engine.notes = notes
        engine.timings = {"compile_s": compiled - started, "assemble_s": time.perf_counter() - compiled}
        return engine

    # ---- one caller at a time ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock of an open engine, with sequences that were dropped meanwhile out of the way."""
        with self._lock:
            if self._closed:
                raise MachineError("the model is closed: load it again to go on")
            self._reap()
            outer, self._in_use = self._in_use, True
            try:
                yield
            finally:
                self._in_use = outer

    def _reap(self) -> None:
        while self._abandoned:
            self._end(self._abandoned.popleft(), "cancelled")

    def abandon(self, sequence: Sequence) -> None:
        """Nobody will read this sequence. Callable from anywhere, the middle of a step included (garbage is collected there): takes effect at once, or with the next use."""
        self._abandoned.append(sequence)
        if self._lock.acquire(blocking=False):
            try:
                if not self._in_use:
                    self._reap()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the threads; whoever generates gets an error at the next token. The engine cannot be used afterwards."""
        with self._lock:
            self._closed = True
            self.team.close()

    # ---- sequences -----------------------------------------------------------------------------------------------------------------

    def add(self, tokens: Iterable[int], sampling: SamplingParams | None = None) -> Sequence:
        """Queue a prompt. Raises ContextFull if it leaves no room for a token, InvalidRequest for ids that the model does not have."""
        tokens = token_ids(tokens, self.tokenizer.n_vocab)
        if not tokens:
            raise InvalidRequest("the prompt is empty: give at least one token")
        if len(tokens) >= self.context_length:
            raise ContextFull(f"the prompt has {len(tokens)} tokens, the context {self.context_length}; shorten it or use a larger context (-c {len(tokens) + 256})")
        sampling = sampling or SamplingParams()
        from ..tokenizers.detokenizer import Detokenizer

        with self._turn():
            sequence = Sequence(next(self._ids), tokens, sampling, TextStream(Detokenizer(self.tokenizer), sampling.stop))
            self._scheduler.add(sequence)
        return sequence

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def cancel(self, sequence: Sequence) -> bool:
        """End a sequence now and free its pages; its next step never happens. Gives whether it was still running."""
        with self._lock:
            return self._end(sequence, "cancelled")

    def _end(self, sequence: Sequence, reason: str) -> bool:
        if sequence.finish_reason is not None:
            return False
        sequence.finish_reason = reason
        self._scheduler.finish(sequence)
        return True

    # ---- the step ------------------------------------------------------------------------------------------------------------------

    def step(self, wanted: Sequence | None = None) -> list[tuple[Sequence, TokenEvent]]:
        """Compute the next tokens of all sequences that have a turn, first of the wanted one; the events of those that made one."""
        with self._turn():
            plan = self._scheduler.plan(wanted)
            if not plan:
                return []
            rows = self._batch.fill(plan)
            self.team.run(self.program, self._batch.record)
            events = []
            for (sequence, count), row in zip(plan, rows):
                self._scheduler.computed(sequence, count)
                if row >= 0:
                    events.append((sequence, self._next_token(sequence, self.program.logits_array[row])))
            return events

    def advance(self, sequence: Sequence) -> None:
        """A step for a sequence whose event somebody waits for, unless another thread's step made one. Events go to their sequences."""
        with self._turn():
            if not sequence.events and sequence.finish_reason is None:
                for other, event in self.step(sequence):
                    other.events.append(event)

    def _next_token(self, sequence: Sequence, logits: np.ndarray) -> TokenEvent:
        sampling = sequence.sampling
        if sampling.max_tokens == 0:
            self._end(sequence, "length")
            return TokenEvent(None, "", "length")
        token, logprobs = self._sampler.sample(logits, sequence)
        if token < 0:
            sequence.error = ModelFailure(f"the model computed no finite number for the token after {len(sequence.tokens)} others; the file is damaged, or its weights are broken")
            self._end(sequence, "error")
            return TokenEvent(None, "", "error")
        sequence.tokens.append(token)
        reason = None
        if token in self.tokenizer.end_ids and not sampling.ignore_eos:
            reason, text = "stop", ""
        else:
            text = sequence.text.push(token)
            if sequence.text.stopped:
                reason = "stop"
            elif sequence.n_generated == sampling.max_tokens:
                reason = "length"
            elif len(sequence.tokens) >= self.context_length:
                reason = "context"
        if reason:
            text += sequence.text.flush(cut=reason != "stop")
            self._end(sequence, reason)
        return TokenEvent(token, text, reason, logprobs)

    def generate(self, tokens: Iterable[int], sampling: SamplingParams | None = None) -> Generation:
        """Iterate over the answer to a prompt. Other sequences go on beside it."""
        return Generation(self, self.add(tokens, sampling))

    # ---- whole logits --------------------------------------------------------------------------------------------------------------

    def logits(self, tokens: Iterable[int], at_once: int | None = None) -> np.ndarray:
        """float32[len(tokens), n_vocab]: the logits after every token, computed anew, `at_once` tokens in a step (1: as in decoding; default: as many as fit).

        Raises ContextFull if the tokens do not fit, InvalidRequest for ids that the model does not have.
        """
        parts: list[np.ndarray] = []
        self.visit_logits(tokens, lambda start, part: parts.append(part.copy()), at_once)
        return np.concatenate(parts) if parts else np.empty((0, self.n_vocab), np.float32)

    def visit_logits(self, tokens: Iterable[int], visit: Callable[[int, np.ndarray], object], at_once: int | None = None) -> None:
        """Call visit(first position, float32[n, n_vocab]) with successive parts of `logits`; each array is overwritten by the next."""
        tokens = token_ids(tokens, self.n_vocab)
        if len(tokens) > self.context_length:
            raise ContextFull(f"{len(tokens)} tokens do not fit the context of {self.context_length}; use a larger context (-c {len(tokens)})")
        most = min(at_once or self.batch_size, self.program.max_logit_rows, self.batch_size)
        with self.borrowed(tokens) as sequence:
            while (start := sequence.n_computed) < len(tokens):
                count = min(most, len(tokens) - start)
                self._batch.fill([(sequence, count)], every_logit=True)
                self.team.run(self.program, self._batch.record)
                sequence.n_computed += count
                visit(start, self.program.logits_array[:count, : self.n_vocab])

    @contextlib.contextmanager
    def borrowed(self, tokens: list[int]) -> Iterator[Sequence]:
        """A sequence outside the schedule with pages of its own, while the engine is the caller's alone."""
        with self._turn():
            sequence = Sequence(-1, tokens, SamplingParams(), None)
            sequence.pages = self._scheduler.borrow(len(tokens))
            try:
                yield sequence
            finally:
                self._scheduler.pool.release(sequence.pages)


# ---- fork --------------------------------------------------------------------------------------------------------------------------

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_held: list[Any] = []


def _before_fork() -> None:
    """A process forks between two steps, never within one, so that the child's engines are whole (their teams start threads of their own there)."""
    _held[:] = [engine._lock for engine in _engines]
    for lock in _held:
        lock.acquire()


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
