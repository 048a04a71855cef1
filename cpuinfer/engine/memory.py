"""How much memory this process may still use."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes: what the system calls available (free and reclaimable), or the rest of the control group's limit if that is less."""
    return min(_system(), _cgroup())


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


def _cgroup() -> int:
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            text = Path(limit).read_text().strip()
            if text != "max" and int(text) < 1 << 60:
                return max(0, int(text) - int(Path(usage).read_text()))
        except (OSError, ValueError):
            continue
    return 1 << 62
