"""cpuinfer chat: a conversation in the terminal, with the model's own chat template."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer

from ..errors import CpuinferError
from .lines import Lines, Piped, Typed
from .options import GENERATION, MODEL, load, sampling, with_options
from .terminal import PipeClosed, PromptProgress, Terminal, explain, is_terminal, stats_line

HELP = """\
/help            this list
/exit, /bye      leave (also Ctrl-D)
/clear           forget the conversation
/system [TEXT]   set another system message and start anew; without TEXT remove it
/regen           answer the last question again
/stats           speed and context of the last answer
/save FILE       write the conversation to a new file; /save! FILE: also over one that is there
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
        with Typed(terminal) if interactive else Piped(terminal) as lines:
            Chat(loaded, terminal, options, system, lines).loop()


class _Stopped(Exception):
    """The user interrupted the reading of the prompt."""


class Chat:
    """The conversation: messages, and what the user can do with them."""

    def __init__(self, model: Any, terminal: Terminal, options: dict[str, Any], system: str | None, lines: Lines):
        self.model, self.terminal, self.options, self.system, self.lines = model, terminal, options, system, lines
        self.messages: list[dict[str, str]] = []
        self.stats: Any = None

    def loop(self) -> None:
        """Until the end of input. Errors of a turn are shown and the session goes on."""
        while (line := self.lines.message()) is not None:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    if not self.command(line.strip()):
                        return
                else:
                    self.ask(line)
            except Exception as error:
                if isinstance(error, (PipeClosed, BrokenPipeError)) or os.environ.get("CPUINFER_DEBUG") == "1":
                    raise
                self.terminal.end_answer()
                self.terminal.warn(explain(error))

    # ---- turns ---------------------------------------------------------------------------------------------------------------------

    def ask(self, text: str) -> None:
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            self.answer()
        except Exception:
            self.messages = before  # the question could not be answered: the conversation stays as it was
            raise

    def answer(self) -> None:
        """Stream the answer to the last message. Ctrl-C stops it and keeps what was said."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        answer = self.model.chat([*head, *self.messages], **sampling(self.options))
        for text in self._texts(answer):
            if not self.options["json_output"]:
                self.terminal.write(text)
        self.terminal.clear()
        self.messages.append({"role": "assistant", "content": answer.text})
        self.stats = answer.stats
        if self.options["json_output"]:
            self.terminal.write(json.dumps({"text": answer.text, "tokens": answer.tokens, "finish_reason": answer.stats.finish_reason}, ensure_ascii=False) + "\n")
        self.terminal.end_answer()
        if answer.stats.finish_reason == "context":
            self.terminal.warn(f"the context of {self.model.context_length} tokens is full; /clear starts anew")
        self.terminal.note(stats_line(answer.stats, self.model.context_length))
        self.lines.poll()  # what was typed until now

    def _texts(self, answer: Any) -> Iterator[str]:
        """The texts of an answer, until its end or an interrupt; what was held back at an interrupt belongs to it."""
        reading = PromptProgress(self.terminal)

        def on_prompt(done: int, total: int) -> None:
            if self.lines.poll():
                raise _Stopped  # between two parts of a long prompt
            reading(done, total)

        answer.on_prompt = on_prompt
        try:
            while not self.lines.poll() and (event := next(answer, None)) is not None:
                yield event.text
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
            "/save!": partial(self._save, over=True),
            "/load": self._load,
        }
        if name in actions:
            actions[name](argument)
        else:
            self.terminal.warn(f"unknown command {name}; /help lists them")
        return True

    def _set_system(self, text: str) -> None:
        if (text or None) == self.system:
            self.terminal.warn("this is the system message already: nothing changed" if text else "there is no system message; /system TEXT sets one")
            return
        before, self.system = self.system, text or None
        self.messages.clear()
        self.terminal.note("system message set, conversation cleared" if text else f"system message removed, conversation cleared; it was: {before}")

    def _again(self, _: str) -> None:
        before = list(self.messages)
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            self.terminal.warn("there is no question to answer again")
            return
        try:
            self.answer()
        finally:
            if not self.messages[-1]["content"] or self.messages[-1]["role"] != "assistant":  # failed, or stopped before it said anything
                self.messages = before

    def _show_stats(self, _: str) -> None:
        if self.stats is None:
            self.terminal.warn("there is no answer yet")
        else:
            self.terminal.write(stats_line(self.stats, self.model.context_length) + "\n")

    def _save(self, name: str, over: bool = False) -> None:
        if not name:
            self.terminal.warn("give a file name: /save FILE")
            return
        path = os.path.expanduser(name)
        if os.path.lexists(path) and not os.path.isdir(path) and not over:
            self.terminal.warn(f"{path} is there already and was left alone; /save! {name} writes over it")
            return
        text = json.dumps({"model": self.model.name, "system": self.system, "messages": self.messages}, ensure_ascii=False, indent=1)
        file = Path(os.path.realpath(path))
        temporary = file.with_name(f".cpuinfer-{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, file)
        except OSError as error:  # which names a file that the user never did
            raise OSError(error.errno, f"{error.strerror or error}; the conversation is not saved", path) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        self.terminal.note(f"saved {len(self.messages)} messages to {path}")

    def _load(self, name: str) -> None:
        from ..tokenizers.messages import checked

        if not name:
            self.terminal.warn("give a file name: /load FILE")
            return
        try:
            data = json.loads(Path(os.path.expanduser(name)).read_text(encoding="utf-8"))
            messages, system, model = data["messages"], data.get("system"), data.get("model")
            if not isinstance(messages, list) or not isinstance(system, (str, type(None))):
                raise ValueError
            json.dumps(data, ensure_ascii=False).encode()  # halves of characters are no text
            messages = checked(messages) if messages else []
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.terminal.warn(f"{name} is not a saved conversation")
            return
        except CpuinferError as error:
            self.terminal.warn(f"{name} is not a conversation: {error}")
            return
        self.system, self.messages = system, messages
        self.terminal.note(f"loaded {len(messages)} messages")
        if isinstance(model, str) and model != self.model.name:
            self.terminal.warn(f"{name} was saved with another model, {model}; it goes on with {self.model.name}")
