"""The control groups that limit this process (cgroup versions 2 and 1): its own and those above it, each of which may set a limit. See man cgroups(7), proc_pid_mountinfo(5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")


def folders(controller: str) -> Iterator[tuple[Path, int]]:
    """(folder of a group, cgroup version) from the process's own group upwards to the one that is mounted, for "cpu" or "memory"; nothing where there are no groups."""
    try:
        groups = [line.split(":", 2) for line in (PROC / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (PROC / "mountinfo").read_text().splitlines()]
    except (OSError, ValueError):
        return
    paths = {}  # version -> the group's path
    for fields in groups:
        if len(fields) == 3 and fields[1] == "":
            paths[2] = fields[2]
        elif len(fields) == 3 and controller in fields[1].split(","):
            paths[1] = fields[2]
    for mount in mounts:
        if len(mount) < 10 or "-" not in mount:
            continue
        kind, *_, options = mount[mount.index("-") + 1 :]
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version is None or version not in paths or (version == 1 and controller not in options.split(",")):
            continue
        # A container may see only its own part of the tree: the mount's root is then a group that stands for "/".
        top, path, root = Path(_unescaped(mount[4])), PurePosixPath(paths[version]), PurePosixPath(_unescaped(mount[3]))
        own = top / path.relative_to(root) if path.is_relative_to(root) and ".." not in path.parts else top
        while own != top:
            yield own, version
            own = own.parent
        yield top, version


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal numbers."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def cpu_quota() -> float:
    """CPUs that the groups grant, the smallest quota of all; infinity without one."""
    return min((quota for folder, version in folders("cpu") if (quota := _cpus(folder, version)) is not None), default=float("inf"))


def _cpus(folder: Path, version: int) -> float | None:
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def memory_left() -> int | None:
    """Bytes that the groups still grant, the least of all; None without a limit."""
    names = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
    return min((left for folder, version in folders("memory") if (left := _bytes(folder, *names[version])) is not None), default=None)


def _bytes(folder: Path, limit: str, usage: str) -> int | None:
    try:
        most = (folder / limit).read_text().strip()
        if most == "max" or int(most) >= 1 << 60:  # version 1 writes a huge number for none
            return None
        return max(0, int(most) - int((folder / usage).read_text()))
    except (OSError, ValueError):
        return None
