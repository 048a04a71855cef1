"""hf:OWNER/REPO[:QUANT_OR_FILE]: GGUF files from the Hugging Face Hub, through huggingface_hub (the extra `hf`).

They lie in FOLDER/OWNER/REPO as they do in the repository. A file that is here is used as it is: the network is asked only for what is missing, and once for which
file `hf:OWNER/REPO` means (kept in the file `.default` beside it).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import MachineError, ModelNotFound
from .files import folder_bytes, lock

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_A_MODEL = re.compile("mmproj|imatrix", re.IGNORECASE)  # companions of models: never chosen unless asked for
MOST_PARTS = 1000
_OURS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)  # the fault is this machine's, not the network's


def pull(spec: str, folder: Path, on_progress: Callable[[str, int, int], None] | None = None) -> Path:
    """Fetch the chosen file (all parts, if split) into folder/OWNER/REPO; gives the first part. Default: the Q4_K_M file, else the first.

    Raises ModelNotFound for a wrong name, a repository or file that cannot be had, and a file whose sha256 is not the one that the hub states.
    """
    repository, _, wanted = spec.partition(":")
    if not _NAME.fullmatch(repository) or ".." in repository:
        raise ModelNotFound(f"hf:{spec} is not hf:OWNER/REPO[:QUANT_OR_FILE]")
    target = folder / repository
    if present := _present(target, wanted):
        return target / present
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars
        from huggingface_hub.utils import logging as hub_logging
    except ImportError:
        raise ModelNotFound("hf: models need the package huggingface_hub; install it with: pip install 'cpuinfer[hf]'") from None
    disable_progress_bars()  # ours is shown, and only on a terminal
    hub_logging.set_verbosity_error()
    try:
        info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
        files = {f.rfilename: f for f in info.siblings or [] if f.rfilename.endswith(".gguf") and _is_plain(f.rfilename)}
        chosen = choose(sorted(files), wanted)
        if chosen is None:
            raise ModelNotFound(f"hf:{spec}: no such GGUF file; the repository has: {', '.join(sorted(files)[:12]) or 'none'}")
        parts = all_parts(chosen)
        if missing := [name for name in parts if name not in files]:
            raise ModelNotFound(f"hf:{spec}: the repository lacks {missing[0]}, a part of {chosen}; choose another file")
        # Files arrive beside the store and move into it when their sha256 is right; what an interrupted pull leaves there is continued by the next.
        arriving = folder.with_name(f"{folder.name}-arriving") / repository
        arriving.mkdir(parents=True, exist_ok=True)
        size = sum(files[name].size or 0 for name in parts)
        with lock(arriving):
            for name in parts:
                if (target / name).is_file():
                    continue
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                for done in _arriving(lambda name=name: huggingface_hub.hf_hub_download(repository, name, local_dir=arriving), arriving):  # type: ignore[misc]
                    if on_progress:
                        on_progress(f"hf:{repository}", min(size, done + sum(files[p].size or 0 for p in parts if (target / p).is_file())), size)
                _check(arriving / name, files[name])
                os.replace(arriving / name, target / name)
            shutil.rmtree(arriving, ignore_errors=True)
        if not wanted:
            (target / ".default").write_text(chosen, encoding="utf-8")
    except ModelNotFound:
        raise
    except Exception as error:  # the library raises many kinds: network, missing, gated
        if isinstance(error, OSError) and error.errno in _OURS:
            raise MachineError(f"cannot store hf:{spec} in {folder}: {error.strerror}; free space there or set CPUINFER_HOME") from error
        reason = " ".join(str(error).split())[:200]
        raise ModelNotFound(f"cannot fetch hf:{spec}: {reason}; check the name and the network") from error
    return target / chosen


def local(folder: Path) -> list[tuple[str, Path]]:
    """("hf:OWNER/REPO:FILE", path) of every whole model in the folder; of a split one, the first part."""
    found = []
    for path in sorted(folder.glob("*/*/**/*.gguf")):
        name = path.relative_to(folder).as_posix()
        owner, repository, file = name.split("/", 2)
        if choose([file], file) and _is_whole(folder / owner / repository, file):
            found.append((f"hf:{owner}/{repository}:{file}", path))
    return found


def choose(names: list[str], wanted: str) -> str | None:
    """The file that QUANT_OR_FILE means, of a sorted list; of a split one, the first part."""
    firsts = [n for n in names if not (m := _PART.search(n)) or m[1] == "00001"]
    if wanted:
        exact = [n for n in firsts if n == wanted]
        alike = [n for n in firsts if re.search(rf"(^|[^A-Za-z0-9]){re.escape(wanted)}([^A-Za-z0-9_]|$)", n, re.IGNORECASE)]
        return next(iter([*exact, *(n for n in alike if not _NOT_A_MODEL.search(n)), *alike]), None)
    models = [n for n in firsts if not _NOT_A_MODEL.search(n)]
    return next((n for n in models if re.search("Q4_K_M", n, re.IGNORECASE)), next(iter(models), None))


def all_parts(name: str) -> list[str]:
    """Names of all parts of a split file, or the name alone."""
    match = _PART.search(name)
    if not match:
        return [name]
    if int(match[2]) > MOST_PARTS:
        raise ModelNotFound(f"{name} claims to have {int(match[2])} parts, more than {MOST_PARTS}; choose another file")
    stem = name[: match.start()]
    return [f"{stem}-{n:05d}-of-{match[2]}.gguf" for n in range(1, int(match[2]) + 1)]


def _present(target: Path, wanted: str) -> str | None:
    if not wanted:
        try:
            wanted = (target / ".default").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
    names = sorted(p.relative_to(target).as_posix() for p in target.rglob("*.gguf"))
    name = choose(names, wanted)
    return name if name and _is_whole(target, name) else None


def _is_whole(target: Path, name: str) -> bool:
    return all((target / part).is_file() for part in all_parts(name))


def _is_plain(name: str) -> bool:
    """Remote names must stay inside the folder."""
    parts = name.split("/")
    return not any(p in ("", ".", "..") or "\\" in p or ":" in p or "\0" in p for p in parts)


def _check(path: Path, remote: Any) -> None:
    """Compare a file's sha256 with the one that the hub states, where it states one; a damaged file is deleted."""
    lfs = remote.lfs
    expected = (lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)) if lfs else None
    if not expected:
        return
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        path.unlink()
        raise ModelNotFound(f"{remote.rfilename} arrived damaged: its sha256 is {digest.hexdigest()}, not {expected}; try again")


def _arriving(work: Callable[[], object], folder: Path) -> Iterator[int]:
    """Does the work on a thread and gives the bytes in the folder meanwhile. Interrupts are served at once; an error of the work is raised at its end."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    while thread.is_alive():
        yield folder_bytes(folder)
        thread.join(0.2)
    if failures:
        raise failures[0]
