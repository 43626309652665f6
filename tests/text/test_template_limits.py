"""CASES CT-02: templates that attack or never end, and their price: one clear error, soon, and no memory."""

from __future__ import annotations

import resource
import time

import pytest

from octavo.text.chat import ChatTemplate, ChatTemplateError
from octavo.text.template_source import MAX_TEMPLATE_BYTES, TemplateSource
from octavo.text.tokenizer import Tokenizer

SHARED = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
BIG = "{% set big = 'x' * 8000000 %}"

HOSTILE = {
    "subclasses": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "globals of a class": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "globals of raise_exception": ("{{ raise_exception.__globals__ }}", "unsafe"),
    "environment": ("{{ self._TemplateReference__context.environment }}", "unsafe"),
    "map to attribute": ("{{ ['']|map(attribute='__class__')|list }}", "unsafe|undefined|failed"),
    "attr filter": ("{{ ''|attr('__class__') }}", "No filter named 'attr'"),
    "format string": ("{{ '{0.__class__}'.format('') }}", "format of str is not available"),
    "import": ("{% include 'x' %}", "no loader"),
    "mutation": ("{{ messages.append(1) }}", "unsafe|not safely callable"),
    "huge range": ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
    "nested ranges": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
    "nested ranges with output": (
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "steps|characters",
    ),
    "triply nested": ("{% for i in range(999) %}" * 3 + "{% set x = i + 1 %}" + "{% endfor %}" * 3, "steps"),
    "product": ("{{ 'x' * 10**9 }}", "1000000000 characters"),
    "product of a list": ("{{ ([0] * 10**9)|length }}", "1000000000 characters"),
    "product from the right": ("{{ 10**9 * 'x' }}", "1000000000 characters"),
    "doubling by ~": (
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "steps|characters",
    ),
    "doubling by +": (
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "steps|characters",
    ),
    "doubling by capture": (
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        "steps|characters",
    ),
    "doubling a list": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "steps|characters",
    ),
    "list that shows as 2^60": (
        SHARED + "{{ ns.x }}",
        "steps|characters",
    ),
    "json of 2^60": (
        SHARED + "{{ ns.x|tojson }}",
        "steps|characters",
    ),
    "string of 2^60": (
        SHARED + "{{ (ns.x|string)|length }}",
        "steps|characters",
    ),
    "namespace shown": ("{% set ns = namespace(x=1) %}{{ ns }}", "shows a namespace"),
    "macros calling each other twice": (
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
        "steps",
    ),
    "macro without end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "recursive loop": ("{% for x in range(50) recursive %}{{ loop(range(50)) }}{% endfor %}", "steps|recursion"),
    "replace": (BIG + "{{ big.replace('x', big) }}", "steps|characters"),
    "replace filter": (BIG + "{{ big|replace('x', big) }}", "steps|characters"),
    "join": (BIG + "{{ big.join([1, 2, 3]|map('string')|list) }}", "steps|characters"),
    "join filter": (BIG + "{{ range(99999)|join(big) }}", "steps|characters"),
    "join of references": (BIG + "{{ ([big] * 9999)|join }}", "steps|characters"),
    "ljust": ("{{ 'x'.ljust(10**9) }}", "ljust of str is not available"),
    "center filter": ("{{ 'x'|center(10**9) }}", "No filter named 'center'"),
    "indent": (BIG + "{{ ('a\n' * 99999)|indent(10**9) }}", "steps|characters"),
    "wide field": ("{{ '%1000000000d' % 1 }}", "wide fields"),
    "wide field from an argument": ("{{ '%*d' % (10**9, 1) }}", "wide fields"),
    "many fields": (BIG + "{{ ('%(x)s' * 9999) % {'x': big} }}", "steps|characters"),
    "format filter": ("{{ '%1000000000d'|format(1) }}", "No filter named 'format'"),
    "to_bytes": ("{{ (1).to_bytes(10**9, 'big') }}", "to_bytes of int is not available"),
    "power": ("{{ 9**9**9 }}", "powers|whole numbers"),
    "squaring": (
        "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "whole numbers",
    ),
    "long searches": (BIG + "{% for i in range(99999) %}{% if 'y' in big %}{% endif %}{% endfor %}", "steps"),
    "long slices": (BIG + "{% for i in range(99999) %}{% set y = big[1:] %}{% endfor %}", "steps"),
    "long upper": (BIG + "{% for i in range(99999) %}{% set y = big|upper %}{% endfor %}", "steps"),
    "long strip": (BIG + "{% for i in range(99999) %}{% set y = big.strip() %}{% endfor %}", "steps"),
    "long filter chains": (
        "{% for i in range(99999) %}{% set y = range(99999)|map('string')|list %}{% endfor %}",
        "steps",
    ),
    "batch": ("{{ [1]|batch(10**9, 0)|list }}", "No filter named 'batch'"),
    "lipsum": ("{{ lipsum(10**6) }}", "undefined"),
    "wide date": ("{{ strftime_now('%1000000000d') }}", "without widths"),
    "raise": ("{{ raise_exception('no\nsystem role') }}", "refuses this conversation: no system role"),
    "type error": ("{{ 1 + 'x' }}", "unsupported operand"),
    "undefined": ("{{ nothing.x }}", "'nothing' is undefined"),
    "division": ("{{ 1 / 0 }}", "division by zero"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(tokenizer: Tokenizer, name: str) -> None:
    template, message = HOSTILE[name]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ChatTemplateError, match=message) as caught:
        ChatTemplate(TemplateSource(template, "hostile"), tokenizer).encode([{"role": "user", "content": "x"}])
    assert time.process_time() - start < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 400_000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "has an error in line 1"),
        ("{{ x", "has an error in line 1"),
        ("{% nonsense %}", "nonsense"),
        ("(" * 5000, None),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "can't be compiled"),
        ("{{ " + "not " * 5000 + "1 }}", "can't be compiled"),
        ("{% if 1 %}" * 500 + "{% endif %}" * 500, "can't be compiled"),
        ("{{ 'x'|upper" + "|upper" * 3000 + " }}", "can't be compiled"),
        ("x" * (MAX_TEMPLATE_BYTES + 1), f"longer than {MAX_TEMPLATE_BYTES} bytes"),
    ],
    ids=range(9),
)
def test_bad_syntax(tokenizer: Tokenizer, template: str, message: str | None) -> None:
    start = time.process_time()
    if message is None:
        ChatTemplate(TemplateSource(template, "odd"), tokenizer)
    else:
        with pytest.raises(ChatTemplateError, match=message):
            ChatTemplate(TemplateSource(template, "odd"), tokenizer)
    assert time.process_time() - start < 2.0


def test_the_limits_leave_room_for_long_conversations(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(
        TemplateSource("{% for m in messages %}{{ m.role ~ ': ' ~ m.content | trim }}\n{% endfor %}", "long"), tokenizer
    )
    turns = [{"role": "user", "content": "a line of some words. " * 5}] * 2000
    assert len(template.encode(turns).text) > 200_000


def test_a_template_can_be_used_after_it_failed(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(TemplateSource("{{ messages[0].content * 10**9 }}", "t"), tokenizer)
    for _ in range(3):
        with pytest.raises(ChatTemplateError, match="characters"):
            template.encode([{"role": "user", "content": "x"}])
    assert template.encode([{"role": "user", "content": ""}]).text == ""
