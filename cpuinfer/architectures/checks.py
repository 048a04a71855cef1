"""What a model file may hold: every metadata key and every tensor is used, known to change nothing, or a reason to refuse the file. What must be there is there."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from ..errors import GGUFError, UnsupportedModel
from ..formats.gguf import GGUFFile

# Keys under an architecture's prefix that describe the file or say what the tensors show: how many are shared, which layers are dense, how wide a part is. The key of the norm
# epsilon that is of the other kind is among them, and the settings of parts that are not run (vision, audio).
HARMLESS = re.compile(
    r"""vocab_size|tensor_data_layout|pooling_type|classifier\.output_labels|embedding_length_out|leading_dense_block_count|expert_shared_count|expert_shared_feed_forward_length
    |moe_every_n_layers|interleave_moe_layer_step|attention\.q_lora_rank|attention\.layer_norm_(rms_)?epsilon|rope\.scaling\.finetuned
    |(vision|audio|mm|clip|projector)\..*""",
    re.VERBOSE,
)
# Values with which a key that an architecture does not read changes nothing there.
NO_CHANGE: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.output_scale": (0, 1),
    "embedding_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_weights_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0, 1),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.type": ("none",),
    "swin_norm": (False,),
} | dict.fromkeys(
    """attention.clamp_kqv attention.max_alibi_bias attention.scale attention.shared_kv_layers attention.temperature_length attention.temperature_scale attn_logit_softcapping
    embedding_length_per_layer_input expert_count expert_used_count final_logit_softcapping n_deepstack_layers nextn_predict_layers rope.scale_linear router_logit_softcapping
    swiglu_clamp_exp swiglu_clamp_shexp token_shift_count""".split(),
    (0,),
)
# Tensors of parts beside the text model.
_BESIDE = re.compile(r"(v|a|t|mm|vision|audio|clip|model\.vision)\.|rope_freqs\.weight$|.*attn_rot_embd\.weight$|.*rotary_emb\.inv_freq$")
_LAYER = re.compile(r"blk\.(\d+)\.(.*)")
_EVERYWHERE = re.compile(r"(output|token_embd|position_embd|output_norm|token_embd_norm)\.")  # prefixes of tensors that belong to no layer


def check_keys(file: GGUFFile, prefix: str, hyperparameters: Any, context_length: int, harmless: tuple[str, ...] = ()) -> None:
    """Refuse a key under the architecture's prefix that was not read and may change the computation."""
    for key, value in file.metadata.items():
        name = key.removeprefix(f"{prefix}.")
        if name == key or key in file.keys_read or name in harmless or HARMLESS.fullmatch(name):
            continue
        if isinstance(value, (bool, int, float, str)) and value in NO_CHANGE.get(name, ()):
            continue
        if name == "attention.sliding_window" and isinstance(value, int) and (value == 0 or value >= max(context_length, hyperparameters.context_length)):
            continue  # the window is never left
        if name == "attention.scale" and isinstance(value, float) and math.isclose(value, 1 / math.sqrt(hyperparameters.key_dim), rel_tol=1e-5):
            continue
        shown = value if isinstance(value, (bool, int, float)) else type(value).__name__ if not isinstance(value, str) else repr(value[:40])
        raise UnsupportedModel(f"{file.path}: metadata {key} ({shown}) is not part of architecture {prefix} as supported here; this variant cannot run")


def check_tensors(file: GGUFFile, architecture: str, requires: tuple[str, ...], varying: tuple[str, ...], n_layers: int, notes: list[str]) -> None:
    """Refuse a tensor of the text model that was not used, and a file that lacks a required one or has one in some of its layers only; note what else it holds.

    requires: names as in a layer or of the whole model, `.weight` where nothing else is said. varying: beginnings of names that some layers may lack.
    """
    beside = []
    for name in file.tensors:
        if name not in file.tensors_read:
            layer = _LAYER.fullmatch(name)
            if not (_BESIDE.match(name) or (layer and int(layer[1]) >= n_layers)):
                raise UnsupportedModel(f"{file.path}: tensor {name} is not part of architecture {architecture} as supported here; this variant cannot run")
            beside.append(name)
    if beside:
        notes.append(f"{len(beside)} tensors that the text model does not need are left alone (parts for vision, audio or drafts), the first is {beside[0]}")
    for required in requires:
        name = required if "." in required else f"{required}.weight"
        for full in [name] if _EVERYWHERE.match(name) else [f"blk.{i}.{name}" for i in range(n_layers)]:
            if full not in file.tensors:
                raise _missing(file, full, architecture)
    _check_uniform(file, architecture, varying, n_layers)


def _check_uniform(file: GGUFFile, architecture: str, varying: tuple[str, ...], n_layers: int) -> None:
    """All layers have the same tensors; in a mixture of experts, all that have a router and all that have none."""
    kinds: dict[bool, list[int]] = defaultdict(list)
    for i in range(n_layers):
        kinds[f"blk.{i}.ffn_gate_inp.weight" in file.tensors].append(i)
    names: dict[str, set[int]] = defaultdict(set)
    for name in file.tensors_read:
        if (match := _LAYER.fullmatch(name)) and int(match[1]) < n_layers:
            names[match[2]].add(int(match[1]))
    for name, layers in names.items():
        if name.startswith(varying):
            continue
        groups = list(kinds.values()) if name.startswith(("ffn_", "exp_probs")) else [list(range(n_layers))]
        for group in groups:
            lacking = [i for i in group if i not in layers]
            if lacking and len(lacking) < len(group):
                raise _missing(file, f"blk.{lacking[0]}.{name}", architecture)


def _missing(file: GGUFFile, name: str, architecture: str) -> GGUFError:
    return GGUFError(f"{file.path}: tensor {name} is missing, which {architecture} needs; the file is incomplete, download or convert it again")
