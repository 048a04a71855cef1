"""Weights that are no numbers: every command says so in one line and exits 1."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tiny

from cpuinfer.errors import ModelFailure
from cpuinfer.evaluation import perplexity
from cpuinfer.formats.gguf import GGUFFile
from cpuinfer.model import Model


def broken(path, tensor: str, value: float, places: slice):
    """A copy of a model file in which some numbers of an F32 tensor are replaced."""
    with GGUFFile.open(path) as file:
        raw = file.tensors[tensor].data.tobytes()
    numbers = np.frombuffer(raw, np.float32).copy()
    numbers[places] = value
    whole = path.read_bytes()
    assert whole.count(raw) == 1
    copy = path.with_name("broken.gguf")
    copy.write_bytes(whole.replace(raw, numbers.tobytes()))
    return copy


@pytest.fixture
def model_path(tmp_path):
    return tiny.model(tmp_path / "m.gguf", "llama", "F32", tok="bpe")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_run_chat_and_perplexity_say_so_and_exit_1(model_path, value) -> None:
    path = broken(model_path, "output_norm.weight", value, slice(None))
    text = path.with_name("text.txt")
    text.write_text("the and in " * 60)
    for command in (["run", path, "hello", "--temp", "0"], ["run", path, "hello", "--raw"], ["run", path, "hello", "--json"], ["perplexity", path, text, "-c", "32"]):
        done = subprocess.run([sys.executable, "-m", "cpuinfer", *map(str, command)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 1 and done.stdout == "" and "finite number" in done.stderr and len(done.stderr.splitlines()) == 1, done


def test_one_token_whose_logit_is_no_number_disturbs_no_other(model_path) -> None:
    """Row 5 of the embedding, which is the output too."""
    dim = 64
    path = broken(model_path, "token_embd.weight", np.nan, slice(5 * dim, 6 * dim))
    with Model(model_path, context_length=64) as whole, Model(path, context_length=64) as damaged:
        ids = [7, 9, 11, 12] * 10
        expected, logits = whole.logits(ids), damaged.logits(ids)
        assert np.isnan(logits[:, 5]).all() and np.array_equal(np.delete(logits, 5, 1), np.delete(expected, 5, 1))
        drawn = [[e.token for e in m.generate(ids, max_tokens=15, seed=3, min_p=0.0, top_k=0, ignore_eos=True)] for m in (damaged, whole)]
        assert 5 not in drawn[0] and (drawn[0] == drawn[1] or 5 in drawn[1])
        text = "the and in " * 60
        assert np.isfinite(perplexity(damaged, text, 32)["perplexity"])
        with pytest.raises(ModelFailure, match="finite number"):
            perplexity(damaged, damaged.tokenizer.decode([5]) * 200, 32)
