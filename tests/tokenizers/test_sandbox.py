"""Templates that attack: each is refused in one line, in little time and memory, and runs nothing."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import pytest

from cpuinfer.errors import TemplateError
from cpuinfer.tokenizers import sandbox
from cpuinfer.tokenizers.sandbox import Sandbox


def render(source: str, **variables: object) -> str:
    return Sandbox(source, lambda: datetime(2026, 7, 26, 12)).render(variables)


def doubled(use: str) -> str:
    """A list of 40 levels, each holding the one below twice: tiny in memory, 2**40 leaves when written."""
    return "{% set ns = namespace(a=['x']) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}" + use


LARGE = {
    "a repeated string": "{{ 'a' * 10**9 }}",
    "a repeated string in two steps": "{% set x = 'a' * 10**6 %}{{ x * 10**6 }}",
    "a repeated list": "{{ ([1] * 10**5) * 10**6 }}",
    "nested repeated lists": "{{ [[['a' * 10**7] * 1000] * 1000] * 1000 }}",
    "a large range": "{{ range(10**9) | list }}",
    "a large power": "{{ 3 ** (10**9) }}",
    "repeated squaring": "{% set ns = namespace(a=3) %}{% for i in range(99999) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
    "doubling with +": "{% set ns = namespace(a='x') %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "doubling with ~": "{% set ns = namespace(a='x') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "doubling a list": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "a doubled structure written": doubled("{{ ns.a }}"),
    "a doubled structure as JSON": doubled("{{ ns.a | tojson }}"),
    "a doubled structure formatted": doubled("{{ '%s' % ns.a }}"),
    "a doubled structure joined": doubled("{{ ns.a | join }}"),
    "a doubled dict": "{% set ns = namespace(a={}) %}{% for i in range(40) %}{% set ns.a = {'a': ns.a, 'b': ns.a} %}{% endfor %}{{ ns.a }}",
    "the center filter": "{{ 'a' | center(10**9) }}",
    "the center method": "{{ 'a'.center(10**9) }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "indent by a number": "{{ ('a\n' * 10**6) | indent(10**6) }}",
    "indent by a text": "{{ ('\n' * 1000) | indent('x' * 10**6) }}",
    "batch": "{{ [1] | batch(10**9, 1) | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "a width after %": "{{ '%1000000000d' % 1 }}",
    "a width given to %": "{{ '%*d' % (10**9, 1) }}",
    "a precision": "{{ '%.1000000000f' % 1.0 }}",
    "many widths": "{{ '" + "%99999d" * 1000 + "' % ((" + "1," * 1000 + ")) }}",
    "the format filter": "{{ '%1000000000d' | format(1) }}",
    "the format method": "{{ '{:1000000000d}'.format(1) }}",
    "a width in a field": "{{ '{:{w}d}'.format(1, w=10**9) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "one field many times": "{{ ('{0}' * 1000).format('a' * 10**6) }}",
    "replace": "{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}",
    "the replace filter": "{{ ('a' * 10**5) | replace('a', 'b' * 10**5) }}",
    "join": "{{ ('b' * 10**5).join('a' * 10**5) }}",
    "the join filter on a generator": "{{ (range(90000) | map('string')) | join('b' * 10**5) }}",
    "tabs": "{{ ('\t' * 10**5).expandtabs(10**5) }}",
    "translate": "{{ ('a' * 10**5).translate({97: 'b' * 10**5}) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "wordwrap": "{{ ('a ' * 10**5) | wordwrap(1, wrapstring='b' * 10**5) }}",
    "JSON's indent": "{{ [1, 2] | tojson(indent=10**9) }}",
    "a text as a list": "{{ ('a' * 10**7) | list | length }}",
    "a split text": "{{ ('a,' * 5 * 10**6).split(',') | length }}",
    "output": "{% set x = 'a' * 10**6 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "a macro's output": "{% set x = 'a' * 10**6 %}{% macro m() %}{% for i in range(100000) %}{{ x }}{% endfor %}{% endmacro %}{% set y = m() %}",
    "a block's output": "{% set x = 'a' * 10**6 %}{% set y %}{% for i in range(100000) %}{{ x }}{% endfor %}{% endset %}",
    "many large strings": "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = ns.a + [('x' * 10**6) ~ i] %}{% endfor %}",
    "many slices": "{% set ns = namespace(a=[]) %}{% set s = 'a' * 10**7 %}{% for i in range(9999) %}{% set ns.a = ns.a + [s[i:]] %}{% endfor %}",
    "many results of a filter": "{{ range(99999) | map('string') | map('center', 10**4) | list }}",
}


@pytest.mark.parametrize("name", LARGE)
def test_a_value_that_would_be_too_large_is_refused_before_it_is_made(name: str) -> None:
    # On a busy machine the time limit may come first: refused all the same.
    with pytest.raises(TemplateError, match="too large|was stopped"):
        render(LARGE[name])


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{{ ([range(99999)] * 99999) | map('sum') | list }}",
        "{% set s = 'a' * 10**7 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    ],
    ids=["loops", "calls", "filters", "characters"],
)
def test_a_template_that_runs_too_long_is_stopped_and_leaves_no_thread(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    started = time.monotonic()
    with pytest.raises(TemplateError, match="ran for more than"):
        render(source)
    assert time.monotonic() - started < 60
    deadline = time.monotonic() + 60
    while any(thread.name == "cpuinfer-template" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__.os.popen('echo') }}",
        "{{ joiner | attr('__init__') }}",
        "{{ namespace.__init__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__closure__ }}",
        "{{ ''.__class__ }}",
        "{{ messages['__class__'] }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{{ self._TemplateReference__context }}",
        "{{ messages.append({}) }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update(role='system') }}",
        "{% set messages[0].role = 'system' %}",
        "{{ lipsum.__globals__ }}",
        "{% include '/etc/hostname' %}",
        "{% import 'x' as y %}",
        "{% extends '/etc/hostname' %}",
    ],
)
def test_a_template_reaches_nothing_of_python_and_changes_no_message(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(TemplateError):
        render(source, messages=messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
        "{{ " + "-" * 50000 + "1 }}",
        "{% if 1 %}" * 500 + "{% endif %}" * 500,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    ],
    ids=["parentheses", "signs", "blocks", "a macro", "a loop"],
)
def test_deep_nesting_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        render(source)


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(TemplateError, match="syntax error in line 3"):
        render("a\nb\n{% if %}")


def test_a_broken_number_in_the_source_is_a_template_error() -> None:
    with pytest.raises(TemplateError):
        render("{{ " + "9" * 10000 + " }}")


def test_an_error_of_the_template_is_one_line() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ raise_exception('roles must\nalternate') }}")
    assert str(caught.value) == "the chat template refuses these messages: roles must alternate"


def test_what_templates_use_works_as_jinja_has_it() -> None:
    source = (
        "{%- for m in messages %}\n{{ m.content | trim }}{% if loop.last %}!{% endif %}{% if m.content is in ['no'] %}{% break %}{% endif %}\n{%- endfor %}"
        "|{{ {'a': 'é<', 'b': [1, none]} | tojson }}|{{ [3, 1] | sort | join('-') }}|{{ '%05.1f' | format(2.5) }}|{{ '{:>4}'.format('x') }}"
        "|{{ 'a b c'.split(' ', 1)[1] }}|{{ 'a b c'.split(maxsplit=1)[1] }}|{{ strftime_now('%d %b %Y') }}|{{ 'ab'[::-1] }}|{{ (1, 2) + (3,) }}"
        "|{% generation %}answer{% endgeneration %}|{{ 'x' ~ 1 ~ none }}|{{ 'a' * 3 }}|{{ 2 ** 10 }}|{{ [1] * 2 }}|{{ missing }}|{{ '-'.join(['a', 'b']) }}"
        "|{{ {'a': 1}.items() | list }}|{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}|{{ [1, 2] | tojson(indent=1) }}"
    )
    messages = [{"role": "user", "content": " hi "}, {"role": "user", "content": "yes"}]
    assert render(source, messages=messages) == (
        'hiyes!|{"a": "é<", "b": [1, null]}|1-3|002.5|   x|b c|b c|26 Jul 2026|ba|(1, 2, 3)|answer|x1None|aaa|1024|[1, 1]||a-b|[(\'a\', 1)]|a1|[\n 1,\n 2\n]'
    )


def test_the_limits_hold_for_each_render_anew() -> None:
    box = Sandbox("{% for i in range(n) %}{% set x = 'a' * 10**6 %}{{ i }}{% endfor %}")
    for _ in range(3):
        assert box.render({"n": 100}).endswith("99")
    with pytest.raises(TemplateError, match="too large"):
        box.render({"n": 300})
    assert box.render({"n": 2}) == "01"


def test_two_threads_may_render_one_template() -> None:
    box = Sandbox("{% for i in range(2000) %}{{ name }}{% endfor %}")
    results: dict[str, str] = {}
    threads = [threading.Thread(target=lambda name=name: results.update({name: box.render({"name": name})})) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {name: name * 2000 for name in "abcd"}
