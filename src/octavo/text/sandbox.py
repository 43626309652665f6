"""A Jinja environment for chat templates that nobody has checked.

jinja2's ImmutableSandboxedEnvironment keeps a template away from Python's internals; this one also bounds what it may
cost. Everything that can be repeated or that can grow is counted: loops and calls by a rewrite of the parsed template,
operators, filters and methods where the sandbox lets them through. What can grow and no chat template needs (center,
ljust, str.format and the like) is not there. The rest is what transformers offers: loop controls, `generation` blocks,
`raise_exception`, `strftime_now`, and a `tojson` that does not escape for HTML.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, CodeType
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS

from octavo.text.template_budget import Budget, TemplateLimits
from octavo.text.template_rewrite import Counting

# Steps of the budget: how many loop passes cost about as much.
_CALL_STEPS = 10
_FILTER_STEPS = 4
_OPERATOR_STEPS = 2

_MAX_INT_BITS = 4096
_MAX_WIDTH = 1000

# Filters of jinja2: those that turn their input into text, and those that only go through its items.
_TEXT_FILTERS = ("capitalize", "e", "escape", "join", "lower", "safe", "string", "title", "trim", "upper", "wordcount")
_ITEM_FILTERS = (
    "abs", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last", "length", "list",
    "map", "max", "min", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "sort", "unique",
)  # fmt: skip
_METHODS: dict[type, tuple[str, ...]] = {
    str: (
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    ),
    dict: ("copy", "get", "items", "keys", "values"),
    list: ("copy", "count", "index"),
    tuple: ("count", "index"),
}  # fmt: skip


class TemplateRaisedError(TemplateError):
    """The template itself refused the conversation, by raise_exception."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders templates inside limits. One may be used by several threads."""

    intercepted_binops = frozenset(["+", "*", "%", "**"])

    def __init__(self, limits: TemplateLimits | None = None) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols], cache_size=0
        )
        self._limits = limits or TemplateLimits()
        self._local = threading.local()
        # jinja2 looks these up as plain callables.
        self.concat = lambda pieces: self.budget.joined(pieces)  # type: ignore[method-assign]
        self.finalize = self._finalize
        del self.globals["lipsum"]
        self.globals.update(raise_exception=_raise_exception, strftime_now=self._strftime_now)
        builtin: dict[str, Any] = {**FILTERS}
        tests: dict[str, Any] = {**TESTS}
        self.filters = {
            **{name: self._counted(builtin[name], self._weigh_text) for name in _TEXT_FILTERS},
            **{name: self._counted(builtin[name], self._weigh_items) for name in _ITEM_FILTERS},
            "join": self._counted(self._join, self._weigh_text),
            "replace": self._counted(self._replace, self._weigh_text),
            "indent": self._counted(self._indent, self._weigh_text),
            "tojson": self._counted(self._tojson, self._weigh_text),
            Counting.ITEMS: lambda value: self.budget.items(value),
            Counting.TEXT: self._weigh_read,
            Counting.CONCAT: self._concat,
        }
        self.tests = {name: self._counted(test, self._weigh_items) for name, test in tests.items()}

    @property
    def budget(self) -> Budget:
        budget: Budget = self._local.budget
        return budget

    @contextmanager
    def limited(self, now: datetime | None = None) -> Iterator[None]:
        """Compile and render only inside this; each use has the whole limits. `now` is the template's clock."""
        self._local.budget = Budget(self._limits)
        self._local.now = now or datetime.now()
        yield

    def compile_counted(self, tree: nodes.Template) -> CodeType:
        """The code of a parsed template, with counting put in. Must be called inside `limited`."""
        return self.compile(Counting().visit(tree))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.spend(_OPERATOR_STEPS)
        if operator == "*":
            self._check_product(left, right)
        elif operator == "+":
            if hasattr(left, "__len__") and hasattr(right, "__len__"):
                self.budget.text(len(left) + len(right))
        elif operator == "**":
            if not all(isinstance(side, (int, float)) and abs(side) <= _MAX_INT_BITS for side in (left, right)):
                raise SecurityError(f"powers are limited to numbers up to {_MAX_INT_BITS}")
            if isinstance(left, int) and left.bit_length() * right > _MAX_INT_BITS:
                raise SecurityError(f"whole numbers are limited to {_MAX_INT_BITS} bits")
        elif isinstance(left, str):
            if re.search(r"%[^a-zA-Z%]*(?:\d{4}|\*)", left):
                raise SecurityError("formats with wide fields are not available")
            self.budget.text(len(left) + left.count("%") * self.budget.shown(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.budget.spend(_CALL_STEPS)
        if isinstance(__obj, BuiltinMethodType):
            __self._check_method(__obj.__self__, __obj.__name__, args)
        elif isinstance(__obj, LoopContext):
            args = tuple(map(__self.budget.items, args))
        return super().call(__context, __obj, *args, **kwargs)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Unsafe attributes are errors at once, not only when they are used."""
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuses str.format, which can grow in ways that are hard to foresee."""
        if super().wrap_str_format(value) is None:
            return None
        return _refuse_format

    def _finalize(self, value: Any) -> Any:
        """Every value on its way to the output."""
        self.budget.shown(value)
        return value

    def _check_product(self, left: Any, right: Any) -> None:
        count, repeated = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(count, int) and hasattr(repeated, "__len__"):
            self.budget.text(max(0, count) * len(repeated))
        elif (
            isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_INT_BITS
        ):
            raise SecurityError(f"whole numbers are limited to {_MAX_INT_BITS} bits")

    def _check_method(self, owner: Any, name: str, args: tuple[Any, ...]) -> None:
        allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), ())
        if name not in allowed:
            raise SecurityError(f"the method {name} of {type(owner).__name__} is not available")
        if not isinstance(owner, str):
            self.budget.items(owner)
            return
        self.budget.text(len(owner))
        if name == "replace" and len(args) >= 2:
            self._check_replace(owner, args[0], args[1])
        elif name == "join" and args:
            self._check_join(owner, args[0])

    def _check_replace(self, text: str, old: Any, new: Any) -> None:
        self.budget.text(len(text) + text.count(str(old)) * self.budget.shown(new))

    def _check_join(self, separator: str, items: Any) -> None:
        if hasattr(items, "__len__"):
            self.budget.text(self.budget.shown(items) + len(separator) * len(items))
        else:
            raise SecurityError("join needs a list")

    def _counted(self, function: Callable[..., Any], weigh: Callable[[Any], Any]) -> Callable[..., Any]:
        """A filter or test whose arguments are weighed first. It keeps the marks jinja2 has put on it."""

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.budget.spend(_FILTER_STEPS)
            return function(*map(weigh, args), **{key: weigh(value) for key, value in kwargs.items()})

        return counted

    def _weigh_items(self, value: Any) -> Any:
        if isinstance(value, str):
            self.budget.text(len(value))
            return value
        return self.budget.items(value) if isinstance(value, Iterator) or hasattr(value, "__len__") else value

    def _weigh_text(self, value: Any) -> Any:
        value = self._weigh_items(value)
        if not isinstance(value, str) and not callable(value):
            self.budget.shown(value)
        return value

    def _weigh_read(self, value: Any) -> Any:
        """A text that is about to be searched or sliced."""
        if isinstance(value, str):
            self.budget.text(len(value))
        return value

    def _concat(self, parts: list[Any]) -> str:
        for part in parts:
            self.budget.shown(part)
        return self.budget.joined(map(str, parts))

    def _join(self, value: Any, d: str = "", attribute: str | int | None = None) -> str:
        items = list(value) if attribute is None else [self.getitem(item, attribute) for item in value]
        self._check_join(str(d), items)
        return str(d).join(map(str, items))

    def _replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        self._check_replace(str(text), old, new)
        return str(text).replace(str(old), str(new), -1 if count is None else count)

    def _indent(self, text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        margin = width if isinstance(width, str) else " " * min(width, _MAX_WIDTH)
        lines = str(text).splitlines(keepends=True)
        self.budget.text(len(str(text)) + len(lines) * len(margin))
        return "".join(
            margin + line if (index or first) and (blank or line.strip()) else line for index, line in enumerate(lines)
        )

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not 0 <= indent <= 16:
            raise SecurityError("tojson indents by 0 to 16")
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def _strftime_now(self, format: str) -> str:
        if len(format) > 100 or re.search(r"\d{3}", format):
            raise SecurityError("strftime_now takes a short format without widths")
        now: datetime = self._local.now
        return now.strftime(format)


class _Generation(Extension):
    """{% generation %} marks what an assistant said, for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRaisedError(str(message)[:500])


def _refuse_format(*args: object, **kwargs: object) -> NoReturn:
    raise SecurityError("the method format of str is not available; use ~")
