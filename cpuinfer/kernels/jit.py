"""From kernel functions to addresses: registration, compilation in worker processes, and a disk cache of object code.

A kernel is a Python function `kernel(op, batch, rank, size)` over `vectors.Record` arguments, registered with `@op_kernel`. Compiled, it is a C function
void(i64 op, i64 batch, i64 rank, i64 size) in an ELF object of its own. The cache keeps these objects, so a warm start maps machine code with
llvmlite alone: numba, whose import takes most of a second, is loaded only in the processes that compile.

The cache folder's name is a hash of everything that decides the code: the sources of kernels/, formats/quants/ and the compiler, the ISA, the CPU's name and
features, the versions of numba, llvmlite and Python. Files are written under another name and renamed, so a killed process leaves nothing half done.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from ..errors import MachineError
from . import isa

Key = tuple[str, ...]  # (kernel name, variants...), for instance ("matmul_vector", "Q4_1")
Progress = Callable[[int, int, str], None]  # (kernels done, kernels in all, name of the last)
PACKAGE = Path(__file__).resolve().parent.parent
KEPT_FOLDERS = 4  # build keys kept in the cache: other ISAs and versions in use at the same time


def cpu_name() -> str:
    """LLVM's name of this CPU, for instance znver5."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name()


def target() -> tuple[str, str]:
    """(CPU name, feature string) that kernels are compiled for: the host's own for its best ISA, a plain CPU for a forced lower one."""
    import llvmlite.binding as llvm

    name = isa.current()
    if name == isa.detect():
        return cpu_name(), llvm.get_host_cpu_features().flatten()
    return isa.get(name).cpu, ""


@functools.cache
def _sources_hash() -> str:
    digest = hashlib.sha256()
    sources = [path for folder in (PACKAGE / "kernels", PACKAGE / "formats" / "quants") for path in sorted(folder.rglob("*.py"))]
    for path in [*sources, PACKAGE / "program" / "compile.py"]:
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build_key() -> str:
    """Name of the cache folder for this code on this CPU."""
    facts = [_sources_hash(), isa.current(), *target(), *(metadata.version(p) for p in ("numba", "llvmlite")), str(sys.version_info[:2])]
    return f"{isa.current()}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]}"


def cache_root() -> Path:
    """CPUINFER_CACHE_DIR, or the user's cache folder; a private temporary folder where neither can be written."""
    if named := os.environ.get("CPUINFER_CACHE_DIR"):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("cpuinfer", appauthor=False)) / "jit"


@functools.cache
def _temporary_root() -> Path:
    import atexit
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="cpuinfer-jit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """The folder of this build's objects, made if needed, writable and this user's own."""
    for root in (cache_root(), _temporary_root):
        folder = (root() if callable(root) else root) / build_key()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK) and _is_ours(folder):
                return folder
            if folder.is_dir() and _is_ours(folder) and any(folder.glob("*.o")):
                return folder  # read-only, but filled: good enough if nothing is missing
        except OSError:
            continue
    raise MachineError("no folder for compiled kernels can be written; set CPUINFER_CACHE_DIR to one that can")


def _is_ours(folder: Path) -> bool:
    """Machine code is loaded from here: the folder must not belong to another user."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o002


def file_name(key: Key) -> str:
    return "-".join(key) + ".o"


# ---- loading ---------------------------------------------------------------------------------------------------------------------------

SYMBOL = "cpuinfer_kernel"  # the function that every object exports
_loaded: dict[tuple[str, Key], int] = {}
_engines: list = []  # keep the mapped code alive


@functools.cache
def _target_machine():
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = target()
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, codemodel="jitdefault", jit=True)


def _map(code: bytes) -> int:
    """Map an object file into this process; the address of its kernel."""
    import llvmlite.binding as llvm

    machine = _target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    address = engine.get_function_address(SYMBOL)
    if not address:
        raise MachineError("a compiled kernel has no entry point")
    return address


