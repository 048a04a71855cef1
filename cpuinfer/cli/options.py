"""Options that several commands share, and how they load a model."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import typer

from ..errors import InvalidRequest
from .terminal import Terminal

MODEL = typer.Argument(None, metavar="[MODEL]", help="A .gguf file, a name from `cpuinfer list`, or hf:OWNER/REPO[:QUANT_OR_FILE]. Default: smollm2-135m.", show_default=False)

# name of the parameter -> (type, default, flags, help). Names and defaults are llama.cpp's where both have them.
_MODEL_OPTIONS: dict[str, tuple[Any, Any, tuple[str, ...], str]] = {
    "ctx_size": (int, 0, ("-c", "--ctx-size"), "Context in tokens; 0: the model's own, capped by memory."),
    "threads": (int, 0, ("-t", "--threads"), "Threads; 0: the physical cores this process may use."),
    "batch_size": (int, 512, ("-b", "--batch-size"), "Prompt tokens computed in one step."),
    "cache_type_k": (str, "f16", ("--cache-type-k",), "Type of cached keys: f16, q8_0 or f32."),
    "cache_type_v": (str, "f16", ("--cache-type-v",), "Type of cached values: f16, q8_0 or f32."),
}
_SAMPLING_OPTIONS: dict[str, tuple[Any, Any, tuple[str, ...], str]] = {
    "predict": (int, -1, ("-n", "--predict"), "Tokens to generate at most; -1: until the end of the answer or the context."),
    "temp": (float, 0.8, ("--temp",), "Temperature; 0: always the likeliest token."),
    "top_k": (int, 40, ("--top-k",), "Keep the k likeliest tokens; 0: all."),
    "top_p": (float, 0.95, ("--top-p",), "Keep the likeliest tokens that together have this probability; 1: all."),
    "min_p": (float, 0.05, ("--min-p",), "Drop tokens less likely than this share of the likeliest; 0: none."),
    "typical": (float, 1.0, ("--typical",), "Locally typical sampling; 1: off."),
    "repeat_penalty": (float, 1.0, ("--repeat-penalty",), "Divide the logits of tokens that occurred; 1: off."),
    "repeat_last_n": (int, 64, ("--repeat-last-n",), "Tokens that penalties look at; 0: none, -1: all."),
    "presence_penalty": (float, 0.0, ("--presence-penalty",), "Subtract from the logits of tokens that occurred."),
    "frequency_penalty": (float, 0.0, ("--frequency-penalty",), "The same for each time that they did."),
    "seed": (int, -1, ("--seed",), "Seed of the random numbers; -1: random."),
    "stop": (list[str], [], ("--stop",), "Text that ends the answer (repeatable)."),
    "ignore_eos": (bool, False, ("--ignore-eos",), "Go on after the end of the answer."),
}
_OUTPUT_OPTIONS: dict[str, tuple[Any, Any, tuple[str, ...], str]] = {
    "json_output": (bool, False, ("--json",), "Print one JSON object."),
    "quiet": (bool, False, ("--quiet",), "No notes or progress."),
    "verbose": (bool, False, ("--verbose",), "Notes and timings even where stderr is not a terminal."),
}
# Names of the Python interface, where they differ.
ARGUMENTS = {"ctx_size": "context_length", "predict": "max_tokens", "temp": "temperature", "typical": "typical_p"}
GENERATION = _MODEL_OPTIONS | _SAMPLING_OPTIONS | _OUTPUT_OPTIONS
MODEL_ONLY = _MODEL_OPTIONS


def with_options(table: dict[str, tuple[Any, Any, tuple[str, ...], str]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: replaces a command's **options by these options, which it gets as a dict."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_option(name, default, flags, text), annotation=kind)
            for name, (kind, default, flags, text) in table.items()
        ]

        def command(**values: Any) -> Any:
            return function(**{p.name: values.pop(p.name) for p in own}, **values)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        command.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in [*keyword, *shared]}
        return command

    return decorate


def _check(name: str, value: Any) -> None:
    """Raises InvalidRequest for a value that the Python interface refuses: the ranges are written there."""
    from ..arguments import limited, one_of
    from ..engine.sequence import SamplingParams

    argument = ARGUMENTS.get(name, name)
    if name in _SAMPLING_OPTIONS:
        SamplingParams(**{argument: value})
    elif name.startswith("cache_type"):
        from ..kernels.records import CACHE_TYPES

        one_of(name, value, CACHE_TYPES)
    else:
        limited(argument, value)


def _option(name: str, default: Any, flags: tuple[str, ...], text: str) -> Any:
    """Wrong values are wrong usage, told before anything is loaded."""

    def check(value: Any) -> Any:
        if value != default:
            try:
                _check(name, value)
            except InvalidRequest as error:
                raise typer.BadParameter(str(error).removeprefix(ARGUMENTS.get(name, name)).strip()) from error
        return value

    return typer.Option(default, *flags, help=text, callback=None if name in _OUTPUT_OPTIONS else check)


def sampling(options: dict[str, Any]) -> dict[str, Any]:
    """SamplingParams' names for the command line's."""
    return {ARGUMENTS.get(name, name): options[name] for name in _SAMPLING_OPTIONS}


def load(model: str | None, options: dict[str, Any], terminal: Terminal, **more: Any) -> Any:
    """The model, pulled and compiled if needed, with progress on stderr."""
    from ..model import Model
    from ..models import store

    path = store.resolve(model, terminal.pulling)
    terminal.clear()
    loaded = Model(
        path,
        threads=options.get("threads") or None,
        context_length=options.get("ctx_size") or None,
        cache_type=(options.get("cache_type_k", "f16"), options.get("cache_type_v", "f16")),
        batch_size=options.get("batch_size", 512),
        on_progress=terminal.compiling,
        **more,
    )
    gc.freeze()  # what was loaded stays; only what comes now is looked through (see cli.main)
    gc.enable()
    terminal.clear()
    for note in loaded.notes:
        terminal.note(note)
    return loaded
