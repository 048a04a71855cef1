"""The paged KV cache: arrays of pages, and the pool that says which page is whose.

A page holds PAGE tokens of one sequence. A full page is registered under a hash of all tokens up to its end; a later prompt with the same beginning takes registered pages
instead of computing them again (automatic prefix caching, as vLLM calls it). Pages that nobody uses keep their content until they are needed, oldest first.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable

import numpy as np

from ..kernels.records import PAGE, cache_row_bytes
from ..program.ops import KVLayer


class PagedKVCache:
    """key_arrays, value_arrays: per layer u1[n_pages, n_kv_heads, PAGE, row_bytes]. The system gives memory when a page is first written."""

    def __init__(self, kv_layers: list[KVLayer], n_pages: int, key_type: str, value_type: str):
        self.key_type, self.value_type, self.n_pages = key_type, value_type, n_pages
        self.key_arrays = [np.zeros((n_pages, k.n_kv_heads, PAGE, cache_row_bytes(key_type, k.key_dim)), np.uint8) for k in kv_layers]
        self.value_arrays = [np.zeros((n_pages, k.n_kv_heads, PAGE, cache_row_bytes(value_type, k.value_dim)), np.uint8) for k in kv_layers]


def pages_for(n_tokens: int) -> int:
    return (n_tokens + PAGE - 1) // PAGE


def token_bytes(kv_layers: list[KVLayer], key_type: str, value_type: str) -> int:
    """Bytes that one token takes in the cache."""
    return sum(k.n_kv_heads * (cache_row_bytes(key_type, k.key_dim) + cache_row_bytes(value_type, k.value_dim)) for k in kv_layers)


class PagePool:
    """Ids 1..n_pages-1 (0 is never given out), reference counts, and the registry of full pages by hash.

    Python's hash of (parent, tokens) alone could collide, so a registered page remembers what it stands for and a look-up compares it.
    """

    def __init__(self, n_pages: int):
        self._never_used = list(range(n_pages - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # unused pages with content, oldest first
        self._references = [0] * n_pages
        self._by_content: dict[tuple[int, tuple[int, ...]], int] = {}  # (page before, its tokens) -> page
        self._content_of: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._children: dict[int, set[int]] = {}

    @property
    def n_free(self) -> int:
        return len(self._never_used) + len(self._idle)

    def freed_by(self, groups: Iterable[list[int]]) -> int:
        """How many pages would become free if all these groups were released."""
        return sum(count == self._references[page] for page, count in Counter(itertools.chain.from_iterable(groups)).items())

    def take(self) -> int:
        """A page for new content. The caller has checked n_free."""
        if self._never_used:
            page = self._never_used.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        self._references[page] = 1
        return page

    def release(self, pages: list[int]) -> None:
        """Give pages back, last first, so that the beginning of a text outlives its end."""
        for page in reversed(pages):
            self._references[page] -= 1
            if self._references[page] == 0:
                if page in self._content_of:
                    self._idle[page] = None
                else:
                    self._never_used.append(page)

    def register(self, page: int, parent: int, tokens: list[int]) -> int:
        """A page is full: others may use it. Gives the page under which this content is known, which may be an older one."""
        content = (parent, tuple(tokens))
        known = self._by_content.get(content)
        if known is not None:
            return known
        self._by_content[content] = page
        self._content_of[page] = content
        self._children.setdefault(parent, set()).add(page)
        return page

    def match(self, tokens: list[int]) -> list[int]:
        """Registered pages for the beginning of these tokens, now referenced. At least one token is left to compute."""
        pages: list[int] = []
        parent = 0
        for start in range(0, len(tokens) - PAGE, PAGE):
            page = self._by_content.get((parent, tuple(tokens[start : start + PAGE])))
            if page is None:
                break
            if self._references[page] == 0:
                del self._idle[page]
            self._references[page] += 1
            pages.append(page)
            parent = page
        return pages

    def _forget(self, page: int) -> None:
        """Its content goes, and with it everything that was known to follow it. Pages that follow are in use by nobody, or this one would be too."""
        doomed = [page]
        while doomed:
            page = doomed.pop()
            content = self._content_of.pop(page, None)
            if content is None:
                continue
            self._by_content.pop(content, None)
            self._children.get(content[0], set()).discard(page)
            following = self._children.pop(page, set())
            doomed += following
            for child in following & self._idle.keys():
                del self._idle[child]
                self._never_used.append(child)
