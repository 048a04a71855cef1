"""Writes tests/architectures/reference_logits.json: what llama.cpp (llama-cpp-python) computes for the tiny models of test_reference_logits.py.

Usage: python scripts/reference_logits.py [NAME ...]; without names all cases anew. Needs `pip install llama-cpp-python` beside the test requirements.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "architectures")]
F32 = 0  # ggml's number of the type


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """f32[tokens, vocabulary] of a model file; float32 cache, one thread."""
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 256
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = F32
    parameters.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, parameters)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    if llama_cpp.llama_decode(context, batch) != 0:
        raise SystemExit(f"llama.cpp cannot run {path}")
    columns = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (columns,)).copy() for i in range(len(tokens))]
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def main() -> None:
    import test_reference_logits as test
    from program.test_reference_and_kernels import TOKENS

    target = TESTS / "architectures" / "reference_logits.json"
    kept = test.reference_logits() if sys.argv[1:] else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or test.CASES:
            rows = logits(test.write(name, Path(folder) / f"{name}.gguf"), TOKENS)
            kept[name] = [[round(float(v), 5) for v in row] for row in rows[test.POSITIONS, test.VOCABULARY]]
    lines = [f'"{name}": {json.dumps(kept[name])}' for name in sorted(kept)]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
