"""The kernels on the plainest ISA: what runs on any CPU, and what the others are measured against."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CASES = """
test_attention.py::test_sequences_of_one_batch_see_only_their_own_tokens[3]
test_attention.py::test_one_token_after_a_history_sees_all_of_it[300-9x3-64x64]
test_attention.py::test_scores_are_capped[20-(0, 64)]
test_rope_and_cache.py::test_heads_are_rotated_in_place_and_nothing_else_changes[96-72-interleaved-1]
test_rope_and_cache.py::test_rows_go_to_their_slots_and_to_no_other[80-q8_0-3]
test_activate.py::test_the_quantized_result_is_that_of_the_quantize_kernel[41-576-True-3]
test_activate.py::test_activations_equal_their_formulas[3-200-gelu-gated-1]
test_norm_and_quantize.py::test_codes_scales_and_sums_are_those_of_the_definition[576-41-3]
test_norm_and_quantize.py::test_rows_are_normed[576-weight bias-3-layer]
""".split("\n")[1:-1]


def test_a_choice_of_cases_passes_on_the_generic_isa():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / case) for case in CASES)]
    result = subprocess.run(command, env=os.environ | {"CPUINFER_ISA": "generic"}, capture_output=True, text=True, cwd=HERE.parent.parent)
    assert result.returncode == 0 and "no tests ran" not in result.stdout, result.stdout[-3000:] + result.stderr[-1000:]
    assert result.stdout.count(".") >= len(CASES)
