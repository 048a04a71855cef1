"""Every error that a user may see. A message is one line: what failed, where, and the next step."""

from __future__ import annotations


class CpuinferError(Exception):
    """Base of all errors that cpuinfer raises on purpose."""


class GGUFError(CpuinferError):
    """The file is not a usable GGUF file: truncated, damaged, hostile or of another kind."""


class UnsupportedModel(CpuinferError):
    """A valid file that needs something we do not have: architecture, tensor type, tokenizer, rope scaling."""


class ModelNotFound(CpuinferError):
    """No file, catalog entry or repository has this name, or it could not be fetched."""


class TemplateError(CpuinferError):
    """The chat template refused these messages, or could not be rendered within its limits."""


class ContextFull(CpuinferError):
    """A prompt does not fit into the context."""


class InvalidRequest(CpuinferError):
    """A sampling option or a message has a value outside its allowed range."""


class ModelFailure(CpuinferError):
    """The model ran, but what it computed is no number."""


class MachineError(CpuinferError):
    """This machine cannot do it: instruction set, memory, a folder that cannot be written."""
