"""The two real models: pinned answers, llama.cpp's greedy texts fed token by token, perplexity near the exact figure."""

from __future__ import annotations

import json

import pytest
import realmodels

from cpuinfer.evaluation import perplexity
from cpuinfer.model import Model

FILES = {"smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3-270m": "gemma-3-270m-q4_k_m.gguf"}


@pytest.fixture(scope="module", params=list(FILES))
def model(request):
    with Model(realmodels.path(request.param), threads=2, context_length=1024) as model:
        model.catalog_name = request.param
        yield model


def test_the_top_token_fed_one_by_one_is_that_of_llama_cpp(model, fixtures) -> None:
    agreed = total = 0
    for entry in json.loads((fixtures / "real" / "greedy.json").read_text())[FILES[model.catalog_name]]:
        tokens = entry["prompt_tokens"] + entry["tokens"]
        best = model.engine.logits(tokens[:-1], at_once=1)[len(entry["prompt_tokens"]) - 1 :].argmax(-1)
        for token, ours, margin in zip(entry["tokens"], best, entry["margins"]):
            total += 1
            agreed += int(token == ours)
            # llama.cpp rounds activations to 8 bits: exact float32 arithmetic disagrees with it once at a margin of 0.266, else below 0.24.
            assert token == ours or margin <= 0.27, (entry["prompt"], token, int(ours), margin)
    assert agreed >= 0.97 * total


def test_smollm2_answers_and_stops() -> None:
    with Model(realmodels.path("smollm2-135m"), threads=2, context_length=512) as model:
        # Raw, its first token leads by 2.4; as a chat message "The" leads by only 0.1 even in exact arithmetic, so only the end is pinned there.
        answer = model.generate("The capital of France is", temperature=0.0, max_tokens=1)
        assert "".join(event.text for event in answer) == " Paris"
        answer = model.chat([{"role": "user", "content": "Say hello."}], temperature=0.0)
        assert "".join(event.text for event in answer) and answer.stats.finish_reason == "stop"
        # A second turn finds the first one's pages.
        list(model.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0.0, max_tokens=8))
        turns = [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": "The capital of France is Paris."}]
        answer = model.chat([*turns, {"role": "user", "content": "And what is the capital of Spain?"}], temperature=0.0)
        assert "Madrid" in "".join(event.text for event in answer) and answer.stats.cached_tokens >= 32


def test_perplexity_of_smollm2_is_nearer_to_the_exact_figure_than_llama_cpp(fixtures) -> None:
    figures = json.loads((fixtures / "real" / "perplexity.json").read_text())["models"][FILES["smollm2-135m"]]
    with Model(realmodels.path("smollm2-135m"), threads=2, context_length=512) as model:
        result = perplexity(model, (fixtures / "real" / "text.txt").read_text(encoding="utf-8"), 512)
    assert result["chunks"] == figures["chunks"]
    assert abs(result["perplexity"] / figures["exact_f32"] - 1) < abs(figures["llama_cpp"] / figures["exact_f32"] - 1)


def test_all_tokenizer_cases_of_the_real_models_are_equal(fixtures) -> None:
    cases = json.loads((fixtures / "real" / "tokenize.json").read_text())
    for name, file in FILES.items():
        from cpuinfer import tokenizers
        from cpuinfer.formats.gguf import GGUFFile

        with GGUFFile.open(realmodels.path(name)) as gguf:
            tokenizer = tokenizers.load(gguf.metadata)
        for case in cases[file]:
            ids = tokenizer.encode(case["text"], parse_special=case["parse_special"], add_bos=None if case["add_special"] else False)
            assert ids == case["ids"] and tokenizer.decode(ids) == case["detokenized"]
