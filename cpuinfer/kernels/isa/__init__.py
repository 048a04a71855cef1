"""Instruction sets: which ones this CPU has, which one is in use, and what each of them does better than plain IR.

An ISA is one file in this folder with a class that derives from `generic.Generic` and overrides what LLVM cannot express well. It also says which
LLVM CPU and features to compile for. Nothing outside this folder asks which ISA is in use.
"""

from __future__ import annotations

import functools
import importlib
import os
import platform

from ...errors import MachineError

LEVELS = ("generic", "avx2", "avxvnni", "avx512vnni", "neon")


@functools.cache
def host_features() -> frozenset[str]:
    """LLVM's names of the features that this CPU (and its operating system) has."""
    import llvmlite.binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def available() -> tuple[str, ...]:
    """The ISAs that can run here, best last."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return ("generic", "neon")
    return tuple(name for name in LEVELS if name != "neon" and get(name).required <= host_features())


def detect() -> str:
    """The best ISA of this CPU."""
    return available()[-1]


def current() -> str:
    """The ISA in use: CPUINFER_ISA where set (refused if this CPU lacks it), else the best."""
    name = os.environ.get("CPUINFER_ISA", "").strip().lower()
    if not name:
        return detect()
    if name not in LEVELS:
        raise MachineError(f"CPUINFER_ISA={name} is not known; choose one of: {', '.join(LEVELS)}")
    if name not in available():
        raise MachineError(f"CPUINFER_ISA={name} cannot run on this CPU; it has: {', '.join(available())}")
    return name


def get(name: str):
    """The ISA object of that name, without any check against this CPU."""
    return importlib.import_module(f"{__name__}.{name}").ISA
