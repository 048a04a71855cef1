"""The command line. Each module of this folder that has a function `register(app)` adds its commands; what a command needs is imported when it runs."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
from typing import Any, NoReturn

import typer

from ..version import __version__
from .terminal import PipeClosed, explain, harmless

app = typer.Typer(
    name="cpuinfer",
    help="Run quantized language models (GGUF) on an ordinary CPU.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"cpuinfer {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version and exit.")) -> None:
    pass


for _info in pkgutil.iter_modules(__path__):
    _module = importlib.import_module(f"{__name__}.{_info.name}")
    if hasattr(_module, "register"):
        _module.register(app)


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done; 1 the model or input cannot be used; 2 wrong usage; 130 interrupted."""
    gc.disable()  # a start makes a million lasting objects and no garbage; options.load turns collection on again
    try:
        # standalone_mode=False: interrupts and errors come here instead of being printed by click.
        result: Any = app(args=arguments, standalone_mode=False, prog_name="cpuinfer")
        _flush()
        _leave(result if isinstance(result, int) else 0)
    except Exception as error:
        _handle(error)
    except KeyboardInterrupt:
        _leave(130)


def _handle(error: Exception) -> NoReturn:
    name = type(error).__name__
    if isinstance(error, (BrokenPipeError, PipeClosed)):
        _quiet_pipe()
        _leave(0)
    if name == "Abort":  # click's own word for an interrupt
        _leave(130)
    if name == "Exit":
        _leave(getattr(error, "exit_code", 0))
    if name == "NoArgsIsHelpError":  # no command at all: the list of them
        print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
        _leave(2)
    if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # click's usage errors
        context = getattr(error, "ctx", None)
        hint = f" Try '{context.command_path} --help'." if context else ""
        _fail(f"{error.format_message().rstrip('.')}.{hint}", error.exit_code)
    if os.environ.get("CPUINFER_DEBUG") == "1":
        raise error
    _fail(explain(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    """One line on stderr."""
    _flush()
    line = harmless(" ".join(message.split()))
    try:
        print(f"cpuinfer: {line}", file=sys.stderr)
    except (OSError, ValueError, AttributeError):
        pass
    _leave(code)


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _quiet_pipe()
    except (OSError, ValueError):
        pass


def _quiet_pipe() -> None:
    """The reader is gone: what Python flushes at exit goes nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass


def _leave(code: int) -> NoReturn:
    sys.exit(code)
