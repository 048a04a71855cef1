"""Runs a Jinja template that is not trusted: no Python objects to reach, and limits on time, output and every way to make large values.

jinja2's immutable sandbox keeps templates from attributes with underscores, from functions' globals and from changing what they are given. On top: operators, string concatenation,
filters and calls refuse results that could grow beyond the limit, and a render that runs longer than SECONDS is stopped from outside.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
import threading
from datetime import datetime
from typing import Any

from ..errors import TemplateError

SECONDS = 2.0
MAXIMUM_CHARACTERS = 16 << 20
MAXIMUM_INTEGER = 1 << 20  # largest count or width that a call may be given
MAXIMUM_ITEMS = 1 << 17  # of lists that operators make
MAXIMUM_BITS = 4096  # of integers that operators make
_LONG_NUMBER = re.compile(r"\d{6,}|\*")


class _TooLarge(Exception):
    pass


class _Timeout(BaseException):
    """Raised in the rendering thread from outside."""


class _Refused(Exception):
    """The template's own raise_exception."""


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 1


def _check_depth(value: Any) -> Any:
    """Refuse containers that would be huge as text: shared parts count each time they occur."""
    total, stack = 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set)):
            stack += item
        total += 1
        if total + len(stack) > MAXIMUM_CHARACTERS:
            raise _TooLarge
    return value


def _check_call(name: str, arguments: list[Any]) -> None:
    """Refuse arguments from which a built-in could make a huge value."""
    sizes = [_size(a) for a in arguments]
    if any(isinstance(a, int) and not isinstance(a, bool) and abs(a) > MAXIMUM_INTEGER for a in arguments):
        if name != "range" and any(isinstance(a, (str, list, tuple, dict)) for a in arguments):
            raise _TooLarge
    if name in ("replace", "join", "translate", "format", "format_map", "indent", "wordwrap"):
        total = 1
        for size in sizes:
            total *= max(1, size)
        if total > 64 * MAXIMUM_CHARACTERS and sum(sizes) > MAXIMUM_CHARACTERS // 64:
            raise _TooLarge
    if name in ("format", "format_map", "%") and any(isinstance(a, str) and _LONG_NUMBER.search(a) for a in arguments[:1]):
        raise _TooLarge


def _checked(value: Any) -> Any:
    if _size(value) > MAXIMUM_CHARACTERS:
        raise _TooLarge
    return value


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """As Hugging Face's templates expect: no HTML escaping, no ASCII escaping."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.cache
def _environment_class() -> type:
    """Made when first needed: importing jinja2 takes a while."""
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import pass_context

    @pass_context  # which also keeps jinja2 from computing constant output while it compiles, outside the limits
    def finalize(context: Any, value: Any) -> Any:
        return _check_depth(value)

    class Generation(Extension):
        """{% generation %} marks the assistant's part for training; here it only holds its content."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class LimitedCode(CodeGenerator):
        def visit_Concat(self, node: Any, frame: Any) -> None:
            self.write("environment.limited_concat((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

    class LimitedEnvironment(ImmutableSandboxedEnvironment):
        code_generator_class = LimitedCode
        intercepted_binops = frozenset({"+", "*", "**", "%", "//", "-"})

        def __init__(self) -> None:
            # Not optimized, for the same reason as finalize.
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], optimized=False, finalize=finalize)
            self.globals.pop("lipsum", None)
            self.filters["tojson"] = _tojson
            self.filters = {name: _limited(name, function) for name, function in self.filters.items()}

        @staticmethod
        def concat(parts: Any) -> str:  # type: ignore[override]
            collected, total = [], 0
            for part in parts:
                total += len(part)
                if total > MAXIMUM_CHARACTERS:
                    raise _TooLarge
                collected.append(part)
            return "".join(collected)

        def limited_concat(self, parts: tuple[Any, ...]) -> str:
            return self.concat(str(_check_depth(p)) for p in parts)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator in ("*", "+") and _size(left) + _size(right) > 2:
                count = left if isinstance(left, int) else right if isinstance(right, int) else 1
                if operator == "*" and (_size(left) if not isinstance(left, int) else _size(right)) * max(1, count) > MAXIMUM_CHARACTERS:
                    raise _TooLarge
                if operator == "+" and _size(left) + _size(right) > MAXIMUM_CHARACTERS:
                    raise _TooLarge
                if isinstance(left, (list, tuple)) or isinstance(right, (list, tuple)):
                    items = _size(left) + _size(right) if operator == "+" else max(_size(left), _size(right)) * max(1, count)
                    if items > MAXIMUM_ITEMS:
                        raise _TooLarge
            elif operator == "%" and isinstance(left, str):
                _check_call("%", [left, right])
            elif isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() * max(1, abs(right)) if operator == "**" else left.bit_length() + right.bit_length()
                if bits > MAXIMUM_BITS:
                    raise _TooLarge
            return _checked(super().call_binop(context, operator, left, right))

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
            known = [owner] if isinstance(owner, (str, bytes, list, tuple, dict)) else []
            _check_call(getattr(function, "__name__", ""), [*known, *args, *kwargs.values()])
            return _checked(super().call(context, function, *args, **kwargs))

    return LimitedEnvironment


