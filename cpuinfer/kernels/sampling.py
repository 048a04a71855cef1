"""Choosing the next token: penalties, top-k, typical-p, top-p, min-p, temperature, draw, in llama.cpp's default order. tests/engine/test_sampling.py holds the definition.

Vocabularies are large, so nothing sorts them: top-k keeps a heap of the k largest while one pass compares 16 logits at a time with the
least of them. Without a top-k a histogram of
the probability mass bounds what top-p can keep, and only that is sorted.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .registry import op_kernel
from .simd import (
    add,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    max_lanes,
    maximum,
    select_less,
    splat_f32x16,
    store_f32,
    store_i32,
    store_i64,
    sub,
    sum_lanes,
    zero_f32x16,
)
from .vector_math import exp

HEAP_LIMIT = 4096  # the largest top_k for which the heap is used
BUCKETS, PER_UNIT = 2048, 32.0  # histogram of logits below the largest: 1/32 wide, the last bucket takes the rest


@njit
def largest_logit(logits, n):
    """(largest of n logits, whether one of them is no number: NaN or +inf); the padding of the row after n is not read."""
    whole = n // 16 * 16
    best, broken = np.float32(-np.inf), False
    if whole:
        m = splat_f32x16(np.float32(-np.inf))
        above, zero, one, found = splat_f32x16(np.float32(np.inf)), zero_f32x16(), splat_f32x16(np.float32(1)), zero_f32x16()
        for i in range(0, whole, 16):
            x = load_f32x16(logits + 4 * i)
            m = maximum(m, x)
            found = maximum(found, select_less(x, above, zero, one))
        best, broken = max_lanes(m), max_lanes(found) > 0
    for i in range(whole, n):
        value = load_f32(logits + 4 * i)
        best, broken = max(best, value), broken or not value < np.inf
    return best, broken


@njit
def largest_number(logits, n):
    """Largest of n logits. Those that are no numbers become -inf, the logit of what is never chosen; -inf if all are."""
    best, broken = largest_logit(logits, n)
    if broken:
        best = np.float32(-np.inf)
        for i in range(n):
            value = load_f32(logits + 4 * i)
            if not value < np.inf:
                store_f32(logits + 4 * i, np.float32(-np.inf))
            elif value > best:
                best = value
    return best


@njit
def first_equal(logits, n, value):
    for i in range(n):
        if load_f32(logits + 4 * i) == value:
            return i
    return 0


@njit
def exp_sum(logits, n, largest):
    """Sum of e^(logit - largest)."""
    whole = n // 16 * 16
    total, shift = np.float64(0), splat_f32x16(largest)
    for start in range(0, whole, 4096):
        part = zero_f32x16()
        for i in range(start, min(start + 4096, whole), 16):
            part = add(part, exp(sub(load_f32x16(logits + 4 * i), shift)))
        total += sum_lanes(part)
    for i in range(whole, n):
        total += math.exp(load_f32(logits + 4 * i) - largest)
    return total


@njit
def penalize(op):
    """Repeat, frequency and presence penalties on the tokens of the history (Keskar et al. 2019 for the first)."""
    for i in range(op.n_history):
        at = op.counts + 4 * load_i32(op.history + 4 * i)
        store_i32(at, load_i32(at) + 1)
    for i in range(op.n_history):
        token = load_i32(op.history + 4 * i)
        count = load_i32(op.counts + 4 * token)
        if count:
            logit = np.float64(load_f32(op.logits + 4 * token))
            logit = logit * op.repeat_penalty if logit <= 0 else logit / op.repeat_penalty
            store_f32(op.logits + 4 * token, np.float32(logit - count * op.frequency_penalty - op.presence_penalty))
            store_i32(op.counts + 4 * token, 0)


@njit
def before(a, i, b, j):
    """Whether (value a, id i) ranks after (b, j): smaller, or equal with a larger id."""
    return a < b or (a == b and i > j)


@njit
def sift_down(ids, values, start, end):
    """Restore a heap whose root is the entry that ranks last."""
    root = start
    while 2 * root + 1 < end:
        child = 2 * root + 1
        if child + 1 < end and before(load_f32(values + 4 * child + 4), load_i32(ids + 4 * child + 4), load_f32(values + 4 * child), load_i32(ids + 4 * child)):
            child += 1
        if not before(load_f32(values + 4 * child), load_i32(ids + 4 * child), load_f32(values + 4 * root), load_i32(ids + 4 * root)):
            return
        swap(ids, values, root, child)
        root = child


@njit
def swap(ids, values, i, j):
    value, token = load_f32(values + 4 * i), load_i32(ids + 4 * i)
    store_f32(values + 4 * i, load_f32(values + 4 * j))
    store_i32(ids + 4 * i, load_i32(ids + 4 * j))
    store_f32(values + 4 * j, value)
    store_i32(ids + 4 * j, token)


@njit
def sort_down(ids, values, count):
    """Heap sort: values descending, ids ascending among equals."""
    for start in range(count // 2 - 1, -1, -1):
        sift_down(ids, values, start, count)
    for end in range(count - 1, 0, -1):
        swap(ids, values, 0, end)
        sift_down(ids, values, 0, end)


@njit
def keep_largest(logits, n, k, ids, values):
    """The k largest logits, sorted."""
    for i in range(k):
        store_i32(ids + 4 * i, i)
        store_f32(values + 4 * i, load_f32(logits + 4 * i))
    for start in range(k // 2 - 1, -1, -1):
        sift_down(ids, values, start, k)
    i = k
    while i < n:
        if i % 16 == 0 and i + 16 <= n and max_lanes(load_f32x16(logits + 4 * i)) <= load_f32(values):
            i += 16
            continue
        value = load_f32(logits + 4 * i)
        if value > load_f32(values):
            store_f32(values, value)
            store_i32(ids, i)
            sift_down(ids, values, 0, k)
        i += 1
    for end in range(k - 1, 0, -1):
        swap(ids, values, 0, end)
        sift_down(ids, values, 0, end)


@njit
def mass_bound(logits, n, largest, total, p, buckets):
    """A logit such that the tokens above it hold at least the share p of the probability."""
    for b in range(BUCKETS):
        store_f32(buckets + 4 * b, np.float32(0))
    for i in range(n):
        below = largest - load_f32(logits + 4 * i)
        b = BUCKETS - 1 if not below < (BUCKETS - 1) / PER_UNIT else np.int64(below * PER_UNIT)
        store_f32(buckets + 4 * b, load_f32(buckets + 4 * b) + np.float32(math.exp(-below)))
    mass = 0.0
    for b in range(BUCKETS - 1):
        mass += load_f32(buckets + 4 * b)
        if mass >= p * total * 1.0001:  # buckets are summed in float32
            return np.float32(largest - (b + 1) / PER_UNIT)
    return np.float32(-np.inf)


@njit
def gather(op, k, largest, total):
    """Candidates sorted by logit, best first, in ids and values; gives their number."""
    n, ids, values = op.n_vocab, op.ids, op.values
    if k < n and k <= HEAP_LIMIT:
        keep_largest(op.logits, n, k, ids, values)
        return k
    bound = np.float32(-np.inf)
    if k == n and op.typical_p >= 1:
        if op.top_p < 1:
            bound = mass_bound(op.logits, n, largest, total, op.top_p, values + 4 * n)
        elif op.min_p > 0:
            bound = np.float32(largest + math.log(op.min_p))
    count = 0
    for i in range(n):
        value = load_f32(op.logits + 4 * i)
        if value >= bound:
            store_i32(ids + 4 * count, i)
            store_f32(values + 4 * count, value)
            count += 1
    sort_down(ids, values, count)
    return min(k, count)


@njit
def sum_of(values, count, largest):
    total = 0.0
    for i in range(count):
        total += math.exp(load_f32(values + 4 * i) - largest)
    return total


@njit
def keep_typical(ids, values, count, largest, p):
    """Locally typical sampling (Meister et al. 2022): the tokens whose surprise is nearest to the entropy, until they hold more than p. Left sorted by logit."""
    total = sum_of(values, count, largest)
    entropy = 0.0
    for i in range(count):
        log_p = load_f32(values + 4 * i) - largest - math.log(total)
        entropy -= math.exp(log_p) * log_p
    # Distances are computed anew where needed: candidates are few unless top-k is off.
    kept, mass, low, high = 0, 0.0, 0, count
    log_total = math.log(total)
    # The sorted order makes distance fall, then rise: the nearest are a window, found from its middle.
    while high > low:
        middle = (low + high) // 2
        if -(load_f32(values + 4 * middle) - largest - log_total) < entropy:
            low = middle + 1
        else:
            high = middle
    left, right = low - 1, low
    while mass <= p and (left >= 0 or right < count):
        left_distance, right_distance = np.inf, np.inf
        if left >= 0:
            left_distance = entropy + (load_f32(values + 4 * left) - largest - log_total)
        if right < count:
            right_distance = -(load_f32(values + 4 * right) - largest - log_total) - entropy
        if left_distance <= right_distance:
            mass += math.exp(load_f32(values + 4 * left) - largest - log_total)
            left -= 1
        else:
            mass += math.exp(load_f32(values + 4 * right) - largest - log_total)
            right += 1
        kept += 1
    for i in range(kept):
        store_i32(ids + 4 * i, load_i32(ids + 4 * (left + 1 + i)))
        store_f32(values + 4 * i, load_f32(values + 4 * (left + 1 + i)))
    return kept


@njit
def random_unit(state):
    """A number in 0..1 and the next state: splitmix64 (Steele et al. 2014)."""
    seed = np.uint64(load_i64(state)) + np.uint64(0x9E3779B97F4A7C15)
    store_i64(state, np.int64(seed))
    z = (seed ^ (seed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@njit
def draw(values, count, temperature, state):
    """Index of a candidate, drawn from softmax(values / temperature)."""
    largest = load_f32(values)
    total = 0.0
    for i in range(count):
        total += math.exp((load_f32(values + 4 * i) - largest) / temperature)
    target = random_unit(state) * total
    for i in range(count):
        target -= math.exp((load_f32(values + 4 * i) - largest) / temperature)
        if target < 0:
            return i
    return count - 1


@njit
def choose(op, largest):
    if op.temperature == 0:
        return first_equal(op.logits, op.n_vocab, largest)
    k = op.top_k if 0 < op.top_k < op.n_vocab else op.n_vocab
    whole = k == op.n_vocab
    total = exp_sum(op.logits, op.n_vocab, largest) if whole and op.top_p < 1 else 0.0
    count = gather(op, k, largest, total)
    while count > 1 and load_f32(op.values + 4 * count - 4) == -np.inf:  # sorted: what is never chosen stands last
        count -= 1
    if op.typical_p < 1:
        count = keep_typical(op.ids, op.values, count, largest, op.typical_p)
    if op.top_p < 1:
        if not whole or op.typical_p < 1:
            total = sum_of(op.values, count, largest)
        mass, i = 0.0, 0
        while i < count:
            mass += math.exp(load_f32(op.values + 4 * i) - largest)
            i += 1
            if mass >= op.top_p * total:
                break
        count = i
    if op.min_p > 0:
        bound = load_f32(op.values) + math.log(op.min_p)
        i = 1
        while i < count and load_f32(op.values + 4 * i) >= bound:
            i += 1
        count = i
    return load_i32(op.ids + 4 * draw(op.values, count, op.temperature, op.state))


@op_kernel("sample", batch="address")
def sample(op, unused, rank, size):
    """One token, or -1 where no logit is finite. Log-probabilities are those of the model, before penalties and temperature."""
    n = op.n_vocab
    log_total, largest = 0.0, largest_number(op.logits, n)
    if largest == -np.inf:
        store_i64(op.token, -1)
        return
    if op.n_logprobs > 0:
        log_total = math.log(exp_sum(op.logits, n, largest)) + largest
        keep_largest(op.logits, n, min(n, op.n_logprobs), op.ids, op.values)
        for i in range(op.n_logprobs):
            store_i64(op.logprob_ids + 8 * (i + 1), load_i32(op.ids + 4 * i))
            store_f32(op.logprob_values + 4 * (i + 1), np.float32(load_f32(op.values + 4 * i) - log_total))
        # The chosen token's own logit is needed after penalties changed it: keep a copy behind the buckets.
        for i in range(op.n_history):
            token = load_i32(op.history + 4 * i)
            store_f32(op.values + 4 * (n + BUCKETS + i), load_f32(op.logits + 4 * token))
    if op.repeat_penalty != 1 or op.presence_penalty != 0 or op.frequency_penalty != 0:
        penalize(op)
        largest, _ = largest_logit(op.logits, n)
    token = choose(op, largest)
    store_i64(op.token, token)
    if op.n_logprobs > 0:
        logit = load_f32(op.logits + 4 * token)
        for i in range(op.n_history):
            if load_i32(op.history + 4 * i) == token:
                logit = load_f32(op.values + 4 * (n + BUCKETS + i))
        store_i64(op.logprob_ids, token)
        store_f32(op.logprob_values, np.float32(logit - log_total))
