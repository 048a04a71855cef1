"""cpuinfer bench: tokens per second of prefill (pp) and decoding (tg), as llama-bench counts them. Warm-up and compilation are not in the figures."""

from __future__ import annotations

import csv
import io
import json
import statistics
import time
from typing import Any

import typer

from .options import MODEL
from .terminal import Terminal

KEYS = ("model", "quant", "size_bytes", "parameters", "threads", "isa", "test", "batch", "tokens_per_second", "stddev", "repetitions")


def register(app: typer.Typer) -> None:
    app.command("bench", help="Measure tokens per second of prefill and decoding.")(bench)


def bench(
    model: str = MODEL,
    prompt: str = typer.Option("512", "-p", help="Prompt lengths to time (comma list; 0: none)."),
    generate: str = typer.Option("128", "-n", help="Numbers of tokens to generate (comma list; 0: none)."),
    depth: str = typer.Option("0", "-d", help="Tokens in the context before (comma list)."),
    threads: str = typer.Option("0", "-t", help="Threads (comma list; 0: automatic)."),
    repetitions: int = typer.Option(5, "-r", min=1, help="Repetitions."),
    batch: str = typer.Option("1", "-b", help="Sequences decoded together (comma list)."),
    json_output: bool = typer.Option(False, "--json"),
    csv_output: bool = typer.Option(False, "--csv"),
    markdown: bool = typer.Option(False, "--markdown"),
    machine: bool = typer.Option(False, "--machine", help="Measure the machine's limits instead: memory reads, 8-bit products."),
    profile: bool = typer.Option(False, "--profile", help="Show where the time of a step goes, op by op, for the first -p, -n and -d."),
) -> None:
    from ..models import store

    terminal = Terminal()
    if machine:
        _machine(terminal, _numbers(threads, "-t", "threads")[0], repetitions, json_output)
        return
    prompts, generates, depths = (_numbers(text, flag, "context_length") for text, flag in ((prompt, "-p"), (generate, "-n"), (depth, "-d")))
    thread_counts, batches = _numbers(threads, "-t", "threads"), _numbers(batch, "-b", "max_sequences")
    path = store.resolve(model, terminal.pulling)
    results = []
    for count in thread_counts:
        longest = max(depths) + max([*prompts, *generates]) + 8
        loaded = _load(path, count, longest, max(batches), terminal)
        with loaded:
            if profile:
                _profile(terminal, loaded, [n for n in (prompts[0], 1 if generates[0] else 0) if n], depths[0], json_output)
                return
            bench_one = _Bench(loaded, terminal, repetitions)
            for d in depths:
                results += [bench_one.prefill(p, d) for p in prompts if p]
                results += [bench_one.decode(n, d, b) for b in batches for n in generates if n]
    _show(terminal, results, json_output, csv_output, markdown)


def _numbers(text: str, flag: str, argument: str) -> list[int]:
    """A comma list of numbers, each in the range of this argument of a model."""
    from ..arguments import limited
    from ..errors import InvalidRequest

    try:
        return [limited(argument, int(part)) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"must be a whole number or a comma list of them, not {text!r}", param_hint=f"'{flag}'") from None
    except InvalidRequest as error:
        raise typer.BadParameter(str(error).removeprefix(argument).strip(), param_hint=f"'{flag}'") from None


def _load(path: Any, threads: int, context: int, sequences: int, terminal: Terminal) -> Any:
    from ..model import Model

    loaded = Model(path, threads=threads or None, context_length=context, max_sequences=sequences, on_progress=terminal.compiling)
    terminal.clear()
    return loaded


def _machine(terminal: Terminal, threads: int, repetitions: int, as_json: bool) -> None:
    from ..engine import measure

    facts = measure.machine(threads or None, repetitions)
    if as_json:
        terminal.write(json.dumps(facts, indent=1) + "\n")
        return
    terminal.write(f"{facts['cpu']}, {facts['isa']}, {facts['threads']} threads\n")
    terminal.write(f"memory reads      {facts['read_gb_s']:8.1f} GB/s\n8-bit products    {facts['dot4_gmac_s']:8.1f} G multiply-adds/s\n")


