"""Chat messages as a template may see them: known roles, text only."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server.decoding import decode_field
from octavo.server.errors import bad_request, context_length_exceeded
from octavo.server.protocol import ContentPart, Message
from octavo.text.messages import ROLES


def parse_messages(raw: msgspec.Raw, max_model_len: int) -> list[dict[str, Any]]:
    """Messages with `role`, `content` (a text, a list of text parts, or None) and other fields only where given.

    Raises ApiError 400; for more messages than a context could hold before any is parsed.
    """
    least = min(bytes(raw).count(b'"role"'), bytes(raw).count(b"}"))
    if least > max_model_len:
        raise context_length_exceeded(
            f"messages has {least} messages or more; the context has {max_model_len} tokens.", "messages"
        )
    messages = decode_field(raw, list[Message], "messages")
    if not messages:
        raise bad_request("messages is empty; at least 1 message is needed.", "messages", "invalid_value")
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain(message: Message, where: str) -> dict[str, Any]:
    role = ROLES.get(message.role)
    if role is None:
        known = ", ".join(ROLES)
        raise bad_request(f"{where}.role is {message.role[:40]!r}; it must be one of {known}.", f"{where}.role")
    plain: dict[str, Any] = {"role": role, "content": _content(message, where)}
    for name in ("name", "tool_call_id", "tool_calls"):
        value = getattr(message, name)
        if value:
            plain[name] = value
    return plain


def _content(message: Message, where: str) -> str | list[dict[str, str]] | None:
    if isinstance(message.content, str):
        return message.content
    if message.content:
        return [_part(part, f"{where}.content[{index}]") for index, part in enumerate(message.content)]
    if message.content is None and message.role == "assistant" and message.tool_calls:
        return None
    shown = "null" if message.content is None else "an empty list"
    raise bad_request(
        f"{where}.content is missing or {shown}; it must be a text, or a list of parts.",
        f"{where}.content",
        "missing_field",
    )


def _part(part: ContentPart, where: str) -> dict[str, str]:
    if part.type != "text":
        raise bad_request(f"{where}.type is {part.type[:40]!r}; this model reads text only.", f"{where}.type")
    if part.text is None:
        raise bad_request(f"{where}.text is missing; it is required.", f"{where}.text", "missing_field")
    return {"type": "text", "text": part.text}
