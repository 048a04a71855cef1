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


def random_rows(fmt: str, rows: int, columns: int, rng: np.random.Generator, spread: float = 0.5) -> np.ndarray:
    """u1[rows, row_bytes] of a type: quantized by the gguf package where it can, else random blocks with sane scales."""
    weights = (rng.standard_normal((rows, columns)) * spread / np.sqrt(columns) * 4).astype(np.float32)
    kind = gguf.GGMLQuantizationType[fmt]
    try:
        return np.ascontiguousarray(gguf.quants.quantize(weights, kind)).view(np.uint8).reshape(rows, -1)
    except NotImplementedError:
        f = quants.get(fmt)
        blocks = rng.integers(0, 256, (rows * columns // f.weights, f.block_bytes), dtype=np.uint8).reshape(-1).view(f.dtype)
        for name in f.dtype.names or ():
            if f.dtype[name] == np.float16:
                blocks[name] = rng.uniform(0.001, 0.01, blocks[name].shape)
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


def model(path: Path, arch: str = "llama", type: str = "F32", seed: int = 0, tok: str = "spm", template: str | None = TEMPLATE, **changes: int) -> Path:
    """Write a random model. changes: dim, ffn, heads, kv_heads, head_dim, layers, context."""
    h = {"dim": 256 if "K" in type or type.startswith(("IQ", "TQ")) else 64, "layers": 2, "heads": 4, "kv_heads": 2, "context": 256} | changes
    h = {"head_dim": h["dim"] // h["heads"], "ffn": 2 * h["dim"]} | h
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(h["layers"])
    writer.add_context_length(h["context"])
    writer.add_embedding_length(h["dim"])
    writer.add_feed_forward_length(h["ffn"])
    writer.add_head_count(h["heads"])
    writer.add_head_count_kv(h["kv_heads"])
    writer.add_key_length(h["head_dim"])
    writer.add_value_length(h["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_name(f"tiny {arch}")
    if arch.startswith("gemma"):
        writer.add_sliding_window(16)
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
        writer.add_tensor(f"{name}.{part}", (around + 0.1 * rng.standard_normal(length)).astype(np.float32))

    q_rows, k_rows = h["heads"] * h["head_dim"], h["kv_heads"] * h["head_dim"]
    writer.add_tensor("token_embd.weight", random_rows(type, len(tokens), h["dim"], rng, 2.0), raw_dtype=gguf.GGMLQuantizationType[type])
    vector("output_norm", h["dim"])
    for i in range(h["layers"]):
        blk = f"blk.{i}."
        vector(blk + "attn_norm", h["dim"])
        vector(blk + "ffn_norm", h["dim"])
        if arch == "phi3":
            matrix(blk + "attn_qkv", q_rows + 2 * k_rows, h["dim"])
            matrix(blk + "ffn_up", 2 * h["ffn"], h["dim"])
        else:
            matrix(blk + "attn_q", q_rows, h["dim"])
            matrix(blk + "attn_k", k_rows, h["dim"])
            matrix(blk + "attn_v", k_rows, h["dim"])
            matrix(blk + "ffn_gate", h["ffn"], h["dim"])
            matrix(blk + "ffn_up", h["ffn"], h["dim"])
        matrix(blk + "attn_output", h["dim"], q_rows)
        matrix(blk + "ffn_down", h["dim"], h["ffn"])
        if arch == "qwen2":
            for name, rows in (("attn_q", q_rows), ("attn_k", k_rows), ("attn_v", k_rows)):
                vector(blk + name, rows, "bias", 0.0)
        if arch in ("qwen3", "gemma3"):
            vector(blk + "attn_q_norm", h["head_dim"])
            vector(blk + "attn_k_norm", h["head_dim"])
        if arch.startswith("gemma"):
            vector(blk + "post_attention_norm", h["dim"])
            vector(blk + "post_ffw_norm", h["dim"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
