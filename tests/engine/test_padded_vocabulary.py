"""Embeddings with more rows than the tokenizer has tokens: such files load, and no row without a token is ever sampled or asked for."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from cpuinfer.errors import GGUFError, InvalidRequest
from cpuinfer.formats.gguf import GGUFFile
from cpuinfer.model import Model

EXTRA = 20


def make_padding_likely(path) -> None:
    """Large rows where there is no token: each has the largest logit half of the time."""
    with GGUFFile.open(path) as file:
        rows = file.tensors["token_embd.weight"].data.view(np.float32).copy()
    raw = bytearray(path.read_bytes())
    start = raw.index(rows.tobytes())
    rows[-EXTRA:] = np.random.default_rng(1).standard_normal((EXTRA, rows.shape[1])) * 50
    raw[start : start + rows.nbytes] = rows.tobytes()
    path.write_bytes(raw)


@pytest.fixture(scope="module", params=["spm", "bpe"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("padded") / "m.gguf"
    tokens = (tiny.spm_tokens if request.param == "spm" else tiny.bpe_tokens)()[0]
    tiny.model(path, tok=request.param, rows=len(tokens) + EXTRA)
    make_padding_likely(path)
    with Model(path, threads=1, cache_type="f32") as model:
        assert model.tokenizer.n_vocab == len(tokens)
        yield model


SAMPLINGS = (
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 5.0, "top_k": 400, "top_p": 0.99},
    {"temperature": 1.0, "typical_p": 0.5, "top_k": 0},
    {"temperature": 0.0, "repeat_penalty": 1.5, "repeat_last_n": -1, "presence_penalty": 2.0},
    {"temperature": 3.0, "logprobs": 5},
)


@pytest.mark.parametrize("options", SAMPLINGS, ids=str)
def test_rows_without_a_token_are_never_sampled_however_likely(model, options) -> None:
    n = model.tokenizer.n_vocab
    logits = model.logits([5, 6, 7])
    assert logits.shape == (3, n + EXTRA) and logits[-1].argmax() >= n
    for seed in range(5):
        events = list(model.generate([5, 6, 7], max_tokens=20, ignore_eos=True, seed=seed, **options))
        assert len(events) == 20 and all(event.token < n for event in events)
        assert all(token < n for event in events for token, _ in event.logprobs or ())
    if options["temperature"] == 0 and len(options) == 1:
        assert next(iter(model.generate([5, 6, 7], max_tokens=1, **options))).token == logits[-1, :n].argmax()


def test_a_prompt_holds_no_id_without_a_token(model) -> None:
    n = model.tokenizer.n_vocab
    with pytest.raises(InvalidRequest, match=f"{n - 1}"):
        model.generate([5, n], max_tokens=1)


def test_more_tokens_than_rows_are_refused(tmp_path) -> None:
    tokens = tiny.spm_tokens()[0]
    with pytest.raises(GGUFError, match=f"{len(tokens)} tokens, but token_embd.weight has only {len(tokens) - 3} rows"):
        Model(tiny.model(tmp_path / "m.gguf", rows=len(tokens) - 3))


def test_an_output_matrix_of_its_own_may_be_padded_too(tmp_path) -> None:
    tokens = tiny.bpe_tokens()[0]
    path = tiny.model(tmp_path / "m.gguf", "orion", tok="bpe", rows=len(tokens) + 3)
    with Model(path, threads=1) as model:
        assert model.logits([1, 2]).shape == (2, len(tokens) + 3)
        assert len(list(model.generate("hi", max_tokens=5, ignore_eos=True))) == 5
