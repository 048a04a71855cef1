"""What callers may give as messages, and the one form in which templates see it: twelve published templates, every form that the OpenAI format allows."""

from __future__ import annotations

import copy
import json
from datetime import datetime
from typing import Any

import oracle
import pytest

from cpuinfer import tokenizers
from cpuinfer.errors import CpuinferError, InvalidRequest, TemplateError
from cpuinfer.tokenizers.chat_template import CHATML, ChatTemplate

TOKENIZER = tokenizers.load(oracle.bpe())
NAMES = (
    *("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "GLM-4.6", "HuggingFaceTB-SmolLM3-3B", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-Qwen2.5-7B-Instruct"),
    *("Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "google-gemma-2-2b-it", "meta-llama-Llama-3.1-8B-Instruct", "microsoft-Phi-3.5-mini-instruct"),
    *("mistralai-Mistral-Nemo-Instruct-2407", "openai-gpt-oss-120b"),
)
CALLS = set(NAMES) - {"HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct"}  # templates that write out tool calls
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "It rains.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
every_template = pytest.mark.parametrize("name", NAMES)


def template(name: str) -> ChatTemplate:
    source = oracle.fixture(f"templates/{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, TOKENIZER, clock=lambda: datetime(2026, 12, 1))


def calling(content: Any = None, arguments: Any = None, **changes: Any) -> list[dict[str, Any]]:
    call = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"} if arguments is None else arguments}}
    return [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": content, "tool_calls": [call | changes]},
        {"role": "tool", "tool_call_id": "call12345", "name": "weather", "content": "21 degrees"},
    ]


def tools(name: str) -> list[Any] | None:
    return TOOLS if name in CALLS else None


@every_template
def test_parts_of_a_content_are_its_text(name: str) -> None:
    parts = [{"type": "text", "text": "Who are you?"}, {"type": "text", "text": "Where?"}]
    for form in (parts, tuple(parts), ["Who are you?", {"text": "Where?"}]):
        text = template(name).render([{"role": "user", "content": form}], tools=tools(name))
        assert text == template(name).render([{"role": "user", "content": "Who are you?\nWhere?"}], tools=tools(name))
    assert "Who are you?\nWhere?" in text and "{'" not in text.replace(str(TOOLS), "")
    answer = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "It is fine."}]}, {"role": "user", "content": "b"}]
    assert "It is fine." in template(name).render(answer, tools=tools(name))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_tool_call_is_written_out_whatever_the_form_of_its_arguments_and_content(name: str) -> None:
    used = template(name)
    wanted = used.render(calling(), tools=TOOLS)
    assert "Köln" in wanted and "\\u" not in wanted and '\\"' not in wanted and "{'city'" not in wanted and "None" not in wanted
    assert used.render(calling(arguments='{"city": "Köln"}'), tools=TOOLS) == wanted
    missing = calling()
    del missing[1]["content"]
    assert used.render(missing, tools=TOOLS) == wanted
    bare = calling()
    bare[1]["tool_calls"] = [{"id": "call12345", **bare[1]["tool_calls"][0]["function"]}]
    assert "Köln" in used.render(bare, tools=TOOLS)
    if name.startswith("deepseek"):
        return  # with a content, also an empty one, this template drops tool calls
    assert used.render(calling(content=""), tools=TOOLS) == wanted
    for nothing in ({}, "", "{}"):
        text = used.render(calling(arguments=nothing), tools=TOOLS)
        assert "weather" in text and "Köln" not in text


@every_template
def test_keys_without_a_value_are_as_good_as_absent(name: str) -> None:
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    nulls = [message | {"tool_calls": None, "name": None, "reasoning_content": None, "refusal": None, "tool_call_id": None} for message in plain]
    assert template(name).render(nulls, tools=tools(name)) == template(name).render(plain, tools=tools(name))
    empty = [message | ({"tool_calls": []} if message["role"] == "assistant" else {}) for message in plain]
    assert template(name).render(empty, tools=tools(name)) == template(name).render(plain, tools=tools(name))


@every_template
def test_a_null_answer_is_an_empty_one(name: str) -> None:
    def conversation(content: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}, {"role": "user", "content": "c"}]

    assert template(name).render(conversation(None), tools=tools(name)) == template(name).render(conversation(""), tools=tools(name))


