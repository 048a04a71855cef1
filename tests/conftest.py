"""Shared fixtures. Kernels are compiled once into a folder outside the checkout (CPUINFER_CACHE_DIR, if set, is used as it is)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "fixtures"
sys.path.insert(0, str(ROOT / "tests"))


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
