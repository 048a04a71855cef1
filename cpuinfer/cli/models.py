"""cpuinfer pull, list, rm, compile: the local model store and the kernel cache."""

from __future__ import annotations

from typing import Any

import typer

from .options import MODEL, MODEL_ONLY, load, with_options
from .terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("pull", help="Fetch a model into the local store.")(pull)
    app.command("list", help="List the models that are here, and those that can be pulled by name.")(list_models)
    app.command("rm", help="Delete a model from the local store.")(remove)
    app.command("compile", help="Compile every kernel that a model needs into the cache.")(compile_kernels)


def pull(name: str = typer.Argument(..., metavar="NAME")) -> None:
    from ..models import store

    terminal = Terminal()
    path = store.pull(name, terminal.pulling)
    terminal.clear()
    terminal.write(f"{path}\n")


def list_models() -> None:
    from ..models import catalog, store

    terminal = Terminal()
    here = dict(store.local())
    rows = [[name, _size(path.stat().st_size), "here", str(path)] for name, path in here.items()]
    rows += [[e.name, _size(e.size), "can be pulled", e.description] for e in catalog.entries().values() if e.name not in here]
    terminal.table(["name", "size", "where", "file"], rows)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def remove(name: str = typer.Argument(..., metavar="NAME")) -> None:
    from ..models import store

    Terminal().write(f"removed {store.remove(name)}\n")


@with_options(MODEL_ONLY)
def compile_kernels(model: str = MODEL, **options: Any) -> None:
    terminal = Terminal()
    with load(model, options, terminal) as loaded:
        from ..kernels import jit

        terminal.write(f"{loaded.name}: kernels ready in {loaded.timings['compile_s']:.1f} s ({jit.cache_folder()})\n")
