"""The records that ops and batches hand to compiled kernels: plain data, no numba.

Every field is 8 bytes: an address or integer (i8) or a real number (f8). A missing array is address 0.
Row-major buffers have a stride in elements, a multiple of 16 (f32) or 256 (Q8); the padding after the last column stays zero, so kernels may read and
write whole vectors.

Q8 activations of T rows and C columns (C rounded up to 256) are four arrays: codes i8[T, C]; scales f32[T, C/32], value = scale * code; sums
f32[T, C/32] = scale * sum of 32 codes; sums16 f32[T, C/16] = scale * sum of 16 codes. More than FEW rows are stored in tiles of `tiles.TOKENS` rows,
so that a register tile reads them in order: codes i8[tile, C/4, TOKENS, 4], scales f32[tile, C/32, TOKENS], sums and sums16 likewise. Only
kernels/quantize.py writes Q8 activations and only the matrix products read them. Every row array has room for 8 rows more than it needs.
"""

from __future__ import annotations

import numpy as np

PAGE = 32  # tokens in a KV page


def round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def _record(integers: str, reals: str = "") -> np.dtype:
    return np.dtype([(name, "i8") for name in integers.split()] + [(name, "f8") for name in reals.split()])


# tokens, positions, slots, sequences: i32[n_tokens]. slots: page * PAGE + offset. Tokens of a sequence stand together, positions rising by one.
# query_starts: i32[n_sequences + 1], the token index where each sequence starts. lengths: i32[n_sequences], its KV length after this step.
# page_tables: i32[n_sequences, page_table_stride]. logit_rows: i32[n_logit_rows], token indices whose logits are wanted.
BATCH = _record("n_tokens n_sequences n_logit_rows tokens positions slots sequences query_starts page_tables page_table_stride lengths logit_rows")

# Each op: what it computes. T = n_tokens, or n_logit_rows where the op is marked per_logit_row. All f32 unless said otherwise.
RECORDS: dict[str, np.dtype] = {
    # y[t, :columns] = scale * dequantized row tokens[t], or row positions[t] if by_position      variants: (format,)
    "embedding": _record("weights row_bytes columns y y_stride by_position scratch scratch_bytes", "scale"),
    # y[t] = normalized x[row] * weight + bias, row = logit_rows[t] if gather else t. kind 0: RMS, 1: LayerNorm. weight, bias may be 0.
    # residual: address of f32 rows (stride residual_stride) added to the result, may be y itself. q*: if q is not 0 the result is also
    # written as Q8 activations (q, q_scales, q_sums, q_sums16, q_stride); y may then be 0.
    "norm": _record(
        "x x_stride columns weight bias kind gather residual residual_stride y y_stride q q_scales q_sums q_sums16 q_stride scratch scratch_bytes",
        "eps",
    ),
    # Q8 activations of x
    "quantize": _record("x x_stride columns q q_scales q_sums q_sums16 q_stride"),
    # y[t, r] (+)= weights[r] . x[t] + bias[r].  Q8 activations (x codes) or f32 ones, as the format wants.   variants: (format,)
    # accumulate: 1 adds to y. per_logit_row: T is n_logit_rows. scratch: per-thread scratch, scratch_bytes each; see matmul_scratch_bytes.
    "matmul": _record("weights row_bytes rows columns x x_scales x_sums x_sums16 x_stride y y_stride bias accumulate counter scratch scratch_bytes per_logit_row"),
    # table[t] = [dimensions/2 cosines, dimensions/2 sines] of positions[t] * frequencies (f64[dimensions/2]), times magnitude * (1 + growth * log(1 + positions[t] // span))
    "rope_table": _record("frequencies dimensions span table table_stride", "magnitude growth"),
    # In place on heads of x[t] = [n_heads, head_dim]: rotates the first `dimensions` of each head. style 0: interleaved pairs, 1: halves.
    "rope": _record("x x_stride n_heads head_dim dimensions style table table_stride"),
    # In place: RMS (kind 0) or layer (1) norm of each head; weight f32[head_dim], or [n_heads, head_dim] if per_head
    "head_norm": _record("x x_stride n_heads head_dim weight bias kind per_head", "eps"),
    # cache[slot, head] = x[t, head]: rows of row_bytes in u1[n_pages, n_heads, PAGE, row_bytes]         variants: (cache type,)
    "store_kv": _record("x x_stride n_heads head_dim cache row_bytes scratch scratch_bytes"),
    # Softmax attention of T queries [n_heads, key_dim] over paged keys and values -> y[t] = [n_heads, value_dim].
    # window 0: all; w: only the last w positions, the query's own included. softcap 0: none.       variants: (key type, value type)
    # slopes: f32[n_heads] or 0; a score gains slope * (key position - query position). sinks: f32[n_heads] or 0; a score that takes part in the softmax without a value.
    "attention": _record(
        "q q_stride n_heads n_kv_heads key_dim value_dim keys key_row_bytes values value_row_bytes window slopes sinks y y_stride counter scratch scratch_bytes",
        "scale softcap",
    ),
    # y[t] = activation(gate[t]) * up[t] (up 0: no product), and/or its Q8 activations. activation: ACTIVATIONS
    "activate": _record("gate gate_stride up up_stride columns activation y y_stride q q_scales q_sums q_sums16 q_stride scratch scratch_bytes"),
    # y[t] = a[t] * scale + b[t] * b_scale (b may be 0)
    "add": _record("a a_stride b b_stride columns y y_stride", "scale b_scale"),
    # x[t] = cap * tanh(x[t] * scale / cap), in place; cap 0: x * scale
    "softcap": _record("x x_stride columns", "scale cap"),
}

