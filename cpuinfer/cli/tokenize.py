"""cpuinfer tokenize: ids and pieces of a text."""

from __future__ import annotations

import json
import sys

import typer

from .terminal import Terminal, is_terminal, read_stdin


def register(app: typer.Typer) -> None:
    app.command("tokenize", help="Show the token ids and pieces of a text, given as an argument or piped into stdin.")(tokenize)


def tokenize(
    model: str = typer.Argument(..., metavar="MODEL"),
    text: str = typer.Argument(None, metavar="[TEXT]", show_default=False),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object."),
    no_special: bool = typer.Option(False, "--no-special", help="Special tokens in the text are plain text."),
    no_bos: bool = typer.Option(False, "--no-bos", help="Add no beginning-of-text token."),
) -> None:
    from .. import tokenizers
    from ..formats.gguf import GGUFFile
    from ..models import store

    terminal = Terminal()
    if text is None:
        if is_terminal(sys.stdin):
            raise typer.BadParameter("there is no text: give it as an argument or pipe it into stdin", param_hint="TEXT")
        text = read_stdin(terminal)
    path = store.resolve(model, terminal.pulling)
    terminal.clear()
    with GGUFFile.open(path) as file:
        tokenizer = tokenizers.load(file.metadata)
    ids = tokenizer.encode(text, parse_special=not no_special, add_bos=False if no_bos else None)
    pieces = [tokenizer.piece(i) for i in ids]
    if json_output:
        terminal.write(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False) + "\n")
    else:
        terminal.write("".join(f"{i:>7}  {piece!r}\n" for i, piece in zip(ids, pieces)))