def _read(path: Path) -> bytes | None:
    """The object code in a cache file, which is 32 bytes of sha256, then the code. None if absent or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def write_object(path: Path, code: bytes) -> None:
    """Write a cache file under another name and rename it, so that it is whole or absent."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise MachineError(f"cannot write the compiled kernel {path}: {error.strerror}; set CPUINFER_CACHE_DIR") from error


def build(keys: Iterable[Key], on_progress: Progress | None = None) -> dict[Key, int]:
    """Address of each kernel. Those that the disk cache lacks are compiled first, in worker processes side by side.

    on_progress(done, total, name) is called only when something must be compiled: at once, then as each kernel is ready.
    """
    wanted = sorted(set(keys))
    build_name = build_key()
    missing = [key for key in wanted if (build_name, key) not in _loaded]
    if missing:
        folder = cache_folder()
        codes = {key: _read(folder / file_name(key)) for key in missing}
        absent = [key for key, code in codes.items() if code is None]
        if absent:
            _compile(folder, absent, on_progress)
            codes |= {key: _read(folder / file_name(key)) for key in absent}
        for key, code in codes.items():
            if code is None:
                raise MachineError(f"kernel {file_name(key)} vanished from {folder}; set CPUINFER_CACHE_DIR to a stable folder")
            _loaded[build_name, key] = _map(code)
    return {key: _loaded[build_name, key] for key in wanted}


def cached(keys: Iterable[Key]) -> bool:
    """Whether every kernel is compiled already."""
    folder = cache_folder()
    return all((folder / file_name(key)).exists() for key in set(keys))


# ---- compiling -------------------------------------------------------------------------------------------------------------------------


def _compile(folder: Path, keys: list[Key], on_progress: Progress | None) -> None:
    """Compile kernels in worker processes, each taking the next from a shared list (slow ones first)."""
    from .threads import usable_cpus

    keys = sorted(keys, key=lambda key: (key[0] != "attention", not key[0].startswith("matmul_many"), not key[0].startswith("matmul"), key))
    report = on_progress or (lambda done, total, name: None)
    report(0, len(keys), "")
    cpu, features = target()
    environment = os.environ | {
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": features,
        "CPUINFER_ISA": isa.current(),
        "NUMBA_DISABLE_JIT": "0",
        "NUMBA_OPT": "0",  # the worker optimizes each kernel once, after numba
        "PYTHONPATH": os.pathsep.join(p for p in (str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")) if p),
    }
    # The forced baseline has no feature string; an empty variable would make numba add the host's features.
    if not features:
        environment["NUMBA_CPU_FEATURES"] = "+sse2" if isa.get(isa.current()).triple_arch == "x86_64" else "+neon"
    count = min(len(keys), max(1, usable_cpus()))
    command = [sys.executable, "-m", "cpuinfer.program.compile", str(folder)]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True) for _ in range(count)]
    try:
        _feed(workers, folder, keys, report)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
    _prune(folder)


def _feed(workers, folder: Path, keys: list[Key], report: Progress) -> None:
    """Hand keys to idle workers and wait until every object is there; a worker that dies is an error with its last line."""
    waiting, running, done = list(keys), {}, 0
    while done < len(keys):
        for worker in workers:
            key = running.get(worker)
            if key is not None and (folder / file_name(key)).exists():
                done += 1
                report(done, len(keys), " ".join(key))
                running[worker] = key = None
            if key is None and waiting and worker.poll() is None:
                running[worker] = waiting.pop(0)
                worker.stdin.write(json.dumps(running[worker]) + "\n")
                worker.stdin.flush()
            elif key is not None and worker.poll() is not None and not (folder / file_name(key)).exists():
                lines = worker.stderr.read().strip().splitlines() or ["no output"]
                if os.environ.get("CPUINFER_DEBUG"):
                    print("\n".join(lines), file=sys.stderr)
                raise MachineError(f"compiling kernel {' '.join(key)} failed: {lines[-1]}")
        time.sleep(0.01)


def _prune(folder: Path) -> None:
    """Keep the newest few build folders; older keys belong to versions that are gone."""
    try:
        folders = sorted((f for f in folder.parent.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    except OSError:
        return
    for old in folders[KEPT_FOLDERS:]:
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
