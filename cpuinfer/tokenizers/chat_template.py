"""Chat templates: the file's own Jinja template, rendered as Hugging Face's apply_chat_template does, and its tokens.

Templates come with model files, so they are not trusted: see sandbox.py for what they can reach and use. Neither is message text: whatever it contains, it never becomes a
control token. Texts of control tokens in it are replaced by stand-ins of private-use characters while the template runs, and come back as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..errors import TemplateError
from . import Tokenizer
from .sandbox import Sandbox

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
KEY = "tokenizer.chat_template"
# Stand-in number n is OPEN, n in digits of DIGIT_ZERO.., CLOSE. Text that holds any of these characters itself is shielded character by character too.
OPEN, CLOSE, DIGIT_ZERO = "\uf5a0", "\uf5a1", 0xF5B0
_STAND_IN = re.compile(f"{OPEN}([{chr(DIGIT_ZERO)}-{chr(DIGIT_ZERO + 9)}]+){CLOSE}")


def load(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    """The file's template, or ChatML with a note where it has none."""
    source = metadata.get(KEY)
    if isinstance(source, str) and source.strip():
        return ChatTemplate(source, tokenizer)
    note = "the file has no chat template: ChatML stands in; answers may be odd (use --raw for plain completion)"
    return ChatTemplate(CHATML, tokenizer, note)


class ChatTemplate:
    """source: Jinja text. note: what the user should know about it, or None. clock: what strftime_now sees."""

    def __init__(self, source: str, tokenizer: Tokenizer, note: str | None = None, clock: Any = datetime.now):
        self.source, self.note = source, note
        self._tokenizer, self._clock = tokenizer, clock
        self._sandbox: Sandbox | None = None
        texts = sorted(tokenizer.special.control_texts, key=len, reverse=True)
        own = f"[{OPEN}{CLOSE}{chr(DIGIT_ZERO)}-{chr(DIGIT_ZERO + 9)}]"
        self._dangerous = re.compile("|".join([*map(re.escape, texts), own]))

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, tools: list[Any] | None = None, **extra: Any) -> str:
        """The conversation as the model's template writes it. Raises TemplateError with the template's own words, or where it breaks its limits."""
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise TemplateError("messages must be a list of {'role': ..., 'content': ...}")
        if self._sandbox is None:
            self._sandbox = Sandbox(self.source, self._clock)
        names = {"bos_token": self._text(self._tokenizer.bos_id), "eos_token": self._text(self._tokenizer.eos_id)}
        return self._sandbox.render({"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt, **names, **extra})

    def tokens(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, tools: list[Any] | None = None, **extra: Any) -> list[int]:
        """Ids of the rendered conversation: the template's own markers are special tokens, message text never is. BOS by the file's rule, never twice."""
        shielded: list[str] = []
        safe_messages, safe_tools = self._shield(messages, shielded), self._shield(tools, shielded)
        text = self.render(safe_messages, add_generation_prompt, safe_tools, **extra)
        parts: list[tuple[str, bool]] = []
        at = 0
        for match in _STAND_IN.finditer(text):
            number = int("".join(chr(ord(c) - DIGIT_ZERO + ord("0")) for c in match[1]))
            parts += [(text[at : match.start()], True), (shielded[number] if number < len(shielded) else match[0], False)]
            at = match.end()
        parts.append((text[at:], True))
        ids = self._tokenizer.encode_parts(parts)
        bos = self._tokenizer.bos_id
        if bos is not None:
            while ids[:2] == [bos, bos]:
                ids = ids[1:]
            if self._tokenizer.add_bos and ids[:1] != [bos]:
                ids = [bos, *ids]
        return ids

    def _text(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.tokens[token]

    def _shield(self, value: Any, shielded: list[str]) -> Any:
        """The same messages with stand-ins for what could become a control token."""
        if isinstance(value, str):
            return self._dangerous.sub(lambda match: _stand_in(match[0], shielded), value)
        if isinstance(value, Mapping):
            return {k: self._shield(v, shielded) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._shield(v, shielded) for v in value]
        return value


def _stand_in(text: str, shielded: list[str]) -> str:
    if text not in shielded:
        shielded.append(text)
    return OPEN + "".join(chr(DIGIT_ZERO + int(d)) for d in str(shielded.index(text))) + CLOSE