def _profile(terminal: Terminal, model: Any, token_counts: list[int], depth: int, as_json: bool) -> None:
    from ..engine import measure

    reports = {}
    for tokens in token_counts:
        rows = reports[f"{'pp' if tokens > 1 else 'tg'}{tokens}@d{depth}"] = measure.profile(model.engine, tokens, depth)
        if not as_json:
            terminal.write(f"{tokens} tokens at depth {depth}\n")
            cells = [[r["op"], str(r["count"]), f"{r['us']:.0f}", f"{r['bytes'] / r['us'] / 1e3:.1f}" if r["bytes"] else "", f"{100 * r['share']:.1f} %"] for r in rows]
            terminal.table(["op", "count", "µs", "GB/s", "share"], cells)
    if as_json:
        terminal.write(json.dumps(reports, indent=1) + "\n")


class _Bench:
    def __init__(self, model: Any, terminal: Terminal, repetitions: int):
        from ..kernels import isa

        self.model, self.terminal, self.repetitions = model, terminal, repetitions
        tensors = model.gguf.tensors.values()
        self.facts = {
            "model": model.name,
            "quant": _quant(model.gguf),
            "size_bytes": sum(t.data.nbytes for t in tensors),
            "parameters": sum(t.n_elements for t in tensors),
            "threads": model.engine.team.size,
            "isa": isa.current(),
        }
        self._salt = 0

    def _tokens(self, count: int) -> list[int]:
        """Different each time, so that nothing is found in the cache."""
        import random

        self._salt += 1
        source = random.Random(self._salt)
        return [source.randrange(self.model.tokenizer.n_vocab) for _ in range(count)]

    def _params(self, count: int) -> Any:
        from ..engine.sequence import SamplingParams

        return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)

    def _prepared(self, depth: int, sequences: int, steps: int) -> list[Any]:
        """Sequences whose first `depth` tokens are computed (at least one), each with one token made."""
        engine = self.model.engine
        made = [engine.add(self._tokens(max(1, depth)), self._params(steps)) for _ in range(sequences)]
        while any(s.n_generated < 1 for s in made):
            engine.step()
        return made

    def prefill(self, count: int, depth: int) -> dict[str, Any]:
        def once() -> float:
            engine = self.model.engine
            before = self._tokens(depth)
            if depth:
                first = engine.add(before + self._tokens(1), self._params(0))
                while first.finish_reason is None:
                    engine.step()
            sequence = engine.add(before + self._tokens(count), self._params(0))
            started = time.perf_counter()
            while sequence.finish_reason is None:
                engine.step()
            computed = len(sequence.tokens) - sequence.n_cached
            return computed / (time.perf_counter() - started)

        return self._measure(f"pp{count}", depth, 1, once)

    def decode(self, count: int, depth: int, sequences: int) -> dict[str, Any]:
        def once() -> float:
            engine = self.model.engine
            made = self._prepared(depth, sequences, count + 1)
            started = time.perf_counter()
            while engine.has_work():
                engine.step()
            seconds = time.perf_counter() - started
            return sum(s.n_generated - 1 for s in made) / seconds

        return self._measure(f"tg{count}", depth, sequences, once)

    def _measure(self, test: str, depth: int, sequences: int, once: Any) -> dict[str, Any]:
        name = f"{test}@d{depth}" if depth else test
        once()  # warm-up
        speeds = []
        for i in range(self.repetitions):
            self.terminal.progress(f"{name}  {i + 1}/{self.repetitions}")
            speeds.append(once())
        self.terminal.clear()
        deviation = statistics.stdev(speeds) if len(speeds) > 1 else 0.0
        return self.facts | {
            "test": name,
            "batch": sequences,
            "tokens_per_second": statistics.mean(speeds),
            "stddev": deviation,
            "repetitions": self.repetitions,
        }


def _quant(file: Any) -> str:
    """The type that most weights have."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.n_elements
    return max(sizes, key=lambda name: sizes[name])


def _show(terminal: Terminal, results: list[dict[str, Any]], as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    results = [{key: r[key] for key in KEYS} for r in results]
    if as_json:
        terminal.write(json.dumps(results, indent=1) + "\n")
        return
    if as_csv:
        out = io.StringIO()
        writer = csv.DictWriter(out, KEYS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(results)
        terminal.write(out.getvalue())
        return
    columns = ["model", "quant", "size", "threads", "isa", "test", "batch", "tokens/s"]
    rows = [
        [r["model"], r["quant"], f"{r['size_bytes'] / 1e6:.0f} MB", str(r["threads"]), r["isa"], r["test"], str(r["batch"]), f"{r['tokens_per_second']:.1f} ± {r['stddev']:.1f}"]
        for r in results
    ]
    if as_markdown:
        lines = [columns, ["---"] * len(columns), *rows]
        terminal.write("".join(f"| {' | '.join(line)} |\n" for line in lines))
    else:
        terminal.table(columns, rows)