@every_template
@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ("hi", "at least one message"),
        ({"role": "user", "content": "hi"}, "at least one message"),
        ([["user", "hi"]], "message 1 must be"),
        ([{"content": "hi"}], "message 1 has the role None; known: system, developer, user, assistant, tool"),
        ([{"role": "user", "content": "hi"}, {"role": "bot", "content": "hi"}], "message 2 has the role 'bot'"),
        ([{"role": "User", "content": "hi"}], "role 'User'"),
        ([{"role": ["user"], "content": "hi"}], "role"),
        ([{"role": "user"}], "message 1 .user. has no content"),
        ([{"role": "user", "content": None}], "no content"),
        ([{"role": "tool", "content": None}], "no content"),
        ([{"role": "user", "content": 3}], "content of type int"),
        ([{"role": "user", "content": b"hi"}], "content of type bytes"),
        ([{"role": "user", "content": {"text": "hi"}}], "content of type dict"),
        ([{"role": "user", "content": {1}}], "content of type set"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "no text .'image_url'."),
        ([{"role": "user", "content": [{"type": "text"}]}], "no text"),
        ([{"role": "user", "content": [["hi"]]}], "no text"),
        ([{"role": "user", "content": "hi", "tool_calls": [{}]}], "tool_calls"),
        ([{"role": "assistant", "tool_calls": "weather"}], "tool_calls"),
        ([{"role": "assistant", "tool_calls": ["weather"]}], "tool call 1 must be"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}], "tool call 1 must be"),
        (calling(arguments="{'city': 1}"), "tool call 1 .weather.: arguments must be an object"),
        (calling(arguments="[1]"), "arguments"),
        (calling(arguments="[" * 100_000), "arguments"),
        (calling(arguments=[1]), "arguments"),
        (calling(arguments=1), "arguments"),
        ([{"role": "user", "content": "hi", "extra": {1}}], "a message holds a set"),
    ],
    ids=str,
)
def test_what_is_no_message_is_refused_in_one_line_that_names_it(name: str, messages: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        template(name).tokens(messages, tools=tools(name))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_messages_nested_beyond_reason_are_refused() -> None:
    nested: Any = "x"
    for _ in range(100_000):
        nested = [nested]
    for message in ({"content": nested}, {"content": "x", "extra": nested}):
        with pytest.raises(InvalidRequest):
            ChatTemplate(CHATML, TOKENIZER).tokens([{"role": "user", **message}])


@every_template
def test_a_developers_message_is_never_dropped(name: str) -> None:
    messages = [{"role": "developer", "content": "Be terse."}, {"role": "user", "content": "hi"}]
    try:
        assert "Be terse." in template(name).render(messages, tools=tools(name))
    except TemplateError as error:
        assert "System role not supported" in str(error)


def test_a_template_that_reads_parts_only_gets_parts() -> None:
    used = ChatTemplate("{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %}{% endfor %}", TOKENIZER)
    for content in ("hi", [{"type": "text", "text": "hi"}], ["hi"]):
        assert used.render([{"role": "user", "content": content}]) == "[hi]"


def test_the_callers_messages_are_left_as_they_are() -> None:
    messages = calling(arguments='{"city": "x"}')
    before = copy.deepcopy(messages)
    ChatTemplate(CHATML, TOKENIZER).tokens(messages)
    assert messages == before


def test_every_refusal_of_any_template_is_one_of_ours() -> None:
    """Whatever mixture is given: text or a CpuinferError."""
    roles = ("system", "developer", "user", "assistant", "tool", "ipython", None)
    contents = ("hi", "", None, [], [{"type": "text", "text": "hi"}], {}, 1)
    for name in NAMES:
        used = template(name)
        for role in roles:
            for content in contents:
                for more in ({}, {"tool_calls": calling()[1]["tool_calls"]}, {"tool_calls": None}):
                    try:
                        assert used.tokens([{"role": "user", "content": "hi"}, {"role": role, "content": content, **more}], tools=tools(name))
                    except CpuinferError as error:
                        assert "\n" not in str(error), json.dumps(str(error))
