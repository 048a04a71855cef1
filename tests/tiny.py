"""Small GGUF models made on the spot: random weights, a working tokenizer, a chat template. `model(path, arch, type)` writes one and gives its path."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from cpuinfer.formats import quants

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


# What a layer of each architecture has beside the tensors of Llama's (or instead of them).
LAYOUTS = {
    "qwen2": "qkv_bias",
    "qwen3": "head_norms",
    "gemma2": "post_norms",
    "gemma3": "post_norms head_norms",
    "phi3": "fused_qkv fused_up",
    "olmo2": "post_norms no_norms row_norms output",
    "exaone4": "post_norms no_norms head_norms",
    "command-r": "one_norm",
    "cohere2": "one_norm",
    "glm4": "post_norms fused_up qkv_bias",
    "nemotron": "norm_bias no_gate",
    "starcoder2": "norm_bias qkv_bias bias no_gate",
    "stablelm": "norm_bias",
    "gpt2": "norm_bias bias fused_qkv no_gate positions",
    "gptneox": "norm_bias bias fused_qkv no_gate",
    "falcon": "norm_bias fused_qkv no_gate one_norm second_norm",
    "mpt": "fused_qkv no_gate",
    "phi2": "norm_bias bias fused_qkv no_gate one_norm output output_bias",
    "bloom": "norm_bias bias fused_qkv no_gate embedding_norm",
    "starcoder": "norm_bias bias fused_qkv no_gate positions",
    "codeshell": "norm_bias bias fused_qkv no_gate output",
    "qwen": "qkv_bias fused_qkv output",
    "chatglm": "qkv_bias fused_qkv fused_up output",
    "orion": "norm_bias output",
    "arcee": "no_gate",
    "hunyuan-dense": "head_norms",
    "seed_oss": "qkv_bias no_ffn_norm post_attention_norm",
    "internlm2": "output",
    "ernie4_5": "",
    "olmo": "no_norms no_output_norm",
    "mistral3": "",
    "exaone": "",
    "xverse": "output",
    "minicpm": "",
    "baichuan": "output",
    "qwen3moe": "head_norms experts",
    "qwen2moe": "qkv_bias experts shared_expert",
    "granitemoe": "split_experts",
    "gpt-oss": "qkv_bias experts expert_bias sinks no_ffn_norm post_attention_norm",
}


N_EXPERTS = 5


def random_rows(fmt: str, rows: int, columns: int, rng: np.random.Generator, spread: float = 0.5) -> np.ndarray:
    """u1[rows, row_bytes] of a type: quantized by the gguf package where it can, else random blocks with sane scales."""
    weights = (rng.standard_normal((rows, columns)) * spread / np.sqrt(columns) * 4).astype(np.float32)
    try:
        return np.ascontiguousarray(gguf.quants.quantize(weights, gguf.GGMLQuantizationType[fmt])).view(np.uint8).reshape(rows, -1)
    except (NotImplementedError, KeyError):
        f = quants.get(fmt)
        blocks = rng.integers(0, 256, (rows * columns // f.weights, f.block_bytes), dtype=np.uint8).reshape(-1).view(f.dtype)
        for name in f.dtype.names or ():
            if f.dtype[name] == np.float16:
                blocks[name] = rng.uniform(0.001, 0.01, blocks[name].shape)
        if fmt == "IQ1_M":  # its half is spread over the upper bits of four words
            halves = rng.uniform(0.001, 0.01, len(blocks)).astype(np.float16).view(np.uint16)
            blocks["scales"] = blocks["scales"] & 0x0FFF | (halves[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        return blocks.view(np.uint8).reshape(rows, -1)


def spm_tokens() -> tuple[list[str], list[float], list[int]]:
    """A vocabulary with unknown, BOS, EOS, bytes, letters and some joined pieces."""
    tokens, scores, types = ["<unk>", "<s>", "</s>"], [0.0] * 3, [2, 3, 3]
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    scores += [0.0] * 256
    types += [6] * 256
    for text in ("<|im_start|>", "<|im_end|>"):
        tokens.append(text)
        scores.append(0.0)
        types.append(3)
    pieces = [*"▁abcdefghijklmnopqrstuvwxyz", "▁a", "▁t", "th", "he", "the", "▁the", "in", "er", "an", "and", "▁and"]
    for i, text in enumerate(pieces):
        tokens.append(text)
        scores.append(-float(i))
        types.append(1)
    return tokens, scores, types


def bpe_tokens() -> tuple[list[str], list[str], list[int]]:
    """Byte symbols, a few merges, special tokens."""
    from cpuinfer.tokenizers.bpe import BYTES

    tokens = list(BYTES)
    merges = ["t h", "h e", "th e", "Ġ t", "Ġt h", "Ġth e", "i n", "a n", "an d", "Ġ a"]
    tokens += ["".join(m.split()) for m in merges]
    types = [1] * len(tokens)
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return tokens, merges, types + [3] * 3


def model(path: Path, arch: str = "llama", type: str = "F32", seed: int = 0, tok: str = "spm", template: str | None = TEMPLATE, vectors: str = "f4", **changes: int) -> Path:
    """Write a random model. vectors: numpy type of norms and biases.

    changes: dim, ffn, heads, kv_heads, head_dim, layers, context; rows (of the embedding); window; yarn (its factor).
    """
    h = {"dim": 256 if "K" in type or type.startswith(("IQ", "TQ")) else 64, "layers": 2, "heads": 4, "kv_heads": 2, "context": 256} | changes
    h = {"head_dim": h["dim"] // h["heads"], "ffn": 2 * h["dim"]} | h
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(h["layers"])
    writer.add_context_length(h["context"])
    writer.add_embedding_length(h["dim"])
    writer.add_feed_forward_length(h["ffn"] * (2 if arch == "qwen" else 1))
    writer.add_head_count(h["heads"])
    writer.add_head_count_kv(h["kv_heads"])
    writer.add_key_length(h["head_dim"])
    writer.add_value_length(h["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_layer_norm_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_name(f"tiny {arch}")
    if "experts" in LAYOUTS.get(arch, ""):
        writer.add_expert_count(N_EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(h["ffn"] // 2)
    if arch in ("gemma2", "gemma3", "cohere2", "exaone4", "gpt-oss"):
        writer.add_sliding_window(16)
    if "window" in h:
        writer.add_sliding_window(h["window"])
    if "yarn" in h:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(float(h["yarn"]))
        writer.add_rope_scaling_orig_ctx_len(32)
    if arch in ("command-r", "cohere2", "granite", "minicpm"):
        writer.add_logit_scale(0.5)
    if arch in ("granite", "minicpm"):
        writer.add_embedding_scale(3.0)
        writer.add_residual_scale(0.4)
        if arch == "granite":
            writer.add_attention_scale(0.2)
    if arch == "mistral3":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_yarn_log_mul(1.0)
        writer.add_attn_temperature_scale(0.3)
    if arch == "mpt":
        writer.add_max_alibi_bias(8.0)
    if tok == "spm":
        tokens, scores, types = spm_tokens()
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(scores)
        bos, eos = 1, 2
    else:
        tokens, merges, types = bpe_tokens()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(merges)
        bos = eos = tokens.index("<|endoftext|>")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    if template:
        writer.add_chat_template(template)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", random_rows(type, rows, columns, rng), raw_dtype=gguf.GGMLQuantizationType[type])

    def vector(name: str, length: int, part: str = "weight", around: float = 1.0) -> None:
        writer.add_tensor(f"{name}.{part}", (around + 0.1 * rng.standard_normal(length)).astype(np.float16).astype(vectors))

    layout = LAYOUTS.get(arch, "").split()
    q_rows, k_rows = h["heads"] * h["head_dim"], h["kv_heads"] * h["head_dim"]

    def norm(name: str) -> None:
        vector(name, h["dim"])
        if "norm_bias" in layout:
            vector(name, h["dim"], "bias", 0.0)

    def linear(name: str, rows: int, columns: int, kind: str = "bias") -> None:
        matrix(name, rows, columns)
        if kind in layout:
            vector(name, rows, "bias", 0.0)

    def experts(blk: str) -> None:
        """Of each expert gate, up and down; as one tensor or split."""
        kind, wide = gguf.GGMLQuantizationType[type], h["ffn"] // 2
        writer.add_tensor(f"{blk}ffn_gate_inp.weight", (rng.standard_normal((N_EXPERTS, h["dim"])) / 4).astype(np.float32))
        if "expert_bias" in layout:
            vector(f"{blk}ffn_gate_inp", N_EXPERTS, "bias", 0.0)
        for name, rows, columns in (("gate", wide, h["dim"]), ("up", wide, h["dim"]), ("down", h["dim"], wide)):
            matrices = [random_rows(type, rows, columns, rng) for _ in range(N_EXPERTS)]
            if "split_experts" in layout:
                for e, values in enumerate(matrices):
                    writer.add_tensor(f"{blk}ffn_{name}.{e}.weight", values, raw_dtype=kind)
            else:
                writer.add_tensor(f"{blk}ffn_{name}_exps.weight", np.stack(matrices), raw_dtype=kind)
            if "expert_bias" in layout:
                writer.add_tensor(f"{blk}ffn_{name}_exps.bias", rng.standard_normal((N_EXPERTS, rows)).astype(np.float32))
            if "shared_expert" in layout:
                matrix(f"{blk}ffn_{name}_shexp", rows, columns)
        if "shared_expert" in layout:
            vector(f"{blk}ffn_gate_inp_shexp", h["dim"], around=0.0)

    rows = h.get("rows", len(tokens))
    writer.add_tensor("token_embd.weight", random_rows(type, rows, h["dim"], rng, 2.0), raw_dtype=gguf.GGMLQuantizationType[type])
    if "positions" in layout:
        writer.add_tensor("position_embd.weight", rng.standard_normal((h["context"], h["dim"])).astype(np.float32))
    if "embedding_norm" in layout:
        norm("token_embd_norm")
    if "no_output_norm" not in layout:
        norm("output_norm")
    if "output" in layout:
        linear("output", rows, h["dim"], "output_bias")
    for i in range(h["layers"]):
        blk = f"blk.{i}."
        if "no_norms" not in layout:
            norm(blk + "attn_norm")
        if not {"no_norms", "one_norm", "no_ffn_norm"} & set(layout):
            norm(blk + "ffn_norm")
        if "post_attention_norm" in layout:
            norm(blk + "post_attention_norm")
        if "sinks" in layout:
            vector(blk + "attn_sinks", h["heads"], around=0.5)
        if "second_norm" in layout:
            norm(blk + "attn_norm_2")
        if "fused_qkv" in layout:
            linear(blk + "attn_qkv", q_rows + 2 * k_rows, h["dim"], "qkv_bias" if "qkv_bias" in layout else "bias")
        else:
            for name, rows in (("attn_q", q_rows), ("attn_k", k_rows), ("attn_v", k_rows)):
                linear(blk + name, rows, h["dim"], "qkv_bias")
        if "experts" in layout or "split_experts" in layout:
            experts(blk)
        elif "fused_up" in layout:
            linear(blk + "ffn_up", 2 * h["ffn"], h["dim"])
        else:
            linear(blk + "ffn_up", h["ffn"], h["dim"])
            if "no_gate" not in layout:
                linear(blk + "ffn_gate", h["ffn"], h["dim"])
        linear(blk + "attn_output", h["dim"], q_rows, "expert_bias" if "expert_bias" in layout else "bias")
        if not {"experts", "split_experts"} & set(layout):
            linear(blk + "ffn_down", h["dim"], h["ffn"])
        if "head_norms" in layout:
            vector(blk + "attn_q_norm", h["head_dim"])
            vector(blk + "attn_k_norm", h["head_dim"])
        if "row_norms" in layout:
            vector(blk + "attn_q_norm", q_rows)
            vector(blk + "attn_k_norm", k_rows)
        if "post_norms" in layout:
            norm(blk + "post_attention_norm")
            norm(blk + "post_ffw_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
