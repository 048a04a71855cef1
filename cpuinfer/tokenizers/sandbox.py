"""Runs a Jinja template that is not trusted: nothing of Python to reach, and limits on time, output and memory.

What holds: no attribute with an underscore, no function's globals, no file, no import or include, no change to what the template is given (jinja2's immutable sandbox).
Output of at most 16 MiB. No string, container or integer beyond the bounds in limits.py, and at most BUDGET characters made in all, whatever operator, filter, call,
macro or block makes them. After SECONDS an exception is raised in the rendering thread, repeatedly, until it ends: every loop of a template runs Python code, and no
single built-in call runs long on values within the bounds. Compiling is under the same limits. A thread that does not end all the same is left alone as a daemon.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..errors import TemplateError
from . import limits
from .limits import TooLarge
from .marked_text import joined, written

SECONDS = 2.0
_GRACE = 3.0  # seconds that a stopped thread gets to end
_CONTAINERS = (list, tuple, dict, set, frozenset)


class Refused(Exception):
    """The template's own raise_exception."""


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """As Hugging Face's templates expect: neither HTML nor ASCII escaping."""
    if indent is not None:
        limits.at_most(len(indent) if isinstance(indent, str) else limits.number(indent), 64)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join(limits.collected(encoder.iterencode(value), 0)) if indent is not None else encoder.encode(value)


@functools.cache
def _environment_class() -> type:
    """Made when first needed: importing jinja2 takes a while."""
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import _PassArg

    class Generation(Extension):
        """{% generation %} marks the assistant's part for training; here it only holds its content."""

        tags = frozenset({"generation"})  # type: ignore[assignment]

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class LimitedCode(CodeGenerator):
        """Sends through the environment what jinja2 otherwise compiles to plain Python: ~, slices and displays of lists, tuples and dicts."""

        def _through(self, name: str, visit: Callable[..., None], node: Any, frame: Any) -> None:
            self.write(f"environment.{name}(")
            visit(node, frame)
            self.write(")")

        def visit_Concat(self, node: Any, frame: Any) -> None:
            self.write("environment.limited_concat((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

        def visit_Getitem(self, node: Any, frame: Any) -> None:
            if isinstance(node.arg, nodes.Slice):
                self._through("made", super().visit_Getitem, node, frame)
            else:
                super().visit_Getitem(node, frame)

        def visit_List(self, node: Any, frame: Any) -> None:
            self._through("made", super().visit_List, node, frame)

        def visit_Dict(self, node: Any, frame: Any) -> None:
            self._through("made", super().visit_Dict, node, frame)

        def visit_Tuple(self, node: Any, frame: Any) -> None:
            if node.ctx == "load":
                self._through("made", super().visit_Tuple, node, frame)
            else:
                super().visit_Tuple(node, frame)

    class LimitedEnvironment(ImmutableSandboxedEnvironment):
        code_generator_class = LimitedCode
        intercepted_binops = frozenset({"+", "*", "**", "%", "-"})
        budget = limits.BUDGET

        def __init__(self) -> None:
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], finalize=self.shown)
            del self.globals["lipsum"]
            self.filters["tojson"] = _tojson
            self.filters = {name: self._limited(name, function) for name, function in self.filters.items()}
            self.tests = {name: self._limited(name, function) for name, function in self.tests.items()}

        def made(self, value: Any) -> Any:
            """Counts a new value against the budget."""
            size = limits.written(value)
            if size > 64:
                self.budget -= size
                if self.budget < 0:
                    raise TooLarge
            return value

        @staticmethod
        def shown(value: Any) -> Any:
            limits.written(value)
            return value

        def concat(self, parts: Any) -> str:  # type: ignore[override]
            return self.made(joined(limits.collected(parts, 0)))

        def limited_concat(self, parts: tuple[Any, ...]) -> str:
            return self.concat(part if isinstance(part, str) else str(self.shown(part)) for part in parts)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "*":
                limits.multiply(left, right)
            elif operator in ("+", "-"):
                limits.add(left, right)
            elif operator == "**":
                limits.power(left, right)
            elif isinstance(left, (str, bytes)):
                limits.percent(left, right)
            result = super().call_binop(context, operator, left, right)
            return self.made(result) if isinstance(result, (str, bytes)) else result

        def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
            """Refuse at once: jinja2's own way prints nothing until the value is used."""
            raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe")

        def wrap_str_format(self, value: Any) -> Any:
            wrapper = super().wrap_str_format(value)
            if wrapper is None:
                return None
            text = value.__self__

            def limited(*args: Any, **kwargs: Any) -> str:
                mapping = args[0].values() if args and isinstance(args[0], dict) and value.__name__ == "format_map" else ()
                limits.formatted(text, [*args, *kwargs.values(), *mapping])
                return str(self.made(wrapper(*args, **kwargs)))

            return functools.update_wrapper(limited, value)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            owner = getattr(function, "__self__", None)
            name = str(getattr(function, "__name__", ""))
            if isinstance(owner, (str, bytes)):
                checked = limits.method(owner, name, (*args, *kwargs.values()))
                args = checked if name == "join" else args
            elif isinstance(owner, int):
                for value in (*args, *kwargs.values()):
                    limits.number(value)
            elif isinstance(owner, _CONTAINERS):
                for value in (owner, *args):
                    limits.written(value)
            result = super().call(context, function, *args, **kwargs)
            return self.made(result) if isinstance(result, (str, bytes, *_CONTAINERS)) else result

        def _limited(self, name: str, function: Any) -> Any:
            skip = 0 if _PassArg.from_obj(function) is None else 1

            @functools.wraps(function)
            def limited(*args: Any, **kwargs: Any) -> Any:
                checked = limits.filter_arguments(name, list(args[skip:]), kwargs)
                result = function(*args[:skip], *checked, **kwargs)
                return self.made(result) if isinstance(result, (str, bytes, *_CONTAINERS)) else result

            return limited

    return LimitedEnvironment


