"""Kernels by name. Importing a kernel module registers its kernels; nothing is compiled here.

    @op_kernel("norm")                        one compiled kernel, record RECORDS["norm"]
    @op_kernel("matmul", name="matmul_few", variants="format")      one compiled kernel a format

A kernel with variants is compiled from a fresh copy of its module whose placeholders (module-level names) were replaced, so helper functions of the
module see the replaced names too: `variants="format"` replaces them with the format's `bindings()`, `variants="cache"` with the module's `bind(variants)`.
A kernel named NAME_f32 stands in for NAME where the format wants float32 activations.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

from .records import BATCH, RECORDS


@dataclass(frozen=True)
class OpKernel:
    name: str
    record: str
    variants: str | None  # None, "format" or "cache"
    module: str
    function: str
    batch: str  # "record", or "address" where the second argument is a plain address


KERNELS: dict[str, OpKernel] = {}


def op_kernel(record: str, name: str | None = None, variants: str | None = None, batch: str = "record"):
    """Register kernel(op, batch, rank, size); op is a vectors.Record of RECORDS[record], batch one of BATCH."""

    def register(function: FunctionType) -> FunctionType:
        kernel = OpKernel(name or record, record, variants, function.__module__, function.__name__, batch)
        KERNELS[kernel.name] = kernel
        return function

    return register


def discover() -> dict[str, OpKernel]:
    """Import every module of this package; all registered kernels."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.ispkg:
            importlib.import_module(f"{__package__}.{module.name}")
    return KERNELS


def specialized(kernel: OpKernel, variants: tuple[str, ...], get_format) -> FunctionType:
    """The kernel's function from a fresh copy of its module with the placeholders of these variants filled. get_format(name) gives a Format."""
    if kernel.variants == "format":
        fmt = get_format(variants[0])
        kernel = KERNELS.get(f"{kernel.name}_{fmt.activations}", kernel)
        module, bindings = _fresh_copy(kernel.module), fmt.bindings()
    else:
        module = _fresh_copy(kernel.module)
        bindings = module.bind(variants) if kernel.variants else {}
    unknown = [name for name in bindings if not hasattr(module, name)]
    assert not unknown, f"{kernel.module} has no placeholder for {unknown}"
    module.__dict__.update(bindings)
    return getattr(module, kernel.function)


def _fresh_copy(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    registered = dict(KERNELS)
    sys.modules[spec.name], original = module, sys.modules[spec.name]  # so that numba finds the module it is in
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules[spec.name] = original
        KERNELS.clear()
        KERNELS.update(registered)
    return module


def signature(kernel: OpKernel):
    """Numba signature of a kernel's C function."""
    from numba import types

    from .vectors import Record

    batch = Record(BATCH) if kernel.batch == "record" else types.int64
    return types.void(Record(RECORDS[kernel.record]), batch, types.int64, types.int64)
