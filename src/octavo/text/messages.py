"""What a conversation may consist of, checked where nothing else has checked it: messages from a Python program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Roles a caller may use, and the one that templates know each by.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

_EXAMPLE = '[{"role": "user", "content": "Hello"}]'
_SHOWN_CHARS = 80


def checked_messages(messages: object, where: str = "messages") -> list[Mapping[str, Any]]:
    """The messages with roles as templates know them. Raises TypeError or ValueError, which name field and value."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"{where} is {shown(messages)}; it must be a list of messages, such as {_EXAMPLE}.")
    if not messages:
        raise ValueError(f"{where} is empty; at least 1 message is needed, such as {_EXAMPLE}.")
    return [_checked(message, f"{where}[{index}]") for index, message in enumerate(messages)]


def shown(value: object) -> str:
    """A wrong value for an error message, cut to a sensible length."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _checked(message: object, where: str) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"{where} is {shown(message)}; it must be a dict with role and content.")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{where}.role is {shown(role)}; it must be one of {', '.join(ROLES)}.")
    if "content" not in message and not message.get("tool_calls"):
        raise ValueError(f"{where}.content is missing; it must be a text, or a list of parts.")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise ValueError(f"{where}.content is None; it must be a text, or a list of parts.")
    if isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ValueError(
                    f'{where}.content[{index}] is {shown(part)}; parts must be {{"type": "text", "text": "..."}}.'
                )
    elif content is not None and not isinstance(content, str):
        raise TypeError(f"{where}.content is {shown(content)}; it must be a text, or a list of parts.")
    return {**message, "role": ROLES[role]}
