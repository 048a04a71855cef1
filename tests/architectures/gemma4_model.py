"""Tiny Gemma 4 models: windowed and full layers with heads of their own; small ones with layer embeddings and shared keys and values, large ones with experts."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import tiny

DIM, FFN, WIDE = 64, 96, 48
WINDOWED = (True, True, False, True, True, False)
HEAD_DIM, LOCAL_HEAD_DIM, HEADS = 32, 16, 4


def write(path: Path, kind: str) -> Path:
    """kind: small (layer embeddings, the last three layers share keys and values), large (keys serve as values in full layers) or experts (merged), split_experts."""
    rng = np.random.default_rng(7)
    small, routed = kind == "small", "experts" in kind
    n = len(WINDOWED)
    writer = gguf.GGUFWriter(str(path), "gemma4")
    tokens, scores, types = tiny.spm_tokens()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_block_count(n)
    writer.add_context_length(256)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length([FFN * (2 if small and i >= 3 else 1) for i in range(n)])
    writer.add_head_count(HEADS)
    n_kv_heads = [2 if windowed else 1 for windowed in WINDOWED]
    writer.add_head_count_kv(n_kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_key_length_swa(LOCAL_HEAD_DIM)
    writer.add_value_length_swa(LOCAL_HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_dimension_count_swa(LOCAL_HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_freq_base_swa(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(16)
    writer.add_sliding_window_pattern(WINDOWED)
    writer.add_shared_kv_layers(3 if small else 0)
    writer.add_embedding_length_per_layer_input(8 if small else 0)
    writer.add_final_logit_softcapping(30.0)
    if routed:
        writer.add_expert_count(tiny.N_EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(WIDE)

    def tensor(name: str, *shape: int, around: float = 0.0, spread: float = 0.3) -> None:
        writer.add_tensor(name, (around + spread * rng.standard_normal(shape)).astype(np.float32))

    def norm(name: str, length: int = DIM) -> None:
        tensor(f"{name}.weight", length, around=1.0)

    tensor("token_embd.weight", len(tokens), DIM, spread=0.5)
    norm("output_norm")
    # Proportional rope: the last pairs do not rotate.
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * (HEAD_DIM // 8) + [1e30] * (HEAD_DIM * 3 // 8), np.float32))
    if small:
        tensor("per_layer_token_embd.weight", len(tokens), 8 * n)
        tensor("per_layer_model_proj.weight", 8 * n, DIM)
        norm("per_layer_proj_norm", 8)
    for i, windowed in enumerate(WINDOWED):
        blk, head_dim, ffn = f"blk.{i}.", LOCAL_HEAD_DIM if windowed else HEAD_DIM, FFN * (2 if small and i >= 3 else 1)
        for name in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            norm(blk + name)
        tensor(f"{blk}attn_q.weight", HEADS * head_dim, DIM)
        norm(f"{blk}attn_q_norm", head_dim)
        if not (small and i >= 3):
            tensor(f"{blk}attn_k.weight", n_kv_heads[i] * head_dim, DIM)
            norm(f"{blk}attn_k_norm", head_dim)
            if windowed or small:
                tensor(f"{blk}attn_v.weight", n_kv_heads[i] * head_dim, DIM)
        tensor(f"{blk}attn_output.weight", DIM, HEADS * head_dim)
        tensor(f"{blk}ffn_gate.weight", ffn, DIM)
        tensor(f"{blk}ffn_up.weight", ffn, DIM)
        tensor(f"{blk}ffn_down.weight", DIM, ffn)
        tensor(f"{blk}layer_output_scale.weight", 1, around=0.7, spread=0.1)
        if small:
            tensor(f"{blk}inp_gate.weight", 8, DIM)
            tensor(f"{blk}proj.weight", DIM, 8)
            norm(blk + "post_norm")
        if routed:
            tensor(f"{blk}ffn_gate_inp.weight", tiny.N_EXPERTS, DIM, spread=2.0)
            tensor(f"{blk}ffn_gate_inp.scale", DIM, around=1.0)
            for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                norm(blk + name)
            if kind == "experts":
                tensor(f"{blk}ffn_gate_up_exps.weight", tiny.N_EXPERTS, 2 * WIDE, DIM)
            else:
                tensor(f"{blk}ffn_gate_exps.weight", tiny.N_EXPERTS, WIDE, DIM)
                tensor(f"{blk}ffn_up_exps.weight", tiny.N_EXPERTS, WIDE, DIM)
            tensor(f"{blk}ffn_down_exps.weight", tiny.N_EXPERTS, DIM, WIDE)
            tensor(f"{blk}ffn_down_exps.scale", tiny.N_EXPERTS, around=1.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
