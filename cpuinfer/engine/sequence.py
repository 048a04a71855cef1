"""What a user asks for and gets: sampling options, a sequence of tokens in progress, the events it makes."""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any

from .. import arguments
from ..errors import CpuinferError, InvalidRequest

# Allowed range of each number: (lowest, highest), whole numbers where these are.
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (1e-3, 100.0),
    "repeat_last_n": (-1, 1 << 31),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "max_tokens": (-1, 1 << 40),
    "logprobs": (0, 100),
    "seed": (-1, (1 << 64) - 1),
}
MAXIMUM_STOPS = 64
MOST_EVENTS = 16  # that a sequence makes ahead of its reader while others are driven


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when the answer ends; names and defaults are llama.cpp's.

    max_tokens: -1 until the end of the answer or of the context. temperature 0: the likeliest token. top_k 0, top_p 1, min_p 0, typical_p 1, penalties 0 (repeat_penalty 1): off.
    repeat_last_n: tokens that the penalties look at, -1 all. seed None or -1: random. stop: texts that end the answer and are not part of it. logprobs: how many of the likeliest
    tokens to report with each token. Raises InvalidRequest naming the option and its allowed range.
    """

    max_tokens: int = -1
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        if len(self.stop) > MAXIMUM_STOPS or not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidRequest(f"stop must be up to {MAXIMUM_STOPS} texts that are not empty, not {self.stop!r}")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            check: Any = arguments.whole if isinstance(low, int) else arguments.real
            object.__setattr__(self, name, check(name, value, low, high))
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest(f"ignore_eos must be True or False, not {self.ignore_eos!r}")

    @classmethod
    def of(cls, options: dict[str, Any]) -> SamplingParams:
        """From keyword arguments; an unknown name is an InvalidRequest that lists the known ones."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(options) - known):
            raise InvalidRequest(f"unknown sampling option {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return cls(**options)

    def first_state(self) -> int:
        """Start of the random number generator, 64 bits: the seed, or random where there is none."""
        return secrets.randbits(64) if self.seed is None or self.seed < 0 else self.seed


@dataclass(frozen=True)
class TokenEvent:
    """One generated token: its id, the text that became complete with it, and at the end why it ended ("stop", "length", "context", "cancelled", "error").

    token is None where only held-back text follows. logprobs: [(id, natural log of its probability)] where asked for: the chosen token, then the likeliest others; one more
    than asked for where the chosen one is not among the likeliest.
    """

    token: int | None
    text: str
    finish_reason: str | None = None
    logprobs: list[tuple[int, float]] | None = None


@dataclass(eq=False)
class Sequence:
    """A prompt and what was generated after it. The first n_computed tokens have their keys and values in `pages`."""

    id: int
    tokens: list[int]
    sampling: SamplingParams
    text: Any  # TextStream
    n_prompt: int = 0
    n_computed: int = 0
    n_cached: int = 0  # prompt tokens found in the cache
    pages: list[int] = field(default_factory=list)
    n_hashed: int = 0  # pages registered for reuse
    state: int = 0  # of the random number generator
    finish_reason: str | None = None
    error: CpuinferError | None = None  # where finish_reason is "error"
    events: deque[TokenEvent] = field(default_factory=deque)  # made, but not yet taken by its Generation

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)
        self.state = self.sampling.first_state()

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def stalled(self) -> bool:
        """Nobody reads its events: it makes no more until somebody does."""
        return len(self.events) >= MOST_EVENTS