# Mixtures of experts, see experts.py. route: x are the router's logits; sigmoid: scores are sigmoids, else a softmax over all experts; bias: f32[n_experts] added for the
# choice only; normalize: the weights of a token sum to scale, else they are scores times scale. scales: f32[n_experts] or 0, factors of the weights
# at last.
RECORDS["route"] = _record("x x_stride n_experts n_used sigmoid normalize bias scales groups y y_stride scratch scratch_bytes", "scale")
RECORDS["gather"] = _record("x x_stride columns n_used slots slots_stride y y_stride")
RECORDS["combine"] = _record("x x_stride columns n_used slots slots_stride shared shared_stride gate gate_stride y y_stride")
RECORDS["experts"] = _record("kernels record record_bytes patches n_patches groups n_experts few scratch scratch_bytes")
# Copies columns x_first.. of each head to columns y_first.. of y; by_head: rows are grouped by head (columns.py) and begin with the head's columns. groups: 0, or written.
RECORDS["columns"] = _record("x x_stride x_head_columns x_first x_by_head n_heads columns groups y y_stride y_head_columns y_first y_by_head")
RECORDS["probe"] = _record("data bytes repeats result")  # see probe.py
EXPERT_COUNTERS = 4  # products between two routings that count their rows
EXPERT_SPARE_ROWS = 8  # after an expert's rows: register tiles and 16-bit codes reach beyond the last one


def slot_rows(tokens: int, n_experts: int, n_used: int) -> int:
    """Rows that the slots of so many tokens need, in groups by expert."""
    return tokens * n_used + EXPERT_SPARE_ROWS * min(n_experts, tokens * n_used)


ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_erf": 2, "gelu_quick": 3, "relu": 4, "relu2": 5, "swiglu_oai": 6}
# swiglu_oai (gpt-oss): gate at most 7, up within -7..7, gate * sigmoid(1.702 gate) * (up + 1)
# gelu: the tanh form, argument (within -10..10) and result rounded to half precision, as the reference implementation's table does

# One op kind may have several compiled kernels; the team picks by the number of rows: 1 -> vector, up to FEW -> few, more -> many.
DRIVERS = {"matmul": ("matmul_vector", "matmul_few", "matmul_many")}
FEW = 16

CACHE_TYPES = ("f16", "f32", "q8_0")


def cache_row_bytes(cache_type: str, head_dim: int) -> int:
    """Bytes of one head's key or value: f16/f32 padded to 16 elements; q8_0: codes padded to 32, then one f32 scale per 32."""
    if cache_type == "q8_0":
        return round_up(head_dim, 32) * 9 // 8
    return round_up(head_dim, 16) * {"f16": 2, "f32": 4}[cache_type]


# What the team's own kernels read: the program's arrays, the batch, the shared state words. few: the largest row count of the "few" drivers.
# One draw from logits f32[n_vocab] (changed in place); see sampling.py. history: i32[n_history], the tokens that penalties look at. counts: i32[n_vocab], zero between
# calls. ids, values: room for n_vocab i32 and f32. state: i64, of the random numbers. token: i64, the result. n_logprobs: of the likeliest tokens; logprob_ids: i64,
# logprob_values: f32, the chosen token first, n_logprobs + 1 of each.
RECORDS["sample"] = _record(
    "logits n_vocab history n_history counts ids values state token top_k n_logprobs logprob_ids logprob_values",
    "temperature top_p min_p typical_p repeat_penalty presence_penalty frequency_penalty",
)
TEAM = _record("n_ops kernels records sync per_logit_row counters batch state few")
RECORDS["team"] = TEAM


def matmul_scratch_bytes(columns: int) -> int:
    """Scratch a thread needs for a product over this many columns: a unit, and a panel of rows with their scales and minimums (panels.py)."""
    return 32768 + max(384 * 1024, round_up(columns, 256) * 4 * 32)


ATTENTION_ROWS = 96  # query rows that one task of prefill attention handles together
ATTENTION_BLOCK = 96  # keys that it converts at a time: a multiple of PAGE and of 6
ATTENTION_SHARES = 8  # results of shared-out keys that a thread has room for


def attention_share_bytes(n_heads: int, n_kv_heads: int, value_dim: int) -> int:
    """A share's result: per query head of the KV head f32[padded value_dim], largest score, sum of weights (attention_few.py); heads in fours."""
    return round_up(n_heads // n_kv_heads, 4) * 4 * (round_up(value_dim, 16) + 16)


def attention_scratch_bytes(n_heads: int, n_kv_heads: int, key_dim: int, value_dim: int) -> int:
    """Scratch a thread needs for attention: shares; and the buffers of attention_many.py, which are more than those of attention_few.py."""
    key, value, rows, block = round_up(key_dim, 16), round_up(value_dim, 16), ATTENTION_ROWS + 32, ATTENTION_BLOCK + 6
    many = rows * (key + value + 16 + 8) + block * (32 + key + value + 32) + 32 * max(key, value) + 4096
    few = round_up(n_heads // n_kv_heads, 4) * key + 2048
    return (ATTENTION_SHARES + 1) * attention_share_bytes(n_heads, n_kv_heads, value_dim) + 4 * max(many, few)
