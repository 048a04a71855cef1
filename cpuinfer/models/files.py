"""What both sources of models need of the file system: one writer at a time, and how much has arrived."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def lock(target: Path) -> Iterator[None]:
    """Only one process fetches a model; others wait. A lock that a killed process left is released by the system."""
    with open(target.with_name(f".{target.name}.lock"), "w") as handle:
        if os.name == "nt":
            import msvcrt

            while True:
                try:
                    msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
                    break
                except OSError:
                    time.sleep(0.5)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def folder_bytes(folder: Path) -> int:
    """Size of what lies in a folder that others change meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone between listing and looking
            total += file.stat().st_size if file.is_file() else 0
    return total
