"""How many threads to use: what this process may use, not what the machine has."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidRequest
from .cgroups import cpu_quota


def _cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def usable_cpus() -> int:
    """Logical CPUs within the affinity mask and the control groups' quota, at least 1.

    Rounded down: a thread that the quota does not pay for is stopped in the middle of its work, and the others wait for it.
    """
    return max(1, int(min(len(_cpus()), cpu_quota())))


def physical_cores() -> int:
    """Different physical cores in the affinity mask: hyper-threads of one core share its SIMD units and bring nothing."""
    cores = set()
    for cpu in _cpus():
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add((topology / "thread_siblings_list").read_text().strip())
        except OSError:
            return len(_cpus())
    return max(1, len(cores))


def default_threads() -> int:
    """CPUINFER_THREADS, else the physical cores that this process may use."""
    named = os.environ.get("CPUINFER_THREADS", "").strip()
    if named:
        if not named.isdigit() or int(named) < 1:
            raise InvalidRequest(f"CPUINFER_THREADS={named} is not a number of threads; use 1 or more")
        return int(named)
    return max(1, min(physical_cores(), usable_cpus()))
