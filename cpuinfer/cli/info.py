"""cpuinfer info: what a file holds, what it needs, whether it runs here; or what this machine has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from .options import MODEL
from .terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("info", help="Show a model's metadata, tensors, memory and whether it runs here; without MODEL and none pulled: this machine.")(info)


def info(model: str = MODEL, json_output: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    from ..models import catalog, store

    terminal = Terminal()
    if model is None and not store.path_of(catalog.default()).is_file():
        report: dict[str, Any] = {"machine": machine()}
    else:
        path = store.resolve(model, terminal.pulling)
        terminal.clear()
        report = describe(path) | {"machine": machine()}
    if json_output:
        terminal.write(json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    else:
        terminal.write("".join(f"{line}\n" for line in _lines(report)))


def machine() -> dict[str, Any]:
    """This CPU and this user's folders."""
    from ..engine.memory import available_memory
    from ..kernels import isa, jit
    from ..kernels.threads import default_threads, usable_cpus
    from ..models import store

    return {
        "cpu": jit.cpu_name(),
        "isa": isa.current(),
        "isas": list(isa.available()),
        "threads": default_threads(),
        "usable_cpus": usable_cpus(),
        "available_memory_bytes": available_memory(),
        "kernel_cache": str(jit.cache_root()),
        "models": str(store.home()),
    }


def describe(path: Path) -> dict[str, Any]:
    """A file's facts; its weights are not read."""
    from ..engine.kv_cache import token_bytes
    from ..errors import CpuinferError
    from ..formats.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        types: dict[str, dict[str, int]] = {}
        for tensor in file.tensors.values():
            entry = types.setdefault(tensor.type.name, {"tensors": 0, "weights": 0, "bytes": 0})
            entry["tensors"] += 1
            entry["weights"] += tensor.n_elements
            entry["bytes"] += tensor.data.nbytes
        report: dict[str, Any] = {
            "file": str(file.path),
            "size_bytes": file.size_bytes,
            "gguf_version": file.version,
            "architecture": str(file.metadata.get("general.architecture", "")),
            "parameters": sum(t["weights"] for t in types.values()),
            "tensors": types,
            "metadata": {key: _short(value) for key, value in file.metadata.items()},
        }
        try:
            from .. import architectures, tokenizers

            program = architectures.build(file)
            tokenizers.load(file.metadata)
            trained = program.hyperparameters.context_length
            report |= {
                "runs": True,
                "reason": None,
                "context_length": trained,
                "kv_bytes_per_token": token_bytes(program.kv_layers, "f16", "f16"),
                "kv_bytes_at_context": {str(n): n * token_bytes(program.kv_layers, "f16", "f16") for n in sorted({min(2048, trained), trained})},
            }
        except CpuinferError as error:
            report |= {"runs": False, "reason": str(error)}
    return report


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= 200 else f"{value[:200]}… ({len(value)} characters)"
    if isinstance(value, (bool, int, float)):
        return value
    return f"[{len(value)} values]" if len(value) > 8 else [v.item() if hasattr(v, "item") else str(v) for v in value]


def _lines(report: dict[str, Any]) -> list[str]:
    lines = []
    if "file" in report:
        lines += [
            f"file          {report['file']} ({report['size_bytes'] / 1e6:.1f} MB, GGUF version {report['gguf_version']})",
            f"architecture  {report['architecture']}, {report['parameters'] / 1e6:.1f} M parameters",
        ]
        lines.append("runs here     yes" if report["runs"] else f"runs here     no: {report['reason']}")
        if report["runs"]:
            lines += [f"KV cache      {size / 1e6:.0f} MB at {n} tokens (f16)" for n, size in report["kv_bytes_at_context"].items()]
        lines += [f"tensors       {n['tensors']:>5} {name:8} {n['bytes'] / 1e6:10.1f} MB" for name, n in report["tensors"].items()]
        lines += [f"  {key} = {value!r}" for key, value in report["metadata"].items()]
    m = report["machine"]
    lines += [
        f"CPU           {m['cpu']}, instruction sets: {', '.join(m['isas'])} (in use: {m['isa']})",
        f"threads       {m['threads']} (of {m['usable_cpus']} usable CPUs), {m['available_memory_bytes'] / 2**30:.1f} GiB memory available",
        f"kernel cache  {m['kernel_cache']}",
        f"models        {m['models']}",
    ]
    return lines
