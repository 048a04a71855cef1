"""How many threads to use: what this process may use, not what the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path

from ..errors import InvalidRequest


def _cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cgroup_quota() -> float:
    """CPUs that the control group grants (version 2 and 1); infinity without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        base = Path("/sys/fs/cgroup/cpu")
        quota = int((base / "cpu.cfs_quota_us").read_text())
        return math.inf if quota <= 0 else quota / int((base / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return math.inf


def usable_cpus() -> int:
    """Logical CPUs within the affinity mask and the cgroup's quota, at least 1."""
    return max(1, int(min(len(_cpus()), math.ceil(min(cgroup_quota(), 1e6)))))


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
