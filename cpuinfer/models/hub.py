"""hf:OWNER/REPO[:QUANT_OR_FILE]: GGUF files from the Hugging Face Hub, through huggingface_hub (the extra `hf`)."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import ModelNotFound

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def pull(spec: str, folder: Path) -> Path:
    """Fetch the chosen file (all parts, if split) into folder/OWNER/REPO; gives the first part. Default: the Q4_K_M file, else the first."""
    repository, _, wanted = spec.partition(":")
    if not _NAME.fullmatch(repository) or ".." in repository:
        raise ModelNotFound(f"hf:{spec} is not hf:OWNER/REPO[:QUANT_OR_FILE]")
    target = folder / repository
    if present := _choose(sorted(p.relative_to(target).as_posix() for p in target.rglob("*.gguf")), wanted, strict=True):
        if all((target / name).is_file() for name in _all_parts(present)):
            return target / present
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError:
        raise ModelNotFound("hf: models need the package huggingface_hub; install it with: pip install 'cpuinfer[hf]'") from None
    try:
        names = sorted(n for n in HfApi().list_repo_files(repository) if n.endswith(".gguf") and _is_plain(n))
        chosen = _choose(names, wanted)
        if chosen is None:
            raise ModelNotFound(f"hf:{spec}: no such GGUF file; the repository has: {', '.join(names[:12]) or 'none'}")
        for name in _all_parts(chosen):
            hf_hub_download(repository, name, local_dir=target)
    except ModelNotFound:
        raise
    except Exception as error:  # the library raises many kinds: network, missing, gated
        reason = " ".join(str(error).split())[:200]
        raise ModelNotFound(f"cannot fetch hf:{spec}: {reason}; check the name and the network") from error
    return target / chosen


def _is_plain(name: str) -> bool:
    """Remote names must stay inside the folder."""
    parts = name.split("/")
    return not any(p in ("", ".", "..") or "\\" in p or ":" in p or "\0" in p for p in parts)


def _choose(names: list[str], wanted: str, strict: bool = False) -> str | None:
    firsts = [n for n in names if not (m := _PART.search(n)) or m[1] == "00001"]
    if wanted:
        exact = [n for n in firsts if n == wanted]
        alike = [n for n in firsts if re.search(rf"(^|[^A-Za-z0-9]){re.escape(wanted)}([^A-Za-z0-9]|$)", n, re.IGNORECASE)]
        return next(iter(exact or alike), None)
    preferred = [n for n in firsts if re.search("Q4_K_M", n, re.IGNORECASE)]
    if strict and not preferred:
        return None
    return next(iter(preferred or firsts), None)


def _all_parts(name: str) -> list[str]:
    match = _PART.search(name)
    if not match:
        return [name]
    stem = name[: match.start()]
    return [f"{stem}-{n:05d}-of-{match[2]}.gguf" for n in range(1, int(match[2]) + 1)]
