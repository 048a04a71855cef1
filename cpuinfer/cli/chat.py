"""cpuinfer chat: a conversation in the terminal, with the model's own chat template."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from ..errors import CpuinferError
from .interrupts import Interrupts
from .options import GENERATION, MODEL, load, sampling, with_options
from .terminal import PromptProgress, Terminal, decoded, is_terminal, stats_line

HELP = """\
/help            this list
/exit, /bye      leave (also Ctrl-D)
/clear           forget the conversation
/system [TEXT]   set the system message and start anew; without TEXT remove it
/regen           answer the last question again
/stats           speed and context of the last answer
/save FILE       write the conversation to a file
/load FILE       continue a saved conversation
Lines: end one with \\ to go on, put several between \"\"\" and \"\"\", or press Alt-Enter. Ctrl-C stops an answer."""


def register(app: typer.Typer) -> None:
    app.command("chat", help="Chat with a model in the terminal.")(chat)


@with_options(GENERATION)
def chat(
    model: str = MODEL,
    system: str = typer.Option(None, "--system", help="System message.", show_default=False),
    **options: Any,
) -> None:
    terminal = Terminal(options["quiet"], options["verbose"])
    with load(model, options, terminal) as loaded:
        if loaded.template.note:
            terminal.note(loaded.template.note)
        interactive = is_terminal(sys.stdin)
        if interactive and not is_terminal(sys.stdout) and not is_terminal(sys.stderr):
            raise typer.BadParameter("chat has no terminal to show its prompt on; use cpuinfer run, or pipe the messages in")
        if interactive:
            terminal.note(f"{loaded.name}, context {loaded.context_length}. /help shows what you can type.")
        Chat(loaded, terminal, options, system).loop(_reader(terminal) if interactive else _piped(terminal))


class _Stopped(Exception):
    """The user interrupted the reading of the prompt."""


