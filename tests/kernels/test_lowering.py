"""Kernels compile for every instruction set, those of other CPUs included, and use what that set is there for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The dot product of bytes that an ISA is there for. Formats: signed codes, and a look-up table in the read-only data.
DOTS = {"avxvnni": "vpdpbusd", "avx512vnni": "vpdpbusd", "neon": "sdot"}
KERNELS = ("matmul_few:Q8_0", "matmul_vector:IQ3_S")


@pytest.mark.parametrize("isa", DOTS)
def test_kernels_of_every_kind_of_format_compile_and_multiply_bytes_as_the_isa_can(isa) -> None:
    result = subprocess.run([sys.executable, str(HERE / "lowering.py"), isa, *KERNELS], capture_output=True, text=True, cwd=HERE.parent.parent)
    assert result.returncode == 0, result.stderr[-2000:]
    texts = result.stdout.split("# kernel ")[1:]
    assert [text.split("\n", 1)[0] for text in texts] == list(KERNELS)
    for text in texts:
        if not text.startswith("matmul_vector"):  # which multiplies with 16-bit activations
            assert DOTS[isa] in text, text.split("\n", 1)[0]
        assert "cpuinfer_kernel:" in text
