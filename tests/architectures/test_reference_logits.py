"""Tiny models whose logits llama.cpp computed (float32 cache, no flash attention): reference_logits.json, written by scripts/reference_logits.py.

The models are made on the spot from a seed, so only a sample of their logits is kept. What the kernels make of them is compared in tests/program.
"""

from __future__ import annotations

import json
from pathlib import Path

import gemma4_model
import numpy as np
import pytest
import tiny
from program.test_reference_and_kernels import GELU, compiled, exact

# name -> (architecture, changes of the tiny model). Sizes that steer what an architecture does are those of the published models.
CASES: dict[str, tuple[str, dict[str, int]]] = {
    name: (name, {}) for name in "arcee bloom chatglm codeshell ernie4_5 exaone hunyuan-dense internlm2 minicpm mistral3 olmo orion phi2 seed_oss starcoder xverse".split()
}
CASES |= {
    "baichuan-7b": ("baichuan", {"layers": 32}),
    "baichuan-13b": ("baichuan", {"layers": 40}),
    "falcon-7b": ("falcon", {"kv_heads": 1}),
    "qwen": ("qwen", {"kv_heads": 4}),
    "olmo3": ("olmo2", {"layers": 8, "window": 24, "yarn": 8}),  # every fourth layer sees all, with a scaled rope
    "bloom-six-heads": ("bloom", {"dim": 96, "heads": 6, "kv_heads": 6}),
}
GEMMA4 = ("small", "large", "experts", "split_experts")
CASES |= {f"gemma4-{kind}": ("gemma4", {}) for kind in GEMMA4}
POSITIONS, VOCABULARY = [0, 1, 17, 59], slice(3, None, 31)  # the sample


def write(name: str, path: Path) -> Path:
    """The model of a case."""
    if name.startswith("gemma4-"):
        return gemma4_model.write(path, name.removeprefix("gemma4-"))
    arch, changes = CASES[name]
    return tiny.model(path, arch, **changes)


def reference_logits() -> dict[str, list[list[float]]]:
    return json.loads((Path(__file__).parent / "reference_logits.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_tiny_models_have_the_logits_that_llama_cpp_computes(name, tmp_path) -> None:
    got = exact(write(name, tmp_path / "m.gguf"))[POSITIONS, VOCABULARY]
    expected = np.array(reference_logits()[name])
    assert expected.std() > 0.5
    # GELU rounds to half precision in both, where a last bit may flip.
    assert np.abs(got - expected).max() < (1e-2 if CASES[name][0] in GELU else 5e-4)


@pytest.mark.parametrize("kind", GEMMA4)
def test_gemma4_runs_the_same_however_the_text_is_cut(kind, team, tmp_path) -> None:
    path = gemma4_model.write(tmp_path / "m.gguf", kind)
    expected = exact(path)
    for chunks in ([60], [20, 1, 1, 17, 2, 1, 18]):
        off = np.abs(compiled(path, team, chunks) - expected)
        assert off.max() < 5e-2 and off.mean() < 2e-3, chunks


def test_every_stored_sample_is_checked() -> None:
    assert set(reference_logits()) == set(CASES)
