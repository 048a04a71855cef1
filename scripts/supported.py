"""Write docs/supported.md: what the code's own tables say is supported. `--check` only compares and exits 1 where the file differs.

python scripts/supported.py [--check]
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from cpuinfer import architectures, tokenizers
from cpuinfer.formats import quants
from cpuinfer.kernels import isa
from cpuinfer.kernels.records import CACHE_TYPES
from cpuinfer.tokenizers import pretokenizers

PATH = Path(__file__).resolve().parent.parent / "docs" / "supported.md"


def tensor_types() -> list[str]:
    """A table row for each type of matrices, fewest bits first, and a line of those that only small tensors may have."""
    formats = sorted(quants.all().values(), key=lambda fmt: (fmt.block_bytes / fmt.weights, fmt.name))
    rows = [f"| {fmt.name} | {8 * fmt.block_bytes / fmt.weights:.4g} | {fmt.weights} |" for fmt in formats if fmt.has_kernel]
    plain = [fmt.name for fmt in formats if not fmt.has_kernel]
    return ["| type | bits a weight | weights in a block |", "| --- | --- | --- |", *rows, "", f"Norms and biases may also be {', '.join(plain)}."]


def names(values: object) -> str:
    return textwrap.fill(", ".join(f"`{value}`" for value in sorted(values)), 160, break_long_words=False, break_on_hyphens=False)  # type: ignore[call-overload]


def text() -> str:
    """The whole file."""
    parts = [
        "# What is supported",
        "Made by `scripts/supported.py` from the program's own tables; do not edit.",
        "## Tensor types",
        "\n".join(tensor_types()),
        "## Architectures",
        "By `general.architecture`:",
        names(architectures.all()),
        "## Tokenizers",
        f"By `tokenizer.ggml.model`: {names(tokenizers.MODELS)}. Pre-tokenizers of `gpt2`, by `tokenizer.ggml.pre`:",
        names(pretokenizers.RULES),
        "## Machines",
        f"Instruction sets: {', '.join(isa.LEVELS)}. Types of cached keys and values: {', '.join(CACHE_TYPES)}.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    if "--check" not in sys.argv[1:]:
        PATH.write_text(text(), encoding="utf-8")
    elif PATH.read_text(encoding="utf-8") != text():
        sys.exit("docs/supported.md is out of date: run python scripts/supported.py")


if __name__ == "__main__":
    main()
