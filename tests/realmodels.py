"""The real models of the local store, for tests that need one: those tests skip where it was not pulled."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpuinfer.models import store


def path(name: str) -> Path:
    """The file of a catalog name, never downloaded here."""
    found = store.path_of(name)
    if not found.is_file():
        pytest.skip(f"needs the model {name} in the local store")
    return found
