"""Worker process: compiles the kernels named on standard input, one JSON list a line, into the cache folder given as argument.

Run by kernels.jit. It lives here because a kernel's format comes from formats.quants, which kernels must not know.
"""

from __future__ import annotations

import functools
import gc
import json
import re
import sys
from pathlib import Path

from ..kernels import jit, registry


def compile_kernel(key: jit.Key) -> bytes:
    """Object code of one kernel for the CPU that numba is set to; its only exported symbol is jit.SYMBOL."""
    machine, module = _self_contained(key)
    return machine.emit_object(module)


def assembly(key: jit.Key) -> str:
    """The assembly text of one kernel, to look at."""
    machine, module = _self_contained(key)
    return machine.emit_assembly(module)


# What numba's error paths call. Kernels raise nothing, so these paths cannot run.
_RUNTIME = re.compile(r"^declare ([^@]*)@((?:numba_|NRT_|_?Py)\w*)\(([^)]*)\)[^\n]*$", re.MULTILINE)


def _self_contained(key: jit.Key):
    """(target machine, optimized LLVM module) of one kernel, free of numba's runtime.

    Numba leaves helper functions exported under names that a kernel's variants share, and error paths into its runtime. Here everything but the entry point becomes
    internal and the runtime's functions unreachable, so the optimizer removes both.
    """
    import llvmlite.binding as llvm
    from numba import cfunc

    kernel = registry.discover()[key[0]]
    function = registry.specialized(kernel, key[1:], _get_format)
    _skip_what_only_python_needs(function.__name__)
    compiled = cfunc(registry.signature(kernel), nopython=True, error_model="numpy", boundscheck=False)(function)
    library = compiled._library
    text = _RUNTIME.sub(r"define internal \1@\2(\3) {\n  unreachable\n}", library.get_llvm_str())
    module = llvm.parse_assembly(text)
    for f in module.functions:
        if f.name == compiled._wrapper_name:
            f.name = jit.SYMBOL
        elif not f.is_declaration:
            f.linkage = "internal"
    machine = _target_machine()
    # Kernels say themselves what is a vector; LLVM's own vectorizers would only cost time.
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine, module


def _skip_what_only_python_needs(entry: str) -> None:
    """Make numba compile helper functions without wrappers for Python and without machine code of their own: here they are called from kernels only.

    A third of the time a cold start takes (2026-12). Should numba change these methods, the attribute look-ups below fail at once.
    """
    from numba.core.cpu import CPUContext

    if not hasattr(CPUContext, "_cpuinfer_wrapper"):
        CPUContext._cpuinfer_wrapper = CPUContext.create_cfunc_wrapper
        assert CPUContext.create_cpython_wrapper and CPUContext.get_executable
    wrapper = CPUContext._cpuinfer_wrapper

    def create_cfunc_wrapper(self, library, fndesc, env, call_helper):
        if fndesc.qualname == entry:
            wrapper(self, library, fndesc, env, call_helper)

    CPUContext.create_cpython_wrapper = lambda self, *arguments, **options: None
    CPUContext.create_cfunc_wrapper = create_cfunc_wrapper
    # Numba keeps a table by entry point: each needs a builtin function object of its own.
    CPUContext.get_executable = lambda self, library, fndesc, env: [].append


@functools.cache
def _target_machine():
    """Numba itself runs unoptimized in this process (jit sets NUMBA_OPT=0): each kernel is optimized once, here."""
    import llvmlite.binding as llvm
    from numba.core.registry import cpu_target

    codegen = cpu_target.target_context.codegen()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=codegen._get_host_cpu_name(), features=codegen._get_host_cpu_features(), opt=3, reloc="default", codemodel="jitdefault", jit=True)


def _get_format(name: str):
    from ..formats import quants

    return quants.get(name)


def main() -> None:
    folder = Path(sys.argv[1])
    gc.disable()  # a fifth of numba's time; what a few kernels leave behind is small
    for line in sys.stdin:
        key = tuple(json.loads(line))
        jit.write_object(folder / jit.file_name(key), compile_kernel(key))


if __name__ == "__main__":
    main()
