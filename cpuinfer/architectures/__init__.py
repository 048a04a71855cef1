"""Decoder architectures by GGUF name: one file each, found by discovery.

A file calls `register(Architecture(...))`. Most are the shared decoder with a few hyperparameters of their own; see docs/adding-a-model.md.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import GGUFError, UnsupportedModel
from ..formats.gguf import GGUFFile


@dataclass(frozen=True)
class Architecture:
    """names: what general.architecture says. hyperparameters: (file, context_length) -> Hyperparameters. decoder: (builder, weights, hyperparameters) -> logits.

    requires: tensors that a file must have beside the matrices, whose absence would else be the identity (`.weight` where nothing else is said). varying: beginnings of the
    names of tensors that only some layers have. harmless: metadata keys that the reference implementation leaves alone too.
    """

    names: tuple[str, ...]
    hyperparameters: Callable[[GGUFFile, int], Any]
    decoder: Callable[..., Any]
    requires: tuple[str, ...] = ("output_norm", "attn_norm", "ffn_norm")  # decoder.NORMS
    varying: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()


_REGISTERED: dict[str, Architecture] = {}


def register(architecture: Architecture) -> Architecture:
    for name in architecture.names:
        _REGISTERED[name] = architecture
    return architecture


@functools.cache
def all() -> dict[str, Architecture]:  # noqa: A001  (architectures.all() reads well)
    """Every supported architecture by GGUF name."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
    return dict(sorted(_REGISTERED.items()))


def get(name: str) -> Architecture:
    if name not in all():
        raise UnsupportedModel(f"architecture {name!r} is not supported; supported: {', '.join(all())}")
    return all()[name]


def build(file: GGUFFile, context_length: int | None = None, notes: list[str] | None = None):  # type: ignore[no-untyped-def]
    """The Program of a model file for a context of this length (default: the model's own). notes: gains what the user should know.

    Raises UnsupportedModel for an architecture, tensor type, metadata key or rope scaling that is not supported, GGUFError for missing or misshapen keys and tensors.
    """
    from ..program.builder import Builder, Weights
    from .checks import check_keys, check_tensors

    name, notes = file.get("general.architecture", str), [] if notes is None else notes
    try:
        architecture = get(name)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{file.path}: {error}") from None
    if not file.tensors:
        raise GGUFError(f"{file.path} holds no tensors (a vocabulary only?); use a complete model file")
    hyperparameters = architecture.hyperparameters(file, context_length or 0)
    if hyperparameters.original_context and (context_length or 0) > hyperparameters.original_context:
        notes.append(f"a context of {context_length} uses the model's long rope factors, with which it reads short texts less well than with -c {hyperparameters.original_context}")
    builder, weights = Builder(file, name), Weights(file)
    logits = architecture.decoder(builder, weights, hyperparameters)
    check_keys(file, name, hyperparameters, context_length or 0, architecture.harmless)
    check_tensors(file, name, architecture.requires, architecture.varying, hyperparameters.n_layers, notes)
    return builder.finish(logits, hyperparameters)
