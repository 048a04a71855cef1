"""What goes to the terminal: answers to stdout as they come, notes and progress to stderr. The only user of rich.

stdout carries the answer and nothing else. Progress shows only where stderr is a terminal (notes also with --verbose), and no control codes reach a stream that is not one.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ..errors import CpuinferError

# Control characters that a model may write but a terminal must not obey; tab and newline are harmless.
_HARMLESS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if code not in (9, 10)} | {13: ""}


def harmless(text: str) -> str:
    """Text from a model, a file or the user with its control characters made visible, and what is no text at all (lone surrogates) replaced."""
    return text.translate(_HARMLESS).encode("utf-8", "replace").decode("utf-8")


def is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


class PipeClosed(Exception):
    """Whoever read our output is gone. (Not an OSError: click would turn that into exit code 1.)"""


class Terminal:
    """quiet: nothing on stderr but errors. verbose: notes even if stderr is not a terminal."""

    def __init__(self, quiet: bool = False, verbose: bool = False):
        self._errors_shown = is_terminal(sys.stderr)
        self.notes = not quiet and (self._errors_shown or verbose)
        self._progress = not quiet and self._errors_shown
        self.colour = self._errors_shown and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._stdout_terminal = is_terminal(sys.stdout)
        self._line_shown = False
        self.at_line_start = True

    # ---- answers -------------------------------------------------------------------------------------------------------------------

    def write(self, text: str) -> None:
        """Text of an answer, at once. On a terminal control characters are shown, not obeyed."""
        if not text or sys.stdout is None:
            return
        self.clear()
        if self._stdout_terminal:
            text = harmless(text)
        try:
            buffer = getattr(sys.stdout, "buffer", None)
            if buffer is None:
                sys.stdout.write(text)
            else:  # UTF-8 whatever the locale says
                sys.stdout.flush()
                buffer.write(text.encode("utf-8", "replace"))
                buffer.flush()
            sys.stdout.flush()
        except BrokenPipeError:
            raise PipeClosed from None
        self.at_line_start = text.endswith("\n")

    def end_answer(self) -> None:
        if not self.at_line_start:
            self.write("\n")
        self.at_line_start = True

    # ---- notes and progress --------------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A dim line on stderr."""
        if self.notes:
            self.clear()
            text = harmless(text)
            self._error(f"\x1b[2m{text}\x1b[0m\n" if self.colour else f"{text}\n")

    def warn(self, text: str) -> None:
        """A line on stderr that --quiet does not hide."""
        self.clear()
        self._error(f"cpuinfer: {harmless(' '.join(text.split()))}\n")

    def progress(self, text: str) -> None:
        """A line that the next one replaces."""
        if self._progress:
            width = _columns() - 1
            text = harmless(text)[:width]
            self._error(f"\r{text:<{width}}\r" if not self.colour else f"\r\x1b[2m{text}\x1b[0m\x1b[K\r")
            self._line_shown = True

    def clear(self) -> None:
        """Remove a progress line."""
        if self._line_shown:
            self._line_shown = False
            self._error("\r\x1b[K" if self.colour else "\r" + " " * (_columns() - 1) + "\r")

    def _error(self, text: str) -> None:
        try:
            if sys.stderr is not None:
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError, UnicodeError):
            pass

    def compiling(self, done: int, total: int, name: str) -> None:
        from ..kernels import jit

        if done == 0 and not self._progress:
            self.note(f"compiling {total} kernels for {jit.cpu_name()} (first run only)")
        self.progress(f"Compiling {total} kernels for {jit.cpu_name()} (first run only)  {done}/{total} {name}")

    def pulling(self, what: str, done: int, total: int) -> None:
        share = done / total if total else 0
        bar = "#" * int(24 * share)
        self.progress(f"Pulling {what}  [{bar:<24}] {share:4.0%}  {done / 1e6:.0f}/{total / 1e6:.0f} MB")

    # ---- tables --------------------------------------------------------------------------------------------------------------------

    def table(self, columns: list[str], rows: list[list[str]]) -> None:
        """A table on stdout: rich's on a terminal, tab-separated elsewhere."""
        if not self._stdout_terminal:
            for row in [columns, *rows]:
                self.write("\t".join(row) + "\n")
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        Console().print(table)


def _columns() -> int:
    try:
        return max(20, os.get_terminal_size(sys.stderr.fileno()).columns)
    except (OSError, ValueError, AttributeError):
        return 80


class PromptProgress:
    """Progress line of a long prompt: tokens read, speed, time left. Called as a Generation's on_prompt(done, total)."""

    SHORTEST = 256

    def __init__(self, terminal: Terminal):
        self._terminal, self._started = terminal, time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        if total <= self.SHORTEST:
            return
        speed = done / max(1e-9, time.perf_counter() - self._started)
        self._terminal.progress(f"Reading the prompt  {done}/{total} tokens  {speed:.0f} tokens/s  {(total - done) / max(speed, 1e-9):.0f} s left")


def read_stdin(terminal: Terminal) -> str:
    """Everything piped into stdin; "" where stdin is a terminal or closed. Bytes that are not UTF-8 become U+FFFD, with a warning."""
    if sys.stdin is None or is_terminal(sys.stdin):
        return ""
    try:
        data = sys.stdin.buffer.read()
    except (OSError, ValueError, AttributeError):
        return ""
    return decoded(data, terminal)


def decoded(data: bytes, terminal: Terminal) -> str:
    """Input as text. Bytes that are not UTF-8 become U+FFFD, with a warning."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        terminal.warn("the input is not UTF-8: what cannot be read becomes \ufffd")
        return data.decode("utf-8", "replace")


def stats_line(stats: Any, context_length: int) -> str:
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    speed = f"{stats.prompt_tokens_per_second:.0f} tokens/s"
    if stats.finish_reason == "cancelled" and not stats.generated_tokens:
        read = stats.cached_tokens + stats.read_tokens
        return f"[stopped while the prompt was read: {read} of {stats.prompt_tokens} tokens{cached}, {speed}, context {read}/{context_length}]"
    used = stats.prompt_tokens + stats.generated_tokens
    return (
        f"[{stats.generated_tokens} tokens, {stats.tokens_per_second:.1f} tokens/s, first after {stats.time_to_first_token_s:.2f} s, "
        f"prompt {speed if stats.read_tokens > 1 else f'{stats.prompt_tokens} tokens'}{cached}, context {used}/{context_length}]"
    )


def explain(error: Exception) -> str:
    """One line for the user: what failed, where, the next step."""
    if isinstance(error, CpuinferError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory; use a smaller context (-c) or model"
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or error}"
    return f"unexpected {type(error).__name__}: {error}. This is a fault of cpuinfer; CPUINFER_DEBUG=1 shows where"
