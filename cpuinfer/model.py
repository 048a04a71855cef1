"""Model: a file, its tokenizer, chat template and engine, behind the interface that Python users see."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import tokenizers
from .engine.engine import Engine
from .engine.generation import Generation
from .engine.sequence import SamplingParams
from .errors import InvalidRequest, UnsupportedModel
from .formats.gguf import GGUFFile
from .tokenizers import chat_template

if TYPE_CHECKING:
    import numpy as np


def load(
    model: str | Path,
    threads: int | None = None,
    context_length: int | None = None,
    cache_type: str | tuple[str, str] = "f16",
    batch_size: int = 512,
    max_sequences: int = 1,
    cache_tokens: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Model:
    """Load a model: a path to a .gguf file, a catalog name, or hf:OWNER/REPO[:QUANT_OR_FILE]; what is not here yet is fetched.

    The weights stay in the file, memory-mapped. See Engine.from_gguf for the options. Raises CpuinferError where the model or an option cannot be used.
    """
    from .models import store

    return Model(store.resolve(str(model)), threads, context_length, cache_type, batch_size, max_sequences, cache_tokens, on_progress)


class Model:
    """A loaded model; also a context manager. Calls from several threads take turns."""

    def __init__(
        self,
        path: Path,
        threads: int | None = None,
        context_length: int | None = None,
        cache_type: str | tuple[str, str] = "f16",
        batch_size: int = 512,
        max_sequences: int = 1,
        cache_tokens: int | None = None,
        on_progress: Callable[[int, int, str], None] | None = None,
    ):
        started = time.perf_counter()
        self.path = Path(path)
        self.gguf = GGUFFile.open(path)
        try:
            self.tokenizer = tokenizers.load(self.gguf.metadata)
            self.engine = Engine.from_gguf(self.gguf, self.tokenizer, threads, context_length, cache_type, batch_size, max_sequences, cache_tokens, on_progress)
        except BaseException:
            self.gguf.close()
            raise
        self.name = str(self.gguf.metadata.get("general.name", self.path.stem))
        self._template: chat_template.ChatTemplate | None = None
        compile_s = self.engine.timings["compile_s"]
        self.timings = {"load_s": time.perf_counter() - started - compile_s, "compile_s": compile_s}

    @property
    def template(self) -> chat_template.ChatTemplate:
        """The file's chat template; its `note` says so where a general one stands in."""
        if self._template is None:
            self._template = chat_template.load(self.gguf.metadata, self.tokenizer)
        return self._template

    @property
    def context_length(self) -> int:
        return self.engine.context_length

    @property
    def notes(self) -> list[str]:
        """What the user should know about how this model was loaded."""
        return self.engine.notes

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float32[len(tokens), n_vocab]: the logits after every token, computed as one prefill. Raises InvalidRequest for ids that the model does not have."""
        return self.engine.logits(tokens)

    def generate(self, prompt: str | list[int], **sampling: Any) -> Generation:
        """Continue a prompt: text (tokenized by the file's rules, special tokens included) or token ids. Options: SamplingParams. Iterate over TokenEvents."""
        params = SamplingParams.of(sampling)
        if isinstance(prompt, bytes):
            raise InvalidRequest("a prompt is text or a list of token ids, not bytes")
        return self.engine.generate(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, params)

    def chat(self, messages: list[dict[str, Any]], **sampling: Any) -> Generation:
        """Answer a conversation [{"role": ..., "content": ...}, ...] with the model's own chat template. Options: SamplingParams."""
        params = SamplingParams.of(sampling)
        return self.engine.generate(self.template.tokens(messages), params)

    def embed(self, text: str) -> np.ndarray:
        """Embedding models only, which are not supported yet: raises UnsupportedModel."""
        raise UnsupportedModel(f"{self.path} is not an embedding model; use one that is made for embeddings")

    def close(self) -> None:
        """End the threads and unmap the file. Afterwards every use raises MachineError; so does an answer that another thread is reading."""
        self.engine.close()
        self.gguf.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Model", "load"]
