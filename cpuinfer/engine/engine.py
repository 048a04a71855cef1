"""Engine: one model, its KV cache, and the loop that serves all sequences. Chat, run, benchmarks and a server see only this."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ContextFull, InvalidRequest, MachineError
from ..formats.gguf import GGUFFile
from ..kernels.records import CACHE_TYPES, PAGE
from .batch import Batch
from .kv_cache import PagedKVCache, PagePool, token_bytes
from .memory import available_memory
from .sampler import KEY as SAMPLE_KEY
from .sampler import Sampler
from .scheduler import Scheduler
from .sequence import SamplingParams, Sequence, TokenEvent
from .text_stream import TextStream

LOGIT_ROWS = 64  # tokens a step when the logits of all are wanted
CACHE_SHARE = 0.5  # of the memory that is free, at most, for the KV cache when the context length is not given


class Engine:
    """See from_gguf. Not thread-safe: one caller at a time."""

    def __init__(self, program: Any, cache: PagedKVCache, team: Any, sampler: Sampler, tokenizer: Any, context_length: int, batch_size: int, max_sequences: int):
        self.program, self.cache, self.team, self.tokenizer = program, cache, team, tokenizer
        self.context_length, self.batch_size, self.max_sequences = context_length, batch_size, max_sequences
        self.n_vocab = program.logits.columns
        self.notes: list[str] = []
        self.timings: dict[str, float] = {}
        self._sampler = sampler
        self._scheduler = Scheduler(PagePool(cache.n_pages), batch_size, max_sequences)
        pages = (context_length + PAGE - 1) // PAGE
        self._batch = Batch(batch_size, max_sequences, pages, program.max_logit_rows)
        self._ids = itertools.count()

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
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> Engine:
        """Build a model's program, compile what the kernel cache lacks, and allocate.

        context_length: tokens of a sequence; None or 0: the model's own, less if its cache would take more than half of the free memory (a note says so). cache_type: of keys
        and values, or of each: f16, f32, q8_0. batch_size: tokens computed in one step. max_sequences: how many run at once. on_progress(done, total, kernel) while compiling.
        """
        from .. import architectures
        from ..kernels import jit
        from ..kernels.team import KEYS as TEAM_KEYS
        from ..kernels.team import Team

        started = time.perf_counter()
        types = (cache_type, cache_type) if isinstance(cache_type, str) else (cache_type[0], cache_type[1])
        for name in types:
            if name not in CACHE_TYPES:
                raise InvalidRequest(f"cache type {name!r} is not supported; choose one of: {', '.join(CACHE_TYPES)}")
        for name, value in (("threads", threads), ("context_length", context_length)):
            if value is not None and (value < 0 or value > 1 << 24):
                raise InvalidRequest(f"{name} must be from 0 (automatic) to {1 << 24}, not {value}")
        if not 1 <= batch_size <= 1 << 16 or not 1 <= max_sequences <= 4096:
            raise InvalidRequest(f"batch size must be from 1 to 65536 and sequences from 1 to 4096, not {batch_size} and {max_sequences}")
        notes: list[str] = []
        program = architectures.build(gguf, context_length)
        context = _context_length(program, context_length, types, notes)
        # Room for a sampled logit row of every sequence, and for whole prompts of `logits`.
        batch_size = max(max_sequences, min(batch_size, context))
        pages = (context + PAGE - 1) // PAGE
        cache = PagedKVCache(program.kv_layers, 1 + pages * max_sequences, *types)
        addresses = jit.build([*program.kernels_needed(types), SAMPLE_KEY, *TEAM_KEYS], on_progress)
        compiled = time.perf_counter()
        team = Team(threads or None)
        try:
            program.assemble(addresses, cache, batch_size, max(max_sequences, min(LOGIT_ROWS, batch_size)), team.size)
        except MemoryError as error:
            team.close()
            raise MachineError("not enough memory for the model's workspace; use a smaller batch size (-b) or context (-c)") from error
        engine = cls(program, cache, team, Sampler(addresses[SAMPLE_KEY], program.logits.columns, context), tokenizer, context, batch_size, max_sequences)
        engine.notes = notes
        engine.timings = {"compile_s": compiled - started, "assemble_s": time.perf_counter() - compiled}
        return engine

    # ---- sequences -----------------------------------------------------------------------------------------------------------------

    def add(self, tokens: list[int], sampling: SamplingParams | None = None) -> Sequence:
        """Queue a prompt. Raises ContextFull if it leaves no room for a token, InvalidRequest for ids that the model does not have."""
        tokens = [int(t) for t in tokens]
        if not tokens:
            raise InvalidRequest("the prompt is empty: give at least one token")
        if len(tokens) >= self.context_length:
            raise ContextFull(f"the prompt has {len(tokens)} tokens, the context {self.context_length}; shorten it or use a larger context (-c {len(tokens) + 256})")
        bad = next((t for t in tokens if not 0 <= t < self.n_vocab), None)
        if bad is not None:
            raise InvalidRequest(f"token id {bad} is outside the vocabulary of {self.n_vocab}")
        sampling = sampling or SamplingParams()
        from ..tokenizers.detokenizer import Detokenizer

        sequence = Sequence(next(self._ids), tokens, sampling, TextStream(Detokenizer(self.tokenizer), sampling.stop))
        self._scheduler.add(sequence)
        return sequence

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now and free its pages; its next step never happens."""
        if sequence.finish_reason is None:
            self._finish(sequence, "cancelled")

    def _finish(self, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        self._scheduler.finish(sequence)

    # ---- the step ------------------------------------------------------------------------------------------------------------------

    def step(self) -> list[tuple[Sequence, TokenEvent]]:
        """Compute the next tokens of all sequences that have a turn; the events of those that made one."""
        plan = self._scheduler.plan()
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

    def _next_token(self, sequence: Sequence, logits: np.ndarray) -> TokenEvent:
        sampling = sequence.sampling
        if sampling.max_tokens == 0:
            self._finish(sequence, "length")
            return TokenEvent(None, "", "length")
        token, logprobs = self._sampler.sample(logits, sequence)
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
            text += sequence.text.flush()
            self._finish(sequence, reason)
        return TokenEvent(token, text, reason, logprobs)

    def generate(self, tokens: list[int], sampling: SamplingParams | None = None) -> Generation:
        """Iterate over the answer to a prompt. Other sequences go on beside it."""
        return Generation(self, self.add(tokens, sampling))

    # ---- whole logits --------------------------------------------------------------------------------------------------------------

    def logits(self, tokens: list[int], at_once: int | None = None) -> np.ndarray:
        """float32[len(tokens), n_vocab]: the logits after every token, computed anew, `at_once` tokens in a step (1: as in decoding; default: as many as fit).

        Raises ContextFull if the tokens do not fit.
        """
        if len(tokens) > self.context_length:
            raise ContextFull(f"{len(tokens)} tokens do not fit the context of {self.context_length}; use a larger context (-c {len(tokens)})")
        result = np.empty((len(tokens), self.n_vocab), np.float32)
        for start, part in self.logit_chunks(tokens, at_once):
            result[start : start + len(part)] = part
        return result

    def logit_chunks(self, tokens: list[int], at_once: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """(first position, float32[n, n_vocab]) of successive parts; each array is overwritten by the next."""
        sequence = Sequence(-1, [int(t) for t in tokens], SamplingParams(), None)
        pool = self._scheduler.pool
        needed = (len(tokens) + PAGE - 1) // PAGE
        if pool.n_free < needed:
            raise ContextFull(f"{needed} cache pages are needed, {pool.n_free} are free; wait until running sequences end")
        sequence.pages = [pool.take() for _ in range(needed)]
        try:
            while sequence.n_computed < len(tokens):
                start = sequence.n_computed
                count = min(at_once or self.batch_size, self.program.max_logit_rows, self.batch_size, len(tokens) - start)
                self._batch.fill([(sequence, count)], every_logit=True)
                self.team.run(self.program, self._batch.record)
                sequence.n_computed += count
                yield start, self.program.logits_array[:count, : self.n_vocab]
        finally:
            pool.release(sequence.pages)

    def close(self) -> None:
        """End the threads. The engine cannot be used afterwards."""
        self.team.close()


def _context_length(program: Any, asked: int | None, types: tuple[str, str], notes: list[str]) -> int:
    trained = program.hyperparameters.context_length
    per_token = token_bytes(program.kv_layers, *types)
    if asked:
        if asked > trained:
            notes.append(f"context {asked} is longer than the {trained} tokens that the model was trained for")
        if asked * per_token > available_memory():
            gib = asked * per_token / 2**30
            raise MachineError(f"a context of {asked} tokens needs {gib:.1f} GiB for its cache, more than is free; use a smaller -c or --cache-type-k q8_0")
        return asked
    fits = int(available_memory() * CACHE_SHARE) // per_token // PAGE * PAGE
    if fits < trained:
        fits = max(fits, PAGE)
        notes.append(f"context limited to {fits} of the model's {trained} tokens: its cache would not fit the free memory")
        return fits
    return trained


@dataclass
class Stats:
    """Counts of tokens and times in seconds of one generation. prompt_s runs until the first token is there, generate_s from then on."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prompt_s: float = 0.0
    generate_s: float = 0.0
    time_to_first_token_s: float = 0.0
    finish_reason: str | None = None

    @property
    def prompt_tokens_per_second(self) -> float:
        return (self.prompt_tokens - self.cached_tokens) / self.prompt_s if self.prompt_s else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the first token counts to the prompt."""
        return (self.generated_tokens - 1) / self.generate_s if self.generate_s and self.generated_tokens > 1 else 0.0


class Generation:
    """Iterator of TokenEvents of one sequence. Closing it (or leaving a with block) cancels the rest. `text`, `tokens` and `stats` grow with it.

    on_prompt(computed, total): called after each part of a prompt that takes several steps.
    """

    def __init__(self, engine: Engine, sequence: Sequence, on_prompt: Callable[[int, int], None] | None = None):
        self._engine, self.sequence, self.on_prompt = engine, sequence, on_prompt
        self.text = ""
        self.tokens: list[int] = []
        self.stats = Stats(prompt_tokens=sequence.n_prompt)
        self._started = time.perf_counter()
        self._first: float | None = None

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> TokenEvent:
        sequence = self.sequence
        while not sequence.events:
            if sequence.finish_reason is not None or not self._engine.has_work():
                raise StopIteration
            # Whoever iterates drives all sequences; events of the others wait for their own iterators.
            for other, event in self._engine.step():
                other.events.append(event)
            if self.on_prompt and self._first is None:
                self.on_prompt(sequence.n_computed, sequence.n_prompt)
        return self._count(sequence.events.popleft())

    def _count(self, event: TokenEvent) -> TokenEvent:
        now, stats = time.perf_counter(), self.stats
        if self._first is None:
            self._first = now
            stats.cached_tokens = self.sequence.n_cached
            stats.prompt_s = stats.time_to_first_token_s = now - self._started
        stats.generate_s = now - self._first
        stats.generated_tokens = self.sequence.n_generated
        stats.finish_reason = event.finish_reason
        if event.token is not None:
            self.tokens.append(event.token)
        self.text += event.text
        return event

    def close(self) -> str:
        """Stop now. Gives text that was held back, which belongs to the answer."""
        rest = ""
        if self.sequence.finish_reason is None:
            self._engine.cancel(self.sequence)
            rest = self.sequence.text.flush()
            self.text += rest
            self.stats.finish_reason = "cancelled"
        return rest

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.sequence.finish_reason is None:
            self._engine.cancel(self.sequence)
