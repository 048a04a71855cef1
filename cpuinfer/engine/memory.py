"""How much memory this process may still use, and how much of it the KV cache takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest, MachineError
from ..kernels.cgroups import memory_left
from ..kernels.records import PAGE
from .kv_cache import pages_for, token_bytes

CACHE_SHARE = 0.5  # of the memory that is free, at most, for the KV cache where its size is not given


def available_memory() -> int:
    """Bytes: what the system calls available (free and reclaimable), or the rest of the control group's limit if that is less."""
    left = memory_left()
    return _system() if left is None else min(_system(), left)


def _system() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 4 << 30


def cache_size(program: Any, types: tuple[str, str], context: int, max_sequences: int, cache_tokens: int, notes: list[str]) -> tuple[int, int]:
    """(context length, pages of the cache) for what was asked, 0 where it was left open; `notes` gains a line where less is given than the model or max_sequences ask for.

    Raises MachineError where what was asked does not fit the free memory, InvalidRequest where cache_tokens cannot hold one context.
    """
    trained, per_token = program.hyperparameters.context_length, max(1, token_bytes(program.kv_layers, *types))
    free = available_memory() // per_token  # in tokens
    fits = max(int(free * CACHE_SHARE) // PAGE * PAGE, PAGE)
    if cache_tokens and context > cache_tokens:
        raise InvalidRequest(f"cache_tokens must be at least the context of {context} tokens, not {cache_tokens}")
    if max(context, cache_tokens) > free:
        what = f"a context of {context}" if context >= cache_tokens else f"a cache of {cache_tokens}"
        gib = max(context, cache_tokens) * per_token / 2**30
        raise MachineError(f"{what} tokens needs {gib:.1f} GiB for its cache, more than is free; use a smaller -c or --cache-type-k q8_0")
    if not context:
        context = min(trained, cache_tokens or fits)
        if context < trained:
            why = "that is what cache_tokens has room for" if cache_tokens else "its cache would not fit the free memory"
            notes.append(f"context limited to {context} of the model's {trained} tokens: {why}")
    elif context > trained:
        notes.append(f"context {context} is longer than the {trained} tokens that the model was trained for")
    pages = pages_for(context)
    if cache_tokens:
        return context, 1 + min(pages * max_sequences, pages_for(cache_tokens))
    wanted, most = pages * max_sequences, max(pages, fits // PAGE)
    if wanted > most:
        notes.append(f"the cache has room for {most * PAGE} tokens, less than {max_sequences} contexts of {context}: sequences take turns where it is full")
    return context, 1 + min(wanted, most)
