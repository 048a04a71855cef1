"""The examples of README and quickstart are what the default model answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import realmodels

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TRANSCRIPTS = re.findall(r"^\$ (.+)\n((?:.+\n)+?)(?=\n|```)", README, re.MULTILINE)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def demonstration() -> None:
    realmodels.path("smollm2-135m")


def shell(command: str) -> str:
    command = re.sub(r"\.venv/bin/cpuinfer|\bcpuinfer(?= )", f'"{sys.executable}" -m cpuinfer', command)
    return subprocess.run(["sh", "-c", command], capture_output=True, check=True, text=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL, timeout=300).stdout


def test_the_readme_has_examples() -> None:
    assert len(TRANSCRIPTS) >= 2


@pytest.mark.parametrize("command,answer", TRANSCRIPTS)
def test_a_transcript_is_what_the_command_prints(command, answer) -> None:
    assert shell(command) == answer


def test_the_example_in_python_prints_what_its_comment_says_and_ends() -> None:
    (code,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    (answer,) = re.findall(r"print\(.+#\s*(.+)", code)
    assert "max_tokens=" in code
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=ENVIRONMENT, timeout=300)
    assert result.stdout == answer


def test_the_quickstart_asks_what_the_model_knows() -> None:
    script = (ROOT / "scripts" / "quickstart.sh").read_text()
    (question,) = re.findall(r'set -- "(.+)"', script)
    (command,) = re.findall(r"^exec (.+)$", script, re.MULTILINE)
    assert f'quickstart.sh "{question}"' in README
    assert shell(command.replace("$@", question)) == "The capital of Japan is Tokyo.\n"
