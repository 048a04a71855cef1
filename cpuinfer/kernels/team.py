"""The thread team: runs a program's ops on all threads, with a barrier where an op says so.

Rank 0 is the calling thread. The other ranks sit in compiled code without the GIL, watching an epoch word; they spin a little, then let other processes
have the core, and after about 2 ms return to Python and wait on a condition. Ops between two barriers run unsynced; a thread that is done goes on.
`execute` and `serve` are kernels like all others (records TEAM), compiled once for every model.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref

import numpy as np

from . import jit
from .records import BATCH, FEW, TEAM
from .threads import default_threads

_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)  # ctypes releases the GIL during the call
KEYS = [("execute",), ("serve",)]

# Words of the shared state, each on a cache line of its own (8 words = 64 bytes).
EPOCH, ARRIVED, GENERATION, ASLEEP, STOP, WORDS = 0, 8, 16, 24, 32, 40


class Team:
    """`threads` threads that run programs together. Not re-entrant: one run at a time. close() ends the threads."""

    def __init__(self, threads: int | None = None):
        self.size = threads or default_threads()
        addresses = jit.build(KEYS)
        self._execute, self._serve = (_KERNEL(addresses[key]) for key in KEYS)
        memory = np.zeros(WORDS + 8, np.int64)
        self._memory = memory
        offset = -memory.ctypes.data % 64 // 8
        self._state = memory[offset : offset + WORDS]
        self._record = np.zeros(1, TEAM)
        self._record["state"] = self._state.ctypes.data
        self._record["few"] = FEW
        self._closed = False
        self._workers: list[threading.Thread] | None = None
        self._start()
        _teams.add(self)

    def _start(self) -> None:
        """Start the other ranks; in a forked child once more, where none of the parent's are."""
        self._state[:] = 0
        self._wake = threading.Condition()
        self._workers = [threading.Thread(target=self._work, args=(rank,), daemon=True, name=f"cpuinfer-{rank}") for rank in range(1, self.size)]
        for worker in self._workers:
            worker.start()

    def run(self, program, batch: np.ndarray) -> None:
        """Run all ops of an assembled program over a batch (an array of one records.BATCH)."""
        if self._workers is None:
            self._start()
        record = self._record
        record["n_ops"] = len(program.records)
        for field in ("kernels", "records", "sync", "per_logit_row", "counters"):
            record[field] = getattr(program, field).ctypes.data
        record["batch"] = batch.ctypes.data
        address, epoch = record.ctypes.data, int(self._state[EPOCH])
        try:
            if self.size > 1:
                with self._wake:
                    # Workers compare the epoch they served last; the state is set before it rises.
                    self._state[EPOCH] += 1
                    if self._state[ASLEEP]:
                        self._wake.notify_all()
        finally:
            # Once the epoch has risen the others wait for rank 0 at the first barrier: an interrupt that Python raises here must not keep it away.
            if self.size == 1 or self._state[EPOCH] != epoch:
                self._execute(address, 0, 0, self.size)

    def _work(self, rank: int) -> None:
        served = np.zeros(1, np.int64)  # the last epoch this thread ran
        record = self._record.ctypes.data
        while True:
            self._serve(record, served.ctypes.data, rank, self.size)  # returns when idle for a while, or stopped
            with self._wake:
                self._state[ASLEEP] += 1
                while self._state[EPOCH] == served[0] and not self._closed:
                    self._wake.wait()
                self._state[ASLEEP] -= 1
                if self._closed:
                    return

    def close(self) -> None:
        """End the threads; the team cannot run again."""
        with self._wake:
            self._closed = True
            self._state[STOP] = 1
            self._wake.notify_all()
        for worker in self._workers or ():
            worker.join()
        self._workers = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_) -> None:
        self.close()


_teams: weakref.WeakSet[Team] = weakref.WeakSet()


def _in_child() -> None:
    """Threads do not come along into a forked process: its teams start theirs with their next run."""
    for team in _teams:
        team._wake = threading.Condition()
        if not team._closed:
            team._workers = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

assert BATCH.itemsize % 8 == 0
