"""Write GGUF files with random weights in the shapes of well-known models, to measure speed with: it does not depend on the values.

    python scripts/make_synthetic.py llama-1b Q4_K_M out.gguf

Shapes: llama-1b (Llama 3.2 1B), qwen-7b (Qwen 2.5 7B), moe (like Qwen 3 30B-A3B, with fewer layers). Types: any tensor type, or the mixture Q4_K_M.
Needs the gguf package; files load in other engines too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cpuinfer.formats import quants

SHAPES = {
    "llama-1b": {"arch": "llama", "dim": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "head_dim": 64, "ffn": 8192, "vocab": 128256, "tied": True},
    "qwen-7b": {"arch": "qwen2", "dim": 3584, "layers": 28, "heads": 28, "kv_heads": 4, "head_dim": 128, "ffn": 18944, "vocab": 152064, "tied": False},
    "moe": {"arch": "qwen3moe", "dim": 2048, "layers": 12, "heads": 32, "kv_heads": 4, "head_dim": 128, "ffn": 6144, "vocab": 151936, "tied": False, "experts": 128, "used": 8},
}
EXPERT_FFN = 768


def rows(kind: str, count: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """u1[count, row_bytes]: a few random rows repeated, with scales of a sane size."""
    if kind == "F32":
        return (rng.standard_normal((count, columns)) * 0.02).astype(np.float32)
    fmt = quants.get(kind)
    distinct = min(count, 64)
    blocks = rng.integers(0, 256, (distinct * columns // fmt.weights, fmt.block_bytes), dtype=np.uint8).reshape(-1).view(fmt.dtype)
    for name in fmt.dtype.names or ():
        if fmt.dtype[name] == np.float16:
            blocks[name] = rng.uniform(-0.002, 0.002, blocks[name].shape)
    if kind == "Q8_0":
        blocks["codes"] = np.maximum(blocks["codes"], -127)
    table = blocks.view(np.uint8).reshape(distinct, -1)
    return table[rng.integers(0, distinct, count)]


def kind_of(name: str, mixture: str, layer: int, layers: int) -> str:
    """The type of a tensor. Q4_K_M: more bits for some values and down projections, and for the output."""
    if mixture != "Q4_K_M":
        return mixture
    more_bits = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if name in ("output", "token_embd") or (name in ("attn_v", "ffn_down", "ffn_down_exps") and more_bits):
        return "Q6_K"
    return "Q4_K"


def write(path: Path, shape: str, mixture: str) -> None:
    s, rng = SHAPES[shape], np.random.default_rng(0)
    arch, dim, layers, head_dim = s["arch"], s["dim"], s["layers"], s["head_dim"]
    q_rows, k_rows = s["heads"] * head_dim, s["kv_heads"] * head_dim
    writer = gguf.GGUFWriter(str(path), arch, use_temp_file=True)
    writer.add_name(f"{shape} with random weights")
    for value, add in (
        (layers, writer.add_block_count),
        (32768, writer.add_context_length),
        (dim, writer.add_embedding_length),
        (s["ffn"], writer.add_feed_forward_length),
        (s["heads"], writer.add_head_count),
        (s["kv_heads"], writer.add_head_count_kv),
        (head_dim, writer.add_key_length),
        (head_dim, writer.add_value_length),
        (1e-5, writer.add_layer_norm_rms_eps),
        (500000.0, writer.add_rope_freq_base),
        (head_dim, writer.add_rope_dimension_count),
        (15, writer.add_file_type),
    ):
        add(value)
    if "experts" in s:
        writer.add_expert_count(s["experts"])
        writer.add_expert_used_count(s["used"])
        writer.add_expert_feed_forward_length(EXPERT_FFN)
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)]]
    tokens += [f"▁w{i}" for i in range(s["vocab"] - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def matrix(name: str, *shape: int, layer: int = 0, kind: str | None = None) -> None:
        chosen = kind or kind_of(name.split(".")[-1], mixture, layer, layers)
        data = rows(chosen, int(np.prod(shape[:-1])), shape[-1], rng)
        writer.add_tensor(f"{name}.weight", data.reshape(*shape[:-1], -1), raw_dtype=None if chosen == "F32" else gguf.GGMLQuantizationType[chosen])

    def ones(name: str, length: int, part: str = "weight", value: float = 1.0) -> None:
        writer.add_tensor(f"{name}.{part}", np.full(length, value, np.float32))

    matrix("token_embd", s["vocab"], dim)
    if not s["tied"]:
        matrix("output", s["vocab"], dim)
    ones("output_norm", dim)
    for i in range(layers):
        b = f"blk.{i}."
        for name, count, columns in (("attn_q", q_rows, dim), ("attn_k", k_rows, dim), ("attn_v", k_rows, dim), ("attn_output", dim, q_rows)):
            matrix(b + name, count, columns, layer=i)
            if arch == "qwen2" and name != "attn_output":
                ones(b + name, count, "bias", 0.0)
        if "experts" in s:
            ones(b + "attn_q_norm", head_dim)
            ones(b + "attn_k_norm", head_dim)
            matrix(b + "ffn_gate_inp", s["experts"], dim, kind="F32")
            for name, count, columns in (("gate", EXPERT_FFN, dim), ("up", EXPERT_FFN, dim), ("down", dim, EXPERT_FFN)):
                matrix(f"{b}ffn_{name}_exps", s["experts"], count, columns, layer=i)
        else:
            for name, count, columns in (("ffn_gate", s["ffn"], dim), ("ffn_up", s["ffn"], dim), ("ffn_down", dim, s["ffn"])):
                matrix(b + name, count, columns, layer=i)
        ones(b + "attn_norm", dim)
        ones(b + "ffn_norm", dim)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type")
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write(arguments.path, arguments.shape, arguments.type)
