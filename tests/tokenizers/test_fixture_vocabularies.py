"""Every id of llama.cpp's own test vocabularies and of the two real models' texts."""

from __future__ import annotations

import json
from typing import Any

import oracle
import pytest
import realmodels

from cpuinfer import tokenizers
from cpuinfer.errors import UnsupportedModel
from cpuinfer.formats.gguf import GGUFFile

SUPPORTED = ["command-r", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "qwen2", "refact", "starcoder"]
# A later issue adds these kinds of tokenizer.
NOT_YET = {"bert-bge": "bert", "gemma-4": "gemma4"}


def load(name: str) -> Any:
    with GGUFFile.open(oracle.fixture(f"vocab/ggml-vocab-{name}.gguf")) as gguf:
        return tokenizers.load(gguf.metadata)


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_ids_of_every_test_text_are_those_of_llama_cpp(name: str) -> None:
    tokenizer = load(name)
    path = oracle.fixture(f"vocab/ggml-vocab-{name}.gguf")
    with open(f"{path}.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    with open(f"{path}.out", encoding="utf-8") as file:
        wanted = [[int(number) for number in line.split()] for line in file.read().split("\n")]
    assert len(texts) == len(wanted) > 40
    for text, ids in zip(texts, wanted):
        assert tokenizer.encode(text, parse_special=False, add_bos=False) == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", NOT_YET)
def test_kinds_that_come_later_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=NOT_YET[name]):
        load(name)


def test_every_vocabulary_of_the_fixtures_is_listed_here() -> None:
    folder = oracle.fixture("vocab")
    assert sorted(path.name[len("ggml-vocab-") : -len(".gguf")] for path in folder.glob("*.gguf")) == sorted([*SUPPORTED, *NOT_YET])


@pytest.mark.parametrize(
    ("name", "text", "add_bos", "ids"),
    [
        ("llama-spm", "This is 🦙.cpp", None, [1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223]),
        ("llama-spm", "<s>G", False, [1, 402]),
        ("llama-bpe", " Việt", False, [101798]),
    ],
)
def test_cases_that_other_programs_got_wrong(name: str, text: str, add_bos: bool | None, ids: list[int]) -> None:
    assert load(name).encode(text, add_bos=add_bos) == ids


@pytest.mark.parametrize("model", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_the_texts_of_a_real_model_give_its_ids_and_come_back(model: str) -> None:
    cases = json.loads(oracle.fixture("real/tokenize.json").read_text(encoding="utf-8"))[model]
    name = {"SmolLM2-135M-Instruct.Q4_1.gguf": "smollm2-135m", "gemma-3-270m-q4_k_m.gguf": "gemma3-270m"}[model]
    with GGUFFile.open(realmodels.path(name)) as gguf:
        tokenizer = tokenizers.load(gguf.metadata)
    assert len(cases) > 100
    for case in cases:
        ids = tokenizer.encode(case["text"], case["parse_special"], add_bos=None if case["add_special"] else False)
        assert ids == case["ids"], case["text"]
        assert tokenizer.decode(ids) == case["detokenized"]
