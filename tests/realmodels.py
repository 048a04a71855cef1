"""The two real models, from the local store; fetched if CPUINFER_TEST_PULL=1 (as .ci/run sets it), else tests that need them skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpuinfer.errors import CpuinferError
from cpuinfer.models import store


def path(name: str) -> Path:
    """File of a catalog model, or skip."""
    file = store.path_of(name)
    if file.is_file():
        return file
    if os.environ.get("CPUINFER_TEST_PULL") != "1":
        pytest.skip(f"{name} is not in the local store; cpuinfer pull {name}")
    try:
        return store.pull(name)
    except CpuinferError as error:
        pytest.skip(f"{name} cannot be fetched here: {error}")
