"""Generation: the answer to one prompt as an iterator, and what was measured on the way."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .sequence import Sequence, TokenEvent

if TYPE_CHECKING:
    from .engine import Engine


@dataclass
class Stats:
    """Counts of tokens and times in seconds of one generation. prompt_s runs until the first token is there, or until the prompt was given up; generate_s from then on.

    cached_tokens: of the prompt, found in the cache. read_tokens: of the prompt, computed: all the others, once the first token is there.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_tokens: int = 0
    generated_tokens: int = 0
    prompt_s: float = 0.0
    generate_s: float = 0.0
    time_to_first_token_s: float = 0.0
    finish_reason: str | None = None

    @property
    def prompt_tokens_per_second(self) -> float:
        return self.read_tokens / self.prompt_s if self.prompt_s else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the first token counts to the prompt."""
        return (self.generated_tokens - 1) / self.generate_s if self.generate_s and self.generated_tokens > 1 else 0.0


class Generation:
    """Iterator of TokenEvents of one sequence. Closing it (or leaving a with block, or dropping it) cancels the rest. `text`, `tokens` and `stats` grow with it.

    Whoever iterates drives the engine as far as this sequence needs; others progress along, up to sequence.MOST_EVENTS tokens ahead of their readers.
    on_prompt(computed, total): called after each part of a prompt that takes several steps. Raises the sequence's error where it has one, MachineError once the engine is closed.
    """

    def __init__(self, engine: Engine, sequence: Sequence, on_prompt: Callable[[int, int], None] | None = None):
        self._engine, self.sequence, self.on_prompt = engine, sequence, on_prompt
        self.text = ""
        self.tokens: list[int] = []
        self.stats = Stats(prompt_tokens=sequence.n_prompt)
        self._started = time.perf_counter()
        self._first: float | None = None
        weakref.finalize(self, engine.abandon, sequence).atexit = False

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> TokenEvent:
        sequence = self.sequence
        while not sequence.events:
            if sequence.finish_reason is not None:
                raise StopIteration
            self._engine.advance(sequence)
            if self.on_prompt and self._first is None:
                self.on_prompt(sequence.n_computed, sequence.n_prompt)
        event = self._count(sequence.events.popleft())
        if sequence.error and event.finish_reason == "error":
            raise sequence.error
        return event

    def _count(self, event: TokenEvent) -> TokenEvent:
        now, stats = time.perf_counter(), self.stats
        if self._first is None:
            self._first = now
            self._prompt_ended(now)
            stats.time_to_first_token_s = stats.prompt_s
        stats.generate_s = now - self._first
        stats.finish_reason = event.finish_reason
        if event.token is not None:
            self.tokens.append(event.token)
        stats.generated_tokens = len(self.tokens)
        self.text += event.text
        return event

    def _prompt_ended(self, now: float) -> None:
        sequence, stats = self.sequence, self.stats
        stats.cached_tokens, stats.prompt_s = sequence.n_cached, now - self._started
        stats.read_tokens = max(0, min(sequence.n_computed, sequence.n_prompt) - sequence.n_cached)

    def close(self) -> str:
        """Stop now. Gives text that was held back, which belongs to the answer."""
        if self.sequence.finish_reason is not None or not self._engine.cancel(self.sequence):
            return ""
        if self._first is None:
            self._prompt_ended(time.perf_counter())
        # What others drove it to make ahead of its reader counts as read: held-back text follows it.
        ahead = "".join(self._count(self.sequence.events.popleft()).text for _ in range(len(self.sequence.events)))
        held = self.sequence.text.flush(cut=True)
        self.text += held
        self.stats.finish_reason = "cancelled"
        return ahead + held

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
