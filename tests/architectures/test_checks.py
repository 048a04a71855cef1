"""No file runs with a key or a tensor that nobody read, or without one that it needs: refused by name, never computed wrong."""

from __future__ import annotations

import re
import shutil

import gguf
import numpy as np
import pytest
import tiny

from cpuinfer import architectures
from cpuinfer.architectures.hyperparameters import Keys
from cpuinfer.errors import CpuinferError, GGUFError, UnsupportedModel
from cpuinfer.formats.gguf import GGUFFile
from cpuinfer.model import Model

# Tensors that some models of an architecture have and others lack in all layers; the output is the embedding where it is missing.
OPTIONAL = re.compile(r"output\.weight|.*attn_(q|k|v|qkv|output)\.bias|.*ffn_(up|down|gate)\.bias|.*attn_norm_2\.(weight|bias)|.*_shexp\.weight|output\.bias")


def rewritten(source, target, drop=(), add=None, **keys):
    """A copy of a GGUF file without some tensors, with others, with other metadata under the architecture's prefix (None: without it). Names have __ for dots."""
    reader = gguf.GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(str(target), arch)
    changed = {f"{arch}.{name.replace('__', '.')}": value for name, value in keys.items()}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", *changed):
            continue
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None)
    for name, value in changed.items():
        if isinstance(value, (list, tuple)):
            writer.add_array(name, list(value))
        elif value is not None:
            kind = {bool: "bool", int: "int32", float: "float32", str: "string"}[type(value)]
            getattr(writer, f"add_{kind}")(name, value)
    for tensor in reader.tensors:
        if tensor.name not in drop:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in (add or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def build(path, context_length=None) -> list[str]:
    notes: list[str] = []
    with GGUFFile.open(path) as file:
        architectures.build(file, context_length, notes)
    return notes


def names_of(path) -> list[str]:
    with GGUFFile.open(path) as file:
        return list(file.tensors)


ARCHITECTURES = ["llama", *tiny.LAYOUTS]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_without_any_one_tensor_a_file_is_refused_by_its_name(arch, tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", arch, "F32")
    assert build(source) == []
    for name in names_of(source):
        if name in ("output.weight", "output.bias") and arch != "phi2":
            continue
        with pytest.raises(CpuinferError) as error:
            build(rewritten(source, tmp_path / "less.gguf", drop=[name]))
        # Where one tensor may stand for several (fused, split, of experts) one of the others is named.
        named = name in str(error.value) or re.search(r"(attn_q|ffn_\w+)[^ ]* is (missing|not part)", str(error.value))
        assert named, (name, str(error.value))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_without_one_kind_of_tensor_in_all_layers_too_unless_it_is_optional(arch, tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", arch, "F32")
    names = names_of(source)
    for kind in sorted({re.sub(r"blk\.\d+\.", "", name) for name in names}):
        drop = [name for name in names if re.sub(r"blk\.\d+\.", "", name) == kind]
        if OPTIONAL.fullmatch(kind) or (arch == "stablelm" and kind.startswith("ffn_norm.")):  # without it attention and feed-forward are parallel
            continue
        with pytest.raises(CpuinferError):
            build(rewritten(source, tmp_path / "less.gguf", drop=drop))


def test_an_unknown_tensor_within_the_model_is_refused(tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", "llama", "F32")
    for name in ("blk.1.attn_secret.weight", "secret.weight", "blk.0.attn_q_norm_2.weight", "output_scale.weight"):
        with pytest.raises(UnsupportedModel, match=name):
            build(rewritten(source, tmp_path / "more.gguf", add={name: np.ones(64, np.float32)}))


def test_parts_for_vision_audio_and_drafts_are_left_alone_with_one_note(tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", "llama", "F32")
    ones = np.ones(64, np.float32)
    names = ["v.blk.0.attn_q.weight", "mm.0.weight", "a.position_embd.weight", "blk.2.attn_norm.weight", "blk.2.nextn.eh_proj.weight", "blk.0.attn_rot_embd.weight"]
    path = rewritten(source, tmp_path / "more.gguf", add=dict.fromkeys(names, ones), vision__block_count=3, mm__tokens_per_image=256)
    notes = build(path)
    assert len(notes) == 1 and "6 tensors" in notes[0] and "v.blk.0.attn_q.weight" in notes[0]
    with Model(source, context_length=64) as plain, Model(path, context_length=64) as more:
        assert np.array_equal(plain.logits([5, 6, 7]), more.logits([5, 6, 7])) and any("6 tensors" in note for note in more.notes)


def test_draft_layers_that_block_count_counts_are_not_run(tmp_path) -> None:
    whole = tiny.model(tmp_path / "m.gguf", "llama", "F32", layers=3)
    drafts = rewritten(whole, tmp_path / "drafts.gguf", nextn_predict_layers=1, attention__head_count_kv=[2, 2, 2])
    two = rewritten(whole, tmp_path / "two.gguf", block_count=2)
    with Model(drafts, context_length=64) as a, Model(two, context_length=64) as b:
        assert np.array_equal(a.logits([5, 6, 7]), b.logits([5, 6, 7]))
    with pytest.raises(GGUFError, match="nextn_predict_layers"):
        build(rewritten(whole, tmp_path / "bad.gguf", nextn_predict_layers=3))


# ---- keys ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arch, keys",
    [
        ("llama", {"attention__sliding_window": 16}),
        ("llama", {"attention__clamp_kqv": 8.0}),
        ("llama", {"attn_logit_softcapping": 30.0}),
        ("llama", {"final_logit_softcapping": 30.0}),
        ("llama", {"logit_scale": 0.5}),
        ("llama", {"embedding_scale": 12.0}),
        ("llama", {"residual_scale": 0.2}),
        ("llama", {"attention__scale": 0.5}),
        ("llama", {"attention__causal": False}),
        ("llama", {"attention__max_alibi_bias": 8.0}),
        ("llama", {"attention__temperature_scale": 0.1}),
        ("llama", {"rope__dimension_sections": [8, 4, 4, 0]}),
        ("llama", {"rope__scaling__yarn_attn_factor": 1.5, "rope__scaling__type": "yarn", "rope__scaling__factor": 2.0}),
        ("qwen2", {"attention__sliding_window": 100}),
        ("qwen3", {"use_parallel_residual": False}),
        ("gpt2", {"attention__max_alibi_bias": 8.0}),
        ("phi2", {"some_new_key": 3}),
        ("gemma3", {"rope__local__freq_base": 5000.0}),
        ("llama", {"a_list": ["x", "y"]}),
    ],
    ids=str,
)
def test_a_key_that_changes_the_computation_and_is_not_read_is_refused_by_name(arch, keys, tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", arch, "F32")
    name = next(iter(keys)).replace("__", ".")
    with pytest.raises(UnsupportedModel, match=re.escape(f"{arch}.{name}")):
        build(rewritten(source, tmp_path / "other.gguf", **keys))


@pytest.mark.parametrize(
    "arch, keys",
    [
        ("llama", {"attention__sliding_window": 0, "attention__clamp_kqv": 0.0, "logit_scale": 1.0, "attention__causal": True, "vocab_size": 300, "pooling_type": 3}),
        ("llama", {"attention__sliding_window": 256, "attention__scale": 0.25, "expert_count": 0, "expert_used_count": 0, "rope__scaling__type": "none"}),
        ("llama", {"rope__scaling__type": "linear", "rope__scaling__factor": 1.0, "rope__scaling__yarn_beta_fast": 16.0, "rope__scaling__original_context_length": 64}),
        ("gpt2", {"rope__dimension_count": 7, "rope__scaling__type": "yarn"}),
        ("phi3", {"attention__sliding_window": 16}),
        ("stablelm", {"use_parallel_residual": True}),
    ],
    ids=str,
)
def test_a_key_that_changes_nothing_passes(arch, keys, tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", arch, "F32")
    other = rewritten(source, tmp_path / "other.gguf", **keys)
    assert build(other) == []
    with Model(source, context_length=64) as a, Model(other, context_length=64) as b:
        assert np.array_equal(a.logits([5, 6, 7, 8]), b.logits([5, 6, 7, 8]))


def test_a_window_that_a_longer_context_would_leave_is_refused(tmp_path) -> None:
    source = rewritten(tiny.model(tmp_path / "m.gguf", "llama", "F32"), tmp_path / "w.gguf", attention__sliding_window=256)
    assert build(source, 256) == []
    with pytest.raises(UnsupportedModel, match="sliding_window"):
        build(source, 512)


@pytest.mark.parametrize("arch", ["gemma2", "gemma3", "exaone4", "gpt-oss", "olmo2"])
def test_a_window_of_0_is_none(arch, tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", arch, "F32")
    zero = rewritten(source, tmp_path / "zero.gguf", attention__sliding_window=0)
    with GGUFFile.open(zero) as file:
        assert set(architectures.build(file).hyperparameters.windows) == {None}
    with pytest.raises(GGUFError, match="sliding_window"):
        build(rewritten(source, tmp_path / "bad.gguf", attention__sliding_window=-1))


def test_cohere2_needs_its_window_since_it_says_which_layers_rotate(tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", "cohere2", "F32")
    for value in (0, None):
        with pytest.raises(GGUFError, match="sliding_window"):
            build(rewritten(source, tmp_path / "bad.gguf", attention__sliding_window=value))


@pytest.mark.parametrize("pattern", [[True], [True, False], [True, False, True, True, False], [], [1, 0, 1, 0, 1, 0, 1], 0, -1, [0.5] * 6, "x"], ids=str)
def test_a_pattern_has_one_value_or_one_a_layer(pattern, tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", "gemma3", "F32", layers=6)
    path = rewritten(source, tmp_path / "p.gguf", attention__sliding_window_pattern=pattern) if pattern != [] else None
    if pattern == [True]:
        with GGUFFile.open(path) as file:
            assert architectures.build(file).hyperparameters.windows == (16,) * 6
    elif path:
        with pytest.raises(GGUFError, match="sliding_window_pattern"):
            build(path)


@pytest.mark.parametrize("name", ["feed_forward_length", "attention.head_count", "attention.head_count_kv"])
@pytest.mark.parametrize("values", [[2, 2], [2, 2, 2, 2], [2, -2, 2], [2.0, 2.0, 2.0], [True, False, False]], ids=str)
def test_every_array_of_layers_is_read_in_one_place_that_counts(name, values, tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", "llama", "F32", layers=3)
    other = rewritten(source, tmp_path / "o.gguf", **{name.replace(".", "__"): values})
    with GGUFFile.open(other) as file, pytest.raises(GGUFError, match=re.escape(name)):
        Keys(file).per_layer(name, 3)
    with pytest.raises(GGUFError, match=re.escape(name)):
        build(other)


# ---- OLMo 3, LongRoPE, linear scaling --------------------------------------------------------------------------------------------------


def test_olmo_3_has_windows_and_an_unscaled_rope_in_three_of_four_layers(tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", "olmo2", "F32", layers=8)
    path = rewritten(source, tmp_path / "o.gguf", attention__sliding_window=24, rope__scaling__type="yarn", rope__scaling__factor=8.0, rope__scaling__original_context_length=64)
    with GGUFFile.open(path) as file, GGUFFile.open(source) as plain:
        h, unscaled = architectures.build(file).hyperparameters, architectures.build(plain).hyperparameters
    assert h.windows == (24, 24, 24, None) * 2 and unscaled.windows == (None,) * 8
    for i, rope in enumerate(h.ropes):
        assert np.array_equal(rope.frequencies, unscaled.ropes[0].frequencies) == (i % 4 < 3)
        assert (rope.magnitude == 1) == (i % 4 < 3)


def longrope(tmp_path, original=64):
    source = tiny.model(tmp_path / "m.gguf", "phi3", "F32")
    factors = {"rope_factors_short.weight": np.linspace(1, 2, 8, dtype=np.float32), "rope_factors_long.weight": np.linspace(2, 9, 8, dtype=np.float32)}
    return rewritten(source, tmp_path / "long.gguf", add=factors, rope__scaling__original_context_length=original)


def test_longrope_uses_short_factors_up_to_the_original_context_which_is_the_default(tmp_path) -> None:
    path, ids = longrope(tmp_path), list(range(5, 25))
    logits, notes = {}, {}
    for context in (None, 32, 64, 65, 256):
        with Model(path, context_length=context, cache_type="f32") as model:
            logits[context], notes[context] = model.logits(ids), model.notes
            assert model.context_length == (context or 64)
    assert all(np.array_equal(logits[32], logits[c]) for c in (None, 64)) and np.array_equal(logits[65], logits[256])
    assert np.abs(logits[64] - logits[65]).max() > 0.01
    assert [len(notes[c]) for c in (None, 32, 64, 65, 256)] == [0, 0, 0, 1, 1] and "-c 64" in notes[65][0]


def test_longrope_without_one_of_its_tables_is_refused(tmp_path) -> None:
    path = longrope(tmp_path)
    for name, context in (("rope_factors_short.weight", 64), ("rope_factors_long.weight", 65)):
        with pytest.raises(GGUFError, match=name):
            build(rewritten(path, tmp_path / "less.gguf", drop=[name]), context)


def test_a_factor_without_a_kind_of_scaling_is_linear(tmp_path) -> None:
    source = tiny.model(tmp_path / "m.gguf", "llama", "F32")
    shutil.copy(source, tmp_path / "plain.gguf")
    named = rewritten(source, tmp_path / "a.gguf", rope__scaling__type="linear", rope__scaling__factor=4.0)
    unnamed = rewritten(source, tmp_path / "b.gguf", rope__scaling__factor=4.0)
    none = rewritten(source, tmp_path / "c.gguf", rope__scaling__type="none", rope__scaling__factor=4.0)
    results = []
    for path in (named, unnamed, none, source):
        with Model(path, context_length=64) as model:
            results.append(model.logits(list(range(5, 30))))
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[2], results[3]) and not np.array_equal(results[0], results[3])


def test_the_epsilon_is_that_of_the_architectures_own_kind_of_norm(tmp_path) -> None:
    for arch, own, other in (("nemotron", "layer_norm_epsilon", "layer_norm_rms_epsilon"), ("llama", "layer_norm_rms_epsilon", "layer_norm_epsilon")):
        source = tiny.model(tmp_path / "m.gguf", arch, "F32")
        path = rewritten(source, tmp_path / "e.gguf", **{f"attention__{own}": 0.25, f"attention__{other}": 0.5})
        with GGUFFile.open(path) as file:
            assert architectures.build(file).hyperparameters.norm_eps == 0.25
