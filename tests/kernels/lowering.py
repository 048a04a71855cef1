"""Run as a program: compile kernels for an instruction set that this CPU need not have, without running or loading anything.

lowering.py ISA KERNEL:FORMAT ...    prints the assembly text of each
"""

from __future__ import annotations

import os
import re
import sys

os.environ["NUMBA_OPT"] = "0"

import llvmlite.binding as llvm  # noqa: E402
from numba.core import codegen  # noqa: E402

from cpuinfer.kernels import isa  # noqa: E402
from cpuinfer.program import compile as compiler  # noqa: E402


def lower_for(name: str) -> None:
    """Make cpuinfer.program.compile produce code for that ISA in this process."""
    target = isa.get(name)
    triple = f"{target.triple_arch}-unknown-linux-gnu"
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=target.cpu, opt=3, codemodel="jitdefault", jit=True)
    isa.current = lambda: name
    compiler._target_machine = lambda: machine
    # Numba shall not generate machine code itself, for it would do so for this CPU.
    codegen.JITCodeLibrary._finalize_specific = lambda self: None
    codegen.JITCodeLibrary.get_pointer_to_function = lambda self, symbol: (self._ensure_finalized(), 4096)[1]
    codegen.JITCPUCodegen._add_module = lambda self, module: None
    parse = llvm.parse_assembly

    def parse_for_target(text: str, *arguments):
        if "cfunc." in text:  # the whole kernel, not one of numba's parts of it
            text = re.sub(r'target triple = ".*"', f'target triple = "{triple}"', text)
            text = re.sub(r'target datalayout = ".*"', f'target datalayout = "{machine.target_data}"', text)
        return parse(text, *arguments)

    if target.triple_arch != llvm.get_process_triple().split("-")[0]:
        llvm.parse_assembly = parse_for_target


if __name__ == "__main__":
    lower_for(sys.argv[1])
    for argument in sys.argv[2:]:
        print(f"# kernel {argument}")
        print(compiler.assembly(tuple(argument.split(":"))))
