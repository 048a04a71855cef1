"""cpuinfer run: one answer on stdout."""

from __future__ import annotations

import json
from typing import Any

import typer

from .options import GENERATION, MODEL, load, sampling, with_options
from .terminal import PromptProgress, Terminal, read_stdin, stats_line

HELP = "Answer one prompt. Text piped into stdin is the prompt, or follows PROMPT after a blank line; its last line's end is not part of it, except with --raw."


def register(app: typer.Typer) -> None:
    app.command("run", help=HELP)(run)


@with_options(GENERATION)
def run(
    model: str = MODEL,
    prompt: list[str] = typer.Argument(None, metavar="[PROMPT]...", help="The prompt; words are joined by spaces.", show_default=False),
    raw: bool = typer.Option(False, "--raw", help="Plain completion, no chat template; piped text to the last byte."),
    system: str = typer.Option(None, "--system", help="System message.", show_default=False),
    **options: Any,
) -> None:
    terminal = Terminal(options["quiet"], options["verbose"])
    name, words = _model_or_prompt(model, prompt or [])
    piped = read_stdin(terminal)
    if not raw:  # what `echo` and some shells add: the end of the last line, a byte order mark
        piped = piped.removeprefix("\ufeff").removesuffix("\r\n" if piped.endswith("\r\n") else "\n")
    text = "\n\n".join(part for part in (" ".join(words), piped) if part)
    if not text:
        raise typer.BadParameter("there is no prompt: give one as an argument or pipe text into stdin (for a conversation: cpuinfer chat)", param_hint="PROMPT")
    with load(name, options, terminal) as loaded:
        if raw:
            answer = loaded.generate(text, **sampling(options))
        else:
            if loaded.template.note:
                terminal.note(loaded.template.note)
            messages = [{"role": "system", "content": system}] if system else []
            answer = loaded.chat([*messages, {"role": "user", "content": text}], **sampling(options))
        answer.on_prompt = PromptProgress(terminal)
        with answer:
            for event in answer:
                if not options["json_output"]:
                    terminal.write(event.text)
        if options["json_output"]:
            terminal.write(json.dumps(_report(loaded, answer), ensure_ascii=False) + "\n")
        else:
            terminal.end_answer()
        if answer.stats.finish_reason == "context":
            terminal.warn(f"the context of {loaded.context_length} tokens is full: the answer is cut; use a larger one (-c)")
        if options["verbose"]:
            terminal.note(stats_line(answer.stats, loaded.context_length))


def _model_or_prompt(model: str | None, words: list[str]) -> tuple[str | None, list[str]]:
    """MODEL may be left out: a first word that names no model and no file is part of the prompt."""
    import difflib
    import os

    from ..models import catalog

    names = catalog.entries()
    if model is None or model in names or model.startswith("hf:") or model.endswith(".gguf"):
        return model, words
    # A mistyped name is a name: it is better refused than asked of another model.
    mistyped = bool(difflib.get_close_matches(model.lower(), names, cutoff=0.75))
    if mistyped or os.path.exists(model) or (os.sep in model and " " not in model):
        return model, words
    return None, [model, *words]


def _report(model: Any, answer: Any) -> dict[str, Any]:
    stats = answer.stats
    return {
        "model": model.name,
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": stats.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "timings": {
            "load_s": model.timings["load_s"],
            "compile_s": model.timings["compile_s"],
            "prompt_s": stats.prompt_s,
            "prompt_tokens_per_second": stats.prompt_tokens_per_second,
            "generate_s": stats.generate_s,
            "tokens_per_second": stats.tokens_per_second,
            "time_to_first_token_s": stats.time_to_first_token_s,
        },
    }
