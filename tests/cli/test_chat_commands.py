"""What can be typed in a chat beside questions; conversations in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from cpuinfer.cli.chat import Chat
from cpuinfer.cli.lines import Lines
from cpuinfer.cli.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", "Q8_0", context=2048))


def chat(model: str, *lines: str) -> list[str]:
    """Lines of stderr after these from a pipe."""
    command = [sys.executable, "-m", "cpuinfer", "chat", model, "--temp", "0", "-n", "4", "-c", "512"]
    result = subprocess.run(command, input="".join(f"{line}\n" for line in lines).encode(), capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stderr.decode().splitlines()


def questions(path: Path) -> list[str]:
    return [m["content"] for m in json.loads(path.read_text(encoding="utf-8"))["messages"] if m["role"] == "user"]


def test_saving_leaves_a_file_alone_that_is_there_unless_told_otherwise(model, tmp_path) -> None:
    file, link, dangling = tmp_path / "kept.txt", tmp_path / "link", tmp_path / "dangling"
    file.write_text("precious")
    link.symlink_to(file)
    dangling.symlink_to(tmp_path / "nothing")
    errors = chat(model, "the", f"/save {file}", f"/save {link}", f"/save {dangling}")
    assert [e.count("/save! ") for e in errors] == [1, 1, 1] and str(file) in errors[0]
    assert file.read_text() == "precious" and sorted(os.listdir(tmp_path)) == ["dangling", "kept.txt", "link"]
    assert chat(model, "the", f"/save! {link}") == []
    assert questions(file) == ["the"] and link.is_symlink() and len(os.listdir(tmp_path)) == 3


def test_an_error_of_saving_names_the_file_that_was_asked_for(model, tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    names = [str(tmp_path / name) for name in ("missing/c.json", "file/c.json", "", "n" * 300)]
    errors = chat(model, "the", *(f"/save {name}" for name in names), f"/save {tmp_path / 'c.json'}")
    assert len(errors) == len(names) and all(e.startswith(f"cpuinfer: {name}: ") and "not saved" in e for name, e in zip(names, errors)), errors
    assert sorted(os.listdir(tmp_path)) == ["c.json", "file"] and questions(tmp_path / "c.json") == ["the"]


def test_a_name_as_long_as_a_file_s_may_be_is_saved(model, tmp_path) -> None:
    assert chat(model, "the", f"/save {tmp_path / ('n' * 255)}") == []


def test_a_conversation_of_another_model_says_so(model, tmp_path) -> None:
    other = tiny.model(tmp_path / "other.gguf", "qwen2", "Q8_0", context=2048)
    saved, same = tmp_path / "c.json", tmp_path / "d.json"
    assert chat(model, "the", f"/save {saved}", f"/load {saved}", "and", f"/save {same}") == []
    assert questions(same) == ["the", "and"]
    (error,) = chat(str(other), f"/load {saved}", "in", f"/save {tmp_path / 'e.json'}")
    assert "tiny llama" in error and "tiny qwen2" in error
    assert questions(tmp_path / "e.json") == ["the", "in"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"messages"',
        '{"messages": 5}',
        '{"messages": {}}',
        '{"messages": [5]}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "king", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": 5}]}',
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"messages": [], "system": 5}',
        "[" * 100_000,
        "\xff",
    ],
    ids=range(13),
)
def test_what_is_no_conversation_is_not_loaded(model, text, tmp_path) -> None:
    wrong, saved = tmp_path / "wrong.json", tmp_path / "c.json"
    wrong.write_bytes(text.encode("latin-1"))
    (error,) = chat(model, "the", f"/load {wrong}", f"/save {saved}")
    assert f"{wrong} is not a" in error and "conversation" in error
    assert questions(saved) == ["the"]


def test_a_system_message_that_does_not_change_leaves_the_conversation_alone(model, tmp_path) -> None:
    first, second, third = (tmp_path / name for name in ("1", "2", "3"))
    errors = chat(model, "the", "/system", f"/save {first}", "/system be brief", "/system be brief", "and", "/system be brief", f"/save {second}", "/system", f"/save {third}")
    assert len(errors) == 3 and "no system message" in errors[0] and "already" in errors[1] and "already" in errors[2]
    assert questions(first) == ["the"] and questions(second) == ["and"] and questions(third) == []
    assert [json.loads(p.read_text())["system"] for p in (first, second, third)] == [None, "be brief", None]


class Script(Lines):
    """Lines of a test."""

    def __init__(self, *lines: str):
        self.left = list(lines)

    def read(self, prompt: str) -> str | None:
        return self.left.pop(0) if self.left else None


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), RuntimeError("y"), OSError(28, "No space left on device")])
def test_no_error_of_a_turn_loses_the_conversation(error, capsys) -> None:
    class Model:
        name = "broken"

        def chat(self, messages, **options):
            raise error

    from cpuinfer.cli import options

    chosen = {name: default for name, (_, default, _, _) in options.GENERATION.items()}
    chat = Chat(Model(), Terminal(), chosen, None, Script("first", "/regen", "second", "/stats"))
    chat.messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chat.loop()
    assert [m["content"] for m in chat.messages] == ["a", "b"]
    assert len(capsys.readouterr().err.splitlines()) == 4
