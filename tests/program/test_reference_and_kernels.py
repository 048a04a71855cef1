"""Programs of tiny models: compiled kernels against the numpy reference, fused against unfused, all ways of cutting a text into batches."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from program.simple_batch import SimpleBatch, SimpleCache

from cpuinfer import architectures
from cpuinfer.errors import UnsupportedModel
from cpuinfer.formats.gguf import GGUFFile
from cpuinfer.kernels import jit
from cpuinfer.program import builder, reference

ARCHITECTURES = ("llama", "gemma", "smollm3", "granite", *tiny.LAYOUTS)
GELU = ("gemma", "gemma2", "gemma3", "starcoder2", "gpt2", "gptneox", "falcon", "mpt", "phi2", "bloom", "starcoder", "codeshell", "gemma4")
TOKENS = [(7 * i * i + 3 * i) % 290 for i in range(60)]


def compiled(path, team, chunks, cache_type="f32") -> np.ndarray:
    with GGUFFile.open(path) as file:
        program = architectures.build(file)
        cache = SimpleCache(program.kv_layers, 96, cache_type)
        addresses = jit.build(program.kernels_needed((cache_type, cache_type)))
        program.assemble(addresses, cache, len(TOKENS), len(TOKENS), team.size)
        logits, at = [], 0
        for count in chunks:
            batch = SimpleBatch(TOKENS[at : at + count], at, cache)
            team.run(program, batch.record)
            logits.append(program.logits_array[:count, : program.logits.columns].copy())
            at += count
    return np.concatenate(logits)


def exact(path, cache_type="f32") -> np.ndarray:
    with GGUFFile.open(path) as file:
        program = architectures.build(file)
        program.cache = SimpleCache(program.kv_layers, 96, cache_type)
        program.allocate(len(TOKENS), len(TOKENS))
        batch = SimpleBatch(TOKENS, 0, program.cache)
        reference.run(program, batch.record)
        return program.logits_array[: len(TOKENS), : program.logits.columns].copy()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_float_models_equal_the_reference_however_the_text_is_cut(arch, team, tmp_path) -> None:
    path = tiny.model(tmp_path / "m.gguf", arch, "F32")
    expected = exact(path)
    # GELU rounds its result to half precision: a last bit may flip.
    largest, mean = (5e-2, 1e-3) if arch in GELU else (2e-3, 1e-4)
    for chunks in ([60], [20, 1, 1, 17, 2, 1, 18], [1] * 60):
        off = np.abs(compiled(path, team, chunks) - expected)
        assert off.max() < largest and off.mean() < mean, chunks


@pytest.mark.parametrize("sizes", [{"dim": 96, "heads": 3, "kv_heads": 1, "head_dim": 20}, {"dim": 64, "heads": 4, "kv_heads": 4, "head_dim": 80, "ffn": 96}])
def test_odd_sizes_equal_the_reference(sizes, team, tmp_path) -> None:
    path = tiny.model(tmp_path / "m.gguf", "llama", "F32", **sizes)
    for chunks in ([60], [3, 1, 56]):
        assert np.abs(compiled(path, team, chunks) - exact(path)).max() < 2e-3


@pytest.mark.parametrize("cache_type,tolerance", [("f16", 0.02), ("q8_0", 0.5)])
def test_cache_types_equal_the_reference_with_the_same_type(cache_type, tolerance, team, tmp_path) -> None:
    path = tiny.model(tmp_path / "m.gguf", "llama", "F32", head_dim=40)
    for chunks in ([60], [30, 1, 1, 28]):
        assert np.abs(compiled(path, team, chunks, cache_type) - exact(path, cache_type)).max() < tolerance


@pytest.mark.parametrize("fmt", ["Q4_1", "Q8_0", "Q4_K"])
def test_quantized_models_are_exact_token_by_token_and_as_near_as_8_bit_activations_allow_at_once(fmt, team, tmp_path) -> None:
    path = tiny.model(tmp_path / "m.gguf", "llama", fmt)
    expected = exact(path)
    scale = expected.std()
    one_by_one = compiled(path, team, [1] * 60)
    at_once = compiled(path, team, [60])
    mixed = compiled(path, team, [25, 1, 4, 30])
    for got in (at_once, mixed):
        assert np.abs(got - expected).mean() < 0.03 * scale
    assert np.abs(one_by_one - expected).mean() < 5e-4 * scale


@pytest.mark.parametrize("kind", ["f2", "f8"])
def test_norms_and_biases_may_be_halves_or_doubles(kind, tmp_path) -> None:
    as_floats, other = (exact(tiny.model(tmp_path / f"{vectors}.gguf", "qwen2", "F32", vectors=vectors)) for vectors in ("f4", kind))
    np.testing.assert_array_equal(as_floats, other)


def test_matrices_of_plain_numbers_are_refused_in_words(tmp_path) -> None:
    with GGUFFile.open(tiny.model(tmp_path / "m.gguf", "llama", "F64")) as file:
        with pytest.raises(UnsupportedModel, match=r"tensor token_embd.weight: tensor type F64 is supported for norms and biases, not for matrices; supported there: .*Q8_0"):
            architectures.build(file)


def test_fusing_changes_nothing_but_the_number_of_ops(tmp_path, monkeypatch) -> None:
    for arch in ARCHITECTURES:
        path = tiny.model(tmp_path / f"{arch}.gguf", arch, "Q8_0")
        fused = exact(path)
        with GGUFFile.open(path) as file:
            few = len(architectures.build(file).ops)
        monkeypatch.setattr(builder, "fuse", lambda ops: ops)
        plain = exact(path)
        with GGUFFile.open(path) as file:
            many = len(architectures.build(file).ops)
        monkeypatch.undo()
        assert np.abs(fused - plain).max() < (5e-2 if arch in GELU else 2e-3)
        assert few < many


def test_every_op_reads_only_what_a_barrier_has_published(tmp_path) -> None:
    from cpuinfer.program.ops import SPLIT_BY_HEADS

    for arch in ARCHITECTURES:
        with GGUFFile.open(tiny.model(tmp_path / f"{arch}.gguf", arch, "Q8_0")) as file:
            ops = architectures.build(file).ops
        written: dict = {}
        for op in ops:
            for value in op.reads() + op.writes():
                before = written.get(value)
                assert before is None or (before.kind in SPLIT_BY_HEADS and op.kind in SPLIT_BY_HEADS and before.args["n_heads"] == op.args["n_heads"]), (before, op)
            written |= {value: op for value in op.writes()}
            if op.sync:
                written = {}
