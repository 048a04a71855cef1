"""Generated documentation is what the code generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_list_of_what_is_supported_is_up_to_date() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, str(ROOT / "scripts" / "supported.py"), "--check"], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