class Sandbox:
    """One template, compiled at its first use."""

    def __init__(self, source: str, clock: Callable[[], datetime] = datetime.now):
        self._source, self._clock = source, clock
        self._template: Any = None
        self._lock = threading.Lock()  # one render at a time: the budget belongs to the environment

    def render(self, variables: dict[str, Any]) -> str:
        """The text; raises TemplateError with one line."""
        with self._lock:
            return limited_run(lambda: self._render(variables), SECONDS)

    def _render(self, variables: dict[str, Any]) -> str:
        if self._template is None:
            limits.at_most(len(self._source), limits.ITEMS)
            environment = _environment_class()()
            environment.globals["raise_exception"] = self._refuse
            environment.globals["strftime_now"] = lambda pattern: self._clock().strftime(str(pattern)[:256])
            self._template = environment.from_string(self._source)
        self._template.environment.budget = limits.BUDGET
        return written(self._template.render(variables))

    @staticmethod
    def _refuse(message: Any) -> None:
        limits.written(message)
        raise Refused(str(message))


def limited_run(function: Callable[[], str], seconds: float) -> str:
    """function() in a thread that is stopped after so many seconds; what it raises becomes a TemplateError."""
    outcome: list[str | BaseException] = []
    ending = threading.Lock()  # held while the thread may be interrupted: none is after it has ended

    def work() -> None:
        try:
            result: str | BaseException = function()
        except BaseException as error:  # noqa: BLE001 (told to the caller below)
            result = error
        with ending:
            outcome.append(result)

    thread = threading.Thread(target=work, daemon=True, name="cpuinfer-template")
    thread.start()
    thread.join(seconds)
    last = time.monotonic() + _GRACE
    stopped = False
    while thread.is_alive() and time.monotonic() < last:
        with ending:
            if not outcome:
                _interrupt(thread.ident)
                stopped = True
        thread.join(0.05)
    if stopped or not outcome:
        raise TemplateError(f"the chat template ran for more than {seconds:g} s and was stopped; use --raw for plain completion")
    return _result(outcome[0])


def _interrupt(thread: int | None) -> None:
    import ctypes

    # SystemExit is the one exception that threading does not report when it arrives at the very end of a thread.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(SystemExit))


def _result(result: str | BaseException) -> str:
    from jinja2.exceptions import SecurityError, TemplateSyntaxError

    if isinstance(result, str):
        return result
    words = " ".join(str(result)[:2000].split())[:300] or type(result).__name__
    advice = "use --raw for plain completion"
    if isinstance(result, Refused):
        raise TemplateError(f"the chat template refuses these messages: {words}")
    if isinstance(result, (TooLarge, MemoryError, OverflowError)):
        raise TemplateError(f"the chat template makes values that are too large; {advice}")
    if isinstance(result, RecursionError):
        raise TemplateError(f"the chat template is nested too deeply; {advice}")
    if isinstance(result, TemplateSyntaxError):
        raise TemplateError(f"the chat template has a syntax error in line {result.lineno}: {words}; {advice}")
    did = "tried what templates may not do" if isinstance(result, SecurityError) else "failed on these messages"
    raise TemplateError(f"the chat template {did}: {words}") from result
