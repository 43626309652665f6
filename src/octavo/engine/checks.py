"""What a parameter must be like to be taken, and the error of one that isn't."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


class ParamError(ValueError):
    """A request parameter out of its limits.

    Attributes: `param` (the field's name), so that a server can answer with `{"param": ...}`.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def listed(name: str, value: object, what: str) -> tuple[Any, ...]:
    """A list or tuple as a tuple. `what` it holds is for the error."""
    if not isinstance(value, (tuple, list)):
        raise ParamError(name, f"{name} is {value!r}; it must be a list of {what}.")
    return tuple(value)


def words(name: str, value: object) -> tuple[str | tuple[int, ...], ...]:
    """A list whose items are texts or lists of token ids, none of them empty."""
    items = listed(name, value, "texts or lists of token ids")
    result: list[str | tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str) and item:
            result.append(item)
        elif isinstance(item, (tuple, list)) and item:
            result.append(tuple(item))
        else:
            raise ParamError(name, f"{name} holds {item!r}; it must hold texts or lists of token ids, none empty.")
    return tuple(result)


def at_most(name: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise ParamError(name, f"{name} has {count} {what}; at most {limit} are allowed.")


def integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParamError(name, f"{name} is {value!r}; it must be an integer from {low} to {high}.")
    if not low <= value <= high:
        raise ParamError(name, f"{name} is {value}; it must be from {low} to {high}.")


def number(name: str, value: object, low: float, high: float, param: str | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ParamError(param or name, f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
    if not low <= value <= high:
        shown = f"{value:g}" if float(f"{value:g}") == value else repr(value)
        raise ParamError(param or name, f"{name} is {shown}; it must be from {low:g} to {high:g}.")


def token_ids(name: str, tokens: Iterable[object], vocab_size: int) -> None:
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ParamError(name, f"{name} holds token id {token!r}; ids are integers from 0 to {vocab_size - 1}.")
