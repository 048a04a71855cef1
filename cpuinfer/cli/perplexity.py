"""cpuinfer perplexity: how well a model predicts a text, counted as llama.cpp's tool does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer

from .options import MODEL_ONLY, load, with_options
from .terminal import Terminal, decoded


def register(app: typer.Typer) -> None:
    app.command("perplexity", help="Perplexity of a model over a text file. The second half of each chunk of -c tokens (default 512) is scored.")(perplexity)


@with_options(MODEL_ONLY)
def perplexity(
    model: str = typer.Argument(..., metavar="MODEL"),
    file: Path = typer.Argument(..., metavar="FILE"),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object."),
    **options: Any,
) -> None:
    from ..evaluation import perplexity as evaluate

    terminal = Terminal()
    context = options["ctx_size"] or 512
    if context < 4:
        raise typer.BadParameter(f"a context of {context} tokens is too short to score; use -c 512", param_hint="'-c' / '--ctx-size'")
    text = decoded(file.read_bytes(), terminal)
    with load(model, options | {"ctx_size": context}, terminal) as loaded:
        started = time.perf_counter()
        result = evaluate(loaded, text, context, lambda done, total, value: terminal.progress(f"{done}/{total} chunks, perplexity {value:.4f}"))
        seconds = time.perf_counter() - started
    terminal.clear()
    result["tokens_per_second"] = result["chunks"] * context / seconds
    if json_output:
        terminal.write(json.dumps(result) + "\n")
    else:
        terminal.write(f"perplexity {result['perplexity']:.4f} +/- {result['stderr']:.4f} ({result['tokens']} tokens scored, {result['chunks']} chunks of {context})\n")