def _limited(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, [*args, *kwargs.values()])
        for argument in args:
            if isinstance(argument, (list, tuple, dict)):
                _check_depth(argument)
        if name in ("center", "indent", "batch", "slice", "round", "tojson", "truncate", "wordwrap"):
            numbers = [a for a in [*args, *kwargs.values()] if isinstance(a, int) and not isinstance(a, bool)]
            if any(abs(n) > MAXIMUM_INTEGER for n in numbers):
                raise _TooLarge
        return _checked(function(*args, **kwargs))

    return limited


class Sandbox:
    """One compiled template. render(variables) -> text; raises TemplateError with one line."""

    def __init__(self, source: str, clock: Any = datetime.now):
        from jinja2.exceptions import TemplateSyntaxError

        environment = _environment_class()()
        environment.globals["raise_exception"] = self._raise
        environment.globals["strftime_now"] = lambda pattern: clock().strftime(str(pattern)[:256])
        if len(source) > MAXIMUM_CHARACTERS:
            raise TemplateError("the chat template is longer than 16 MiB; the file is damaged")
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(f"the chat template has a syntax error in line {error.lineno}: {error.message}; use --raw for plain completion") from None
        except RecursionError:
            raise TemplateError("the chat template is nested too deeply; use --raw for plain completion") from None

    @staticmethod
    def _raise(message: Any) -> None:
        raise _Refused(str(message)[:2000])

    def render(self, variables: dict[str, Any]) -> str:
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(self._template.render(variables))
            except BaseException as error:  # handed to the caller's thread below
                outcome.append(error)

        thread = threading.Thread(target=work, daemon=True, name="cpuinfer-template")
        thread.start()
        thread.join(SECONDS)
        while thread.is_alive() and not outcome:
            # Every loop of a template runs Python code, where an exception from outside arrives at once.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Timeout))
            thread.join(0.2)
        return self._result(outcome[0])

    @staticmethod
    def _result(result: Any) -> str:
        from jinja2.exceptions import SecurityError, TemplateError as JinjaError

        if isinstance(result, str):
            return result
        if isinstance(result, _Refused):
            raise TemplateError(f"the chat template refuses these messages: {result}")
        if isinstance(result, _Timeout):
            raise TemplateError(f"the chat template ran for more than {SECONDS:g} s and was stopped; use --raw for plain completion")
        if isinstance(result, (_TooLarge, MemoryError, OverflowError)):
            raise TemplateError("the chat template makes values that are too large; use --raw for plain completion")
        if isinstance(result, SecurityError):
            raise TemplateError(f"the chat template tried what templates may not do: {_line(result)}")
        if isinstance(result, RecursionError):
            raise TemplateError("the chat template is nested too deeply; use --raw for plain completion")
        if isinstance(result, (JinjaError, Exception)):
            raise TemplateError(f"the chat template failed on these messages: {_line(result)}")
        raise result


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
