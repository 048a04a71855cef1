"""cpuinfer: run quantized language models on an ordinary CPU.

    import cpuinfer
    with cpuinfer.load("smollm2-135m") as model:
        for event in model.chat([{"role": "user", "content": "What is the capital of Japan?"}], temperature=0, max_tokens=100):
            print(event.text, end="", flush=True)

Names are loaded when they are first used: importing this package imports neither numpy nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import CpuinferError
from .version import __version__

if TYPE_CHECKING:
    from .engine.sequence import SamplingParams, TokenEvent
    from .model import Model, load

_LAZY = {
    "load": ".model",
    "Model": ".model",
    "SamplingParams": ".engine.sequence",
    "TokenEvent": ".engine.sequence",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


__all__ = ["CpuinferError", "Model", "SamplingParams", "TokenEvent", "__version__", "load"]
