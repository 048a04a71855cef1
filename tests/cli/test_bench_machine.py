"""bench --machine and --profile; scripts/make_synthetic.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tiny

from cpuinfer.formats.gguf import GGUFFile

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-m", "cpuinfer", *arguments], capture_output=True, check=True, text=True, timeout=300).stdout


def test_the_machine_is_measured() -> None:
    report = json.loads(run("bench", "--machine", "-r", "1", "--json"))
    assert set(report) == {"cpu", "isa", "threads", "read_gb_s", "dot4_gmac_s"} and report["read_gb_s"] > 0.1 and report["dot4_gmac_s"] > 0.1


def test_a_profile_accounts_for_every_op(tmp_path) -> None:
    path = tiny.model(tmp_path / "m.gguf", "qwen3moe", "Q8_0")
    reports = json.loads(run("bench", str(path), "--profile", "-p", "20", "-n", "4", "-d", "33", "--json"))
    assert list(reports) == ["pp20@d33", "tg1@d33"]
    for rows in reports.values():
        whole, parts, rest = rows[0], rows[1:-1], rows[-1]
        assert sum(r["count"] for r in parts) == whole["count"]
        assert abs(sum(r["us"] for r in parts) + rest["us"] - whole["us"]) < 1e-6 * whole["us"] + 1e-6
        assert sum(r["bytes"] for r in parts) == whole["bytes"] > 0


def test_synthetic_files_load_here(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_synthetic

    from cpuinfer import architectures

    for shape in make_synthetic.SHAPES:
        small = make_synthetic.SHAPES[shape] | {"layers": 2, "vocab": 512, "dim": 256, "ffn": 512, "heads": 4, "kv_heads": 2, "head_dim": 64}
        monkeypatch.setitem(make_synthetic.SHAPES, shape, small | ({"experts": 4, "used": 2} if "experts" in small else {}))
        for mixture in ("Q4_K_M", "Q8_0"):
            make_synthetic.write(tmp_path / "x.gguf", shape, mixture)
            with GGUFFile.open(tmp_path / "x.gguf") as file:
                assert len(architectures.build(file).ops) > 20
