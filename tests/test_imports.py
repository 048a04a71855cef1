"""The arrows of docs/design.md: who may import whom, and what a quick command must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "cpuinfer"
ALLOWED = {
    "kernels": {"errors"},
    "formats": {"errors", "kernels"},
    "tokenizers": {"arguments", "errors"},
    "program": {"errors", "formats", "kernels"},
    "architectures": {"errors", "formats", "program"},
    "engine": {"arguments", "errors", "formats", "kernels", "program", "architectures", "tokenizers"},
    "models": {"errors"},
    "cli": {"arguments", "errors", "engine", "formats", "kernels", "architectures", "tokenizers", "models", "model", "evaluation", "version", "program"},
}


def imported(path: Path) -> set[str]:
    """Top-level parts of this package that a file imports."""
    depth = len(path.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {(node.module or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("cpuinfer."):
            found.add(node.module.split(".")[1])
    return found


def test_imports_follow_the_arrows() -> None:
    for part, allowed in ALLOWED.items():
        for path in (PACKAGE / part).rglob("*.py"):
            assert imported(path) <= allowed | {part}, f"{path.relative_to(PACKAGE)} imports {imported(path) - allowed - {part}}"


def test_kernels_know_no_format_and_architectures_no_kernel() -> None:
    for path in (PACKAGE / "kernels").rglob("*.py"):
        assert "formats" not in imported(path), path
    for path in (PACKAGE / "architectures").rglob("*.py"):
        assert "kernels" not in imported(path), path


def loaded(code: str) -> set[str]:
    out = subprocess.run([sys.executable, "-c", f"{code}; import sys; print(' '.join(sys.modules))"], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


def test_importing_the_package_or_the_command_line_loads_nothing_heavy() -> None:
    for code in ("import cpuinfer", "import cpuinfer.cli"):
        assert not loaded(code) & {"numba", "numpy", "llvmlite", "rich.console", "tokenizers", "jinja2", "prompt_toolkit"}


def test_running_a_model_with_compiled_kernels_needs_no_numba(tmp_path) -> None:
    import tiny

    path = tiny.model(tmp_path / "m.gguf")
    code = f"import cpuinfer; m = cpuinfer.load({str(path)!r}, threads=1); list(m.generate('the', max_tokens=2)); m.close()"
    loaded(code)
    assert "numba" not in loaded(code)
