"""Chat templates: the file's own Jinja template, rendered as Hugging Face's apply_chat_template does, and its tokens.

Templates come with model files, so they are not trusted: see sandbox.py for what they can reach and use. Neither is message text: whatever it contains, it never becomes a
control token (message_marks.py). Texts without control tokens give exactly the ids of the rendered text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from ..errors import InvalidRequest, TemplateError
from . import Tokenizer
from .message_marks import Marks, mapped, unmarked
from .messages import Form, Messages, call_form, checked, content_form
from .sandbox import Sandbox

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
KEY = "tokenizer.chat_template"
# Some files give turn markers as user-defined tokens (Command-R, early Gemma). Tags of one word, such as <think>, are not markers: models write them in their answers.
_MARKER = re.compile(r"(?!</?(?!start_of_turn|end_of_turn)[a-z_]+>)[<\[].*[>\]]", re.DOTALL)
# What a template must name to have a use for parts of a content, or for developers.
_PART, _DEVELOPER = re.compile(r"\btext\b"), re.compile("""['"]developer['"]""")
# Name in a template -> name in the file's keys.
_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator", "cls_token": "cls", "mask_token": "mask"}


def load(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    """The file's template, or ChatML with a note where it has none. Where the file has a second one for tools, that one is used when there are tools."""
    names = {}
    for name, key in _NAMES.items():
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and 0 <= token < tokenizer.n_vocab:
            names[name] = tokenizer.tokens[token]
    source, for_tools = metadata.get(KEY), metadata.get(f"{KEY}.tool_use")
    if isinstance(source, str) and source.strip():
        return ChatTemplate(source, tokenizer, names=names, tool_source=for_tools if isinstance(for_tools, str) else None)
    note = "the file has no chat template: ChatML stands in; answers may be odd (use --raw for plain completion)"
    return ChatTemplate(CHATML, tokenizer, note, names=names)


class ChatTemplate:
    """source: Jinja text. note: what the user should know about it, or None. clock: what strftime_now sees. names: variables of every render, such as pad_token."""

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        note: str | None = None,
        clock: Callable[[], datetime] = datetime.now,
        names: Mapping[str, str] | None = None,
        tool_source: str | None = None,
    ):
        self.source, self.note = source, note
        self._tokenizer = tokenizer
        self._names = {"bos_token": self._text(tokenizer.bos_id), "eos_token": self._text(tokenizer.eos_id), **(names or {})}
        self._sandbox = Sandbox(source, lambda: clock())
        self._tool_sandbox = Sandbox(tool_source, lambda: clock()) if tool_source else self._sandbox
        self._sources = source + (tool_source or "")
        self._forms: dict[tuple[bool, bool], Form] = {}  # by whether there are tools, and calls of them
        markers = {text for text in tokenizer.special.user_texts if _MARKER.fullmatch(text) and text in self._sources}
        self._guarded = frozenset(tokenizer.special.id_of(text) for text in markers)
        self._marks = Marks(tokenizer.special.control_texts | markers, lambda text: [(start, end) for start, end, _ in self._controls(text, [])])

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, tools: list[Any] | None = None, **extra: Any) -> str:
        """The conversation as the model's template writes it. Raises TemplateError with the template's own words, or where it breaks its limits."""
        return self._render(self._given(messages, tools, extra), add_generation_prompt, str)

    def tokens(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, tools: list[Any] | None = None, **extra: Any) -> list[int]:
        """Ids of the rendered conversation: the template's own markers are special tokens, message text never is. BOS by the file's rule, never twice."""
        given = self._given(messages, tools, extra)
        text, plain = self._marked(given, add_generation_prompt)
        ids = self._tokenizer.encode_marked(text, plain, self._guarded)
        bos = self._tokenizer.bos_id
        if bos is not None:
            while ids[:2] == [bos, bos]:
                ids = ids[1:]
            if self._tokenizer.add_bos and ids[:1] != [bos]:
                ids = [bos, *ids]
        return ids

    def _marked(self, given: dict[str, Any], add_generation_prompt: bool) -> tuple[str, list[tuple[int, int]]]:
        """The rendered text, and the spans of it that message_marks marks."""
        marks = self._marks
        text = self._render(given, add_generation_prompt, str)
        if not marks.in_any(given):
            return text, []
        table = marks.table(given, text)
        try:
            exact = unmarked(self._render(given, add_generation_prompt, lambda part: marks.mark_all(part, table)), table)
        except TemplateError:  # the template minds the stand-ins: the second round decides
            exact = ("", [])
        if exact[0] == text:
            return exact
        text, plain = unmarked(self._render(given, add_generation_prompt, lambda part: marks.mark_dangerous(part, table)), table)
        # More of a control token than in the first round: the template put it together from message text.
        own = Counter(token for _, _, token in self._controls(*exact))
        seen = self._controls(text, plain)
        counts = Counter(token for _, _, token in seen)
        return text, sorted([*plain, *((start, end) for start, end, token in seen if counts[token] > own[token])])

    def _controls(self, text: str, plain: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        special = self._tokenizer.special
        found = special.find(text, plain, self._guarded)
        return [place for place in found if place[2] in special.control_ids or place[2] in self._guarded]

    def _given(self, messages: Any, tools: Any, extra: dict[str, Any]) -> dict[str, Any]:
        """What the template gets, the messages in its form."""
        given = {"messages": checked(messages), "tools": tools, "documents": None, **extra}

        def trial(messages: Messages) -> str:
            return self._render(given | {"messages": messages}, True, str)

        calls = any("tool_calls" in message for message in given["messages"])
        kind = bool(tools), calls
        if kind not in self._forms:
            form = content_form(trial) if _PART.search(self._sources) else Form()
            self._forms[kind] = call_form(trial, form.parts) if calls else form
        given["messages"] = self._forms[kind].of(given["messages"], knows_developer=bool(_DEVELOPER.search(self._sources)))
        return given

    def _render(self, given: dict[str, Any], add_generation_prompt: bool, change: Callable[[str], str]) -> str:
        try:
            changed = {name: mapped(value, change) for name, value in given.items()}
            for message, own in zip(changed["messages"], given["messages"]):
                message["role"] = own["role"]  # one of the known words, which templates put into their markers
        except RecursionError:
            raise InvalidRequest("the messages are nested too deeply") from None
        sandbox = self._tool_sandbox if given["tools"] else self._sandbox
        return sandbox.render({**self._names, "add_generation_prompt": add_generation_prompt, **changed})

    def _text(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.tokens[token]