class Chat:
    """The conversation: messages, and what the user can do with them."""

    def __init__(self, model: Any, terminal: Terminal, options: dict[str, Any], system: str | None):
        self.model, self.terminal, self.options, self.system = model, terminal, options, system
        self.messages: list[dict[str, str]] = []
        self.stats: Any = None

    def loop(self, read: Callable[[], str | None]) -> None:
        """Until the end of input. Errors of a turn are shown and the session goes on."""
        while (line := read()) is not None:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    if not self.command(line.strip()):
                        return
                else:
                    self.ask(line)
            except OSError as error:
                self.terminal.end_answer()
                self.terminal.warn(f"{error.filename or 'the system'}: {error.strerror or error}")
            except CpuinferError as error:
                self.terminal.end_answer()
                self.terminal.warn(str(error))

    # ---- turns ---------------------------------------------------------------------------------------------------------------------

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        try:
            self.answer()
        except CpuinferError:
            self.messages.pop()  # the question could not be asked: the conversation stays as it was
            raise

    def answer(self) -> None:
        """Stream the answer to the last message. Ctrl-C stops it and keeps what was said."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        answer = self.model.chat([*head, *self.messages], **sampling(self.options))
        with Interrupts() as interrupts:
            for event in self._events(answer, interrupts):
                if not self.options["json_output"]:
                    self.terminal.write(event)
        self.terminal.clear()
        self.messages.append({"role": "assistant", "content": answer.text})
        self.stats = answer.stats
        if self.options["json_output"]:
            self.terminal.write(json.dumps({"text": answer.text, "tokens": answer.tokens, "finish_reason": answer.stats.finish_reason}, ensure_ascii=False) + "\n")
        self.terminal.end_answer()
        if answer.stats.finish_reason == "context":
            self.terminal.warn(f"the context of {self.model.context_length} tokens is full; /clear starts anew")
        self.terminal.note(stats_line(answer.stats, self.model.context_length))

    def _events(self, answer: Any, interrupts: Interrupts) -> Iterator[str]:
        """The texts of an answer, until its end or an interrupt; what was held back at an interrupt belongs to it."""
        reading = PromptProgress(self.terminal)

        def on_prompt(done: int, total: int) -> None:
            if interrupts.stopped:
                raise _Stopped  # between two parts of a long prompt
            reading(done, total)

        answer.on_prompt = on_prompt
        try:
            for event in answer:
                yield event.text
                if interrupts.stopped:
                    break
        except _Stopped:
            pass
        yield answer.close()

    # ---- commands ------------------------------------------------------------------------------------------------------------------

    def command(self, line: str) -> bool:
        """Carry out /NAME ARGUMENT; False means leave."""
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name in ("/exit", "/bye", "/quit"):
            return False
        actions: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self.terminal.write(HELP + "\n"),
            "/?": lambda _: self.terminal.write(HELP + "\n"),
            "/clear": lambda _: self.messages.clear(),
            "/system": self._set_system,
            "/regen": self._again,
            "/stats": self._show_stats,
            "/save": self._save,
            "/load": self._load,
        }
        if name in actions:
            actions[name](argument)
        else:
            self.terminal.warn(f"unknown command {name}; /help lists them")
        return True

    def _set_system(self, text: str) -> None:
        self.system = text or None
        self.messages.clear()
        self.terminal.note("system message set, conversation cleared" if text else "system message removed, conversation cleared")

    def _again(self, _: str) -> None:
        before = list(self.messages)
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            self.terminal.warn("there is no question to answer again")
            return
        try:
            self.answer()
        except CpuinferError:
            self.messages = before  # the old answer stays
            raise

    def _show_stats(self, _: str) -> None:
        if self.stats is None:
            self.terminal.warn("there is no answer yet")
        else:
            self.terminal.write(stats_line(self.stats, self.model.context_length) + "\n")

    def _save(self, name: str) -> None:
        if not name:
            self.terminal.warn("give a file name: /save FILE")
            return
        path = Path(name).expanduser()
        text = json.dumps({"model": self.model.name, "system": self.system, "messages": self.messages}, ensure_ascii=False, indent=1)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self.terminal.note(f"saved {len(self.messages)} messages to {path}")

    def _load(self, name: str) -> None:
        if not name:
            self.terminal.warn("give a file name: /load FILE")
            return
        try:
            data = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
            messages = [{"role": m["role"], "content": m["content"]} for m in data["messages"]]
            system = data.get("system")
            if not all(isinstance(text, str) for m in messages for text in m.values()) or not isinstance(system, (str, type(None))):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            self.terminal.warn(f"{name} is not a saved conversation")
            return
        self.system, self.messages = system, messages
        self.terminal.note(f"loaded {len(messages)} messages")


# ---- input -----------------------------------------------------------------------------------------------------------------------------


def joined(read: Callable[[str], str | None]) -> Callable[[], str | None]:
    """Reads one message: lines that end with a backslash go on, lines between triple quotes belong together. `read(prompt)` gives a line, None at the end."""

    def message() -> str | None:
        line = read(">>> ")
        if line is None:
            return None
        if line.startswith('"""'):
            parts = [line[3:]]
            while not parts[-1].rstrip().endswith('"""'):
                more = read("... ")
                if more is None:
                    return "\n".join(parts).strip("\n")
                parts.append(more)
            parts[-1] = parts[-1].rstrip()[:-3]
            return "\n".join(parts).strip("\n")
        while line.endswith("\\"):
            more = read("... ")
            if more is None:
                return line[:-1]
            line = line[:-1] + "\n" + more
        return line

    return message


def _piped(terminal: Terminal) -> Callable[[], str | None]:
    """Lines from a pipe."""

    def read(_: str) -> str | None:
        try:
            data = sys.stdin.buffer.readline() if sys.stdin is not None else b""
        except (OSError, ValueError, AttributeError):
            return None
        return decoded(data, terminal).rstrip("\r\n") if data else None

    return joined(read)


def _reader(terminal: Terminal) -> Callable[[], str | None]:
    """Lines from the user, with editing, history and pasting of several lines."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    history: Any = InMemoryHistory()
    try:
        import platformdirs

        folder = Path(platformdirs.user_state_dir("cpuinfer", appauthor=False))
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(folder / "history", os.O_CREAT | os.O_WRONLY, 0o600))  # what was asked is nobody else's business
        history = FileHistory(str(folder / "history"))
    except (OSError, RuntimeError):
        pass  # no home or a read-only one: history lasts for this session
    # Where stdout is a pipe or a file it carries answers only: the prompt then shows on stderr.
    output = None if is_terminal(sys.stdout) else create_output(sys.stderr)
    session: Any = PromptSession(history=history, key_bindings=keys, output=output)

    def read(prompt: str) -> str | None:
        while True:
            try:
                return session.prompt(prompt)
            except EOFError:
                return None
            except KeyboardInterrupt:
                terminal.note("Ctrl-D or /exit leaves.")

    return joined(read)
