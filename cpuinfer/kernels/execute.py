"""The interpreter of programs: a loop over ops and a barrier, compiled once for all models."""

from __future__ import annotations

from numba import njit

from .registry import op_kernel
from .simd import atomic_add, atomic_load, atomic_store, call_kernel, load_i64, load_u8, spin_hint, store_i64, yield_cpu
from .team import ARRIVED, EPOCH, GENERATION, STOP

# Spin this often before letting others have the core: about 60 us, longer than any op's imbalance on an idle machine, short against a time slice.
SPINS = 2000
IDLE_ROUNDS = 400  # rounds of yielding (about 2 ms) before a worker goes back to Python to sleep

# Placeholders keep addresses of words as byte offsets.
_ARRIVED, _GENERATION, _EPOCH, _STOP = 8 * ARRIVED, 8 * GENERATION, 8 * EPOCH, 8 * STOP


@njit
def barrier(state, size, counters, first, last):
    """Wait for all threads. The last to arrive resets the row counters of the ops first..last-1, which nobody uses any more."""
    generation = atomic_load(state + _GENERATION)
    if atomic_add(state + _ARRIVED, 1) == size - 1:
        for i in range(first, last):
            store_i64(counters + 64 * i, 0)
        atomic_store(state + _ARRIVED, 0)
        atomic_store(state + _GENERATION, generation + 1)
        return
    spins = 0
    while atomic_load(state + _GENERATION) == generation:
        spins += 1
        if spins < SPINS:
            spin_hint()
        else:
            yield_cpu()


@njit
def run_program(team, rank, size):
    """All ops of a program. A matmul-like op picks its driver by the number of rows it has."""
    batch = team.batch
    tokens = load_i64(batch)
    logit_rows = load_i64(batch + 16)
    first = 0
    n_ops = team.n_ops
    for i in range(n_ops):
        rows = logit_rows if load_u8(team.per_logit_row + i) != 0 else tokens
        driver = 0
        if rows > 1:
            driver = 1
        if rows > team.few:
            driver = 2
        if rows > 0:
            call_kernel(load_i64(team.kernels + 8 * (driver * n_ops + i)), load_i64(team.records + 8 * i), batch, rank, size)
        if load_u8(team.sync + i) != 0 or i == n_ops - 1:
            barrier(team.state, size, team.counters, first, i + 1)
            first = i + 1


@op_kernel("team", name="execute")
def execute(team, unused, rank, size):
    """Rank 0's part of a run."""
    run_program(team, rank, size)


@op_kernel("team", name="serve", batch="address")
def serve(team, served, rank, size):
    """Another rank: run each program as its epoch comes; return when nothing came for a while. `served` is the address of the last epoch run."""
    idle = 0
    while atomic_load(team.state + _STOP) == 0:
        epoch = atomic_load(team.state + _EPOCH)
        if epoch != load_i64(served):
            store_i64(served, epoch)
            run_program(team, rank, size)
            idle = 0
            continue
        idle += 1
        if idle < SPINS:
            spin_hint()
        elif idle < SPINS + IDLE_ROUNDS:
            yield_cpu()
        else:
            return
