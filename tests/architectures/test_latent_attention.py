"""Multi-head latent attention: the absorbed form, the spelled-out form of older files and the numpy reference agree."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
from program.test_reference_and_kernels import compiled, exact

HEADS, RANK, ROTATED, PLAIN, VALUE, DIM = 3, 32, 16, 24, 20, 64


def write(path: Path, absorbed: bool, q_rank: int) -> Path:
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(str(path), "deepseek2")
    tokens, scores, types = tiny.spm_tokens()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    for name, value in {
        "block_count": 1,
        "context_length": 128,
        "embedding_length": DIM,
        "feed_forward_length": 48,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1 if absorbed else HEADS,
        "attention.kv_lora_rank": RANK,
        "rope.dimension_count": ROTATED,
        "attention.key_length": RANK + ROTATED if absorbed else PLAIN + ROTATED,
        "attention.value_length": RANK if absorbed else VALUE,
    }.items():
        writer.add_uint32(f"deepseek2.{name}", value)
    if absorbed:
        writer.add_uint32("deepseek2.attention.key_length_mla", PLAIN + ROTATED)
        writer.add_uint32("deepseek2.attention.value_length_mla", VALUE)
    writer.add_layer_norm_rms_eps(1e-6)

    def tensor(*shape: int, around: float = 0.0, spread: float = 0.3) -> np.ndarray:
        return (around + spread * rng.standard_normal(shape)).astype(np.float32)

    tensors = {"token_embd": tensor(len(tokens), DIM, spread=1.0), "output_norm": tensor(DIM, around=1.0), "output": tensor(len(tokens), DIM)}
    rows = HEADS * (PLAIN + ROTATED)
    layer = {"attn_norm": tensor(DIM, around=1.0), "ffn_norm": tensor(DIM, around=1.0), "attn_kv_a_norm": tensor(RANK, around=1.0)}
    layer |= {"attn_q_a": tensor(q_rank, DIM), "attn_q_a_norm": tensor(q_rank, around=1.0), "attn_q_b": tensor(rows, q_rank)} if q_rank else {"attn_q": tensor(rows, DIM)}
    layer["attn_kv_a_mqa"] = tensor(RANK + ROTATED, DIM)
    spelled = tensor(HEADS, PLAIN + VALUE, RANK)
    if absorbed:
        layer |= {"attn_k_b": np.ascontiguousarray(spelled[:, :PLAIN].transpose(0, 2, 1)), "attn_v_b": np.ascontiguousarray(spelled[:, PLAIN:])}
    else:
        layer["attn_kv_b"] = spelled.reshape(-1, RANK)
    layer |= {"attn_output": tensor(DIM, HEADS * VALUE), "ffn_gate": tensor(48, DIM), "ffn_up": tensor(48, DIM), "ffn_down": tensor(DIM, 48)}
    for name, values in (tensors | {f"blk.0.{n}": v for n, v in layer.items()}).items():
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("q_rank", [0, 40])
def test_both_forms_give_the_same_logits_however_the_text_is_cut(q_rank, team, tmp_path) -> None:
    absorbed, spelled = write(tmp_path / "a.gguf", True, q_rank), write(tmp_path / "b.gguf", False, q_rank)
    expected = exact(absorbed)
    np.testing.assert_allclose(exact(spelled), expected, atol=2e-4)
    for path in (absorbed, spelled):
        for chunks in ([60], [20, 1, 1, 17, 2, 1, 18], [1] * 60):
            np.testing.assert_allclose(compiled(path, team, chunks), expected, atol=5e-4)
