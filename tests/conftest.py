"""Shared fixtures. Kernels are compiled once into a folder outside the checkout (CPUINFER_CACHE_DIR, if set, is used as it is)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "fixtures"
sys.path.insert(0, str(ROOT / "tests"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """A name that holds an address is another one in every process: tests run in parallel could not agree on what they are."""
    if re.search(r"\bat 0x[0-9a-f]+", item.nodeid):
        raise pytest.UsageError(f"{item.nodeid}: give this case a name without an address (ids=...)")


@pytest.fixture
def fixtures() -> Path:
    """Reference models and outputs, where they are at hand."""
    if not SHARED.is_dir():
        pytest.skip("the reference fixtures are not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def team():
    from cpuinfer.kernels.team import Team

    with Team(2) as team:
        yield team
