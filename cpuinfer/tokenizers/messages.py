"""The one form in which chat templates see messages, whatever a caller gives of what the OpenAI format allows. Everything else is refused here, before any template runs.

What every template understands is always the same: text in `content`, no keys without a value. Where templates differ (contents as text or as parts, a tool call's arguments as an
object or as JSON text, no content beside tool calls as "" or null), a template is tried with a small conversation, and the first form that it writes out is its form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest, TemplateError

ROLES = ("system", "developer", "user", "assistant", "tool")
Messages = list[dict[str, Any]]


def checked(messages: Any) -> Messages:
    """Copies of the messages, in one form: content is a text, or None in an assistant's message; arguments of tool calls are an object, or JSON text of one.

    Raises InvalidRequest, naming the message.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequest("messages must be a list with at least one message, {'role': ..., 'content': ...}")
    return [_checked(message, f"message {number}") for number, message in enumerate(messages, 1)]


def _checked(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be {{'role': ..., 'content': ...}}, not a {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where} has the role {_short(role)}; known: {', '.join(ROLES)}")
    where = f"{where} ({role})"
    result = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
    result["content"] = _text(message.get("content"), where, may_be_none=role == "assistant")
    if calls := message.get("tool_calls"):
        if role != "assistant" or not isinstance(calls, (list, tuple)):
            raise InvalidRequest(f"{where}: tool_calls must be a list in a message of the assistant")
        result["tool_calls"] = [_tool_call(call, f"{where}, tool call {number}") for number, call in enumerate(calls, 1)]
    return result


def _text(content: Any, where: str, may_be_none: bool) -> str | None:
    """Parts are joined by line ends."""
    if content is None and may_be_none:
        return None
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        given = "no content" if content is None else f"content of type {type(content).__name__}"
        raise InvalidRequest(f"{where} has {given}; give a text, or a list of {{'type': 'text', 'text': ...}}")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part.get("text") if isinstance(part, Mapping) else part
        if kind != "text" or not isinstance(text, str):
            raise InvalidRequest(f"{where} has a part that is no text ({_short(kind)}); only {{'type': 'text', 'text': ...}} can be read")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """{"type", "function": {"name", "arguments"}, ...}; a bare {"name", "arguments"} is taken as its function."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where} must be {{'type': 'function', 'function': {{'name': ..., 'arguments': ...}}}}")
    arguments = function.get("arguments")
    if not isinstance(_object(arguments), Mapping):
        raise InvalidRequest(f"{where} ({name}): arguments must be an object, or JSON text of one, not {_short(arguments)}")
    rest = {key: value for key, value in call.items() if value is not None and key not in ("name", "arguments")}
    return {"type": "function", **rest, "function": {"name": name, "arguments": arguments or {}}}


def _object(arguments: Any) -> Any:
    """Arguments of a tool call as an object, if they are one; none at all are an empty one."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return arguments


def _short(value: Any) -> str:
    return repr(value)[:60]


# ---- what templates want ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """parts: contents are lists of parts. json_text: arguments are JSON text. null: content that is None beside tool calls stays so, else it becomes empty."""

    parts: bool = False
    json_text: bool = False
    null: bool = False

    def of(self, messages: Messages, knows_developer: bool = True) -> Messages:
        """Checked messages in this form. A developer's message is a system message for a template that does not know that role: it must not be dropped."""
        return [self._of(message, knows_developer) for message in messages]

    def _of(self, message: dict[str, Any], knows_developer: bool) -> dict[str, Any]:
        calls = message.get("tool_calls")
        result = dict(message)
        if message["role"] == "developer" and not knows_developer:
            result["role"] = "system"
        if message["content"] is None:
            result["content"] = None if self.null and calls else ""
        if self.parts and isinstance(result["content"], str):
            result["content"] = [{"type": "text", "text": result["content"]}]
        if calls:
            result["tool_calls"] = [{**call, "function": {**call["function"], "arguments": self._arguments(call["function"]["arguments"])}} for call in calls]
        return result

    def _arguments(self, arguments: Any) -> Any:
        if not self.json_text:
            return _object(arguments)
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


_NEEDLE = "needle"
_QUESTION: Messages = [{"role": "user", "content": _NEEDLE}]
_CALL = {"id": "needle123", "type": "function", "function": {"name": "find", "arguments": {_NEEDLE: "x"}}}  # Mistral wants ids of nine characters
_CALLING: Messages = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "name": "find", "tool_call_id": "needle123", "content": "found"},
]
# As a word of its own: not in Python's quotes, not in JSON text within JSON text.
_SHOWN = re.compile(rf"(?<![\\']){_NEEDLE}(?![\w\\'])")


def content_form(render: Callable[[Messages], str]) -> Form:
    """Text, unless the template writes out parts only."""
    return next(_that_show(_QUESTION, render, (Form(), Form(parts=True))), Form())


def call_form(render: Callable[[Messages], str], parts: bool) -> Form:
    """The form of tool calls that the template writes out."""
    forms = [Form(parts, json_text, null) for null in (False, True) for json_text in (False, True)]
    return next(_that_show(_CALLING, render, forms), Form(parts))


def _that_show(messages: Messages, render: Callable[[Messages], str], forms: Any) -> Iterator[Form]:
    for form in forms:
        try:
            text = render(form.of(messages))
        except TemplateError:
            continue
        if _SHOWN.search(text):
            yield form
