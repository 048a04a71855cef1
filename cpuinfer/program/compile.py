"""Worker process: compiles the kernels named on standard input, one JSON list a line, into the cache folder given as argument.

Run by kernels.jit. It lives here because a kernel's format comes from formats.quants, which kernels must not know.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..kernels import jit, registry


def compile_kernel(key: jit.Key) -> tuple[str, bytes]:
    """(symbol, object code) of one kernel for the CPU that numba is set to."""
    compiled = _compile(key)
    return compiled._wrapper_name, compiled._library._get_compiled_object()


def assembly(key: jit.Key) -> str:
    """The assembly text of one kernel, to look at."""
    return _compile(key)._library.get_asm_str()


def _compile(key: jit.Key):
    from numba import cfunc

    kernel = registry.discover()[key[0]]
    function = registry.specialized(kernel, key[1:], _get_format)
    return cfunc(registry.signature(kernel), nopython=True, error_model="numpy", boundscheck=False)(function)


def _get_format(name: str):
    from ..formats import quants

    return quants.get(name)


def main() -> None:
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        key = tuple(json.loads(line))
        jit.write_object(folder / jit.file_name(key), *compile_kernel(key))


if __name__ == "__main__":
    main()
