"""Fields that are part of the API, or of its common extensions, and that this server does not support (yet).

A parameter is either used or refused, never silently dropped: each has the values that are the same as leaving it out,
and a sentence for all others.
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server.decoding import decode_field
from octavo.server.errors import bad_request

_STRUCTURED = "Structured output is not supported yet; ask for JSON in the prompt."
_TOOLS = "Tool calls are not supported yet."
_TEXT_ONLY = "This model reads and writes text only."
_TEMPLATE = "Requests may not bring or configure a chat template; start the server with --chat-template FILE."
_NOT_YET = "It is not supported yet."

#: field -> (values that mean the same as leaving it out, why others are refused)
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "suffix": (("",), "This model has no fill-in-the-middle format."),
    "tools": (([],), _TOOLS),
    "tool_choice": (("none", "auto"), _TOOLS),
    "functions": (([],), _TOOLS),
    "function_call": (("none", "auto"), _TOOLS),
    "response_format": (({"type": "text"},), _STRUCTURED),
    "guided_json": ((), _STRUCTURED),
    "guided_regex": ((), _STRUCTURED),
    "guided_choice": ((), _STRUCTURED),
    "guided_grammar": ((), _STRUCTURED),
    "structured_outputs": ((), _STRUCTURED),
    "grammar": (("",), _STRUCTURED),
    "json_schema": ((), _STRUCTURED),
    "audio": ((), _TEXT_ONLY),
    "modalities": ((["text"],), _TEXT_ONLY),
    "prediction": ((), _NOT_YET),
    "web_search_options": ((), "This server has no web search."),
    "moderation": ((), "This server has no moderation."),
    "store": ((False,), "This server stores nothing."),
    "logits_processors": (([],), "Requests may not bring code."),
    "return_tokens_as_token_ids": ((False,), _NOT_YET),
    "documents": (([],), _NOT_YET),
    "mm_processor_kwargs": (({},), _TEXT_ONLY),
    "chat_template": ((), _TEMPLATE),
    "chat_template_kwargs": (({},), _TEMPLATE),
    "continue_final_message": ((False,), "Going on with the last message is not supported yet; use /v1/completions."),
}

#: Labels and hints without an influence on the answer: taking no notice of them is using them.
LABELS = frozenset(
    [
        *("user", "metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "request_id"),
        *("reasoning_effort", "verbosity", "service_tier", "spaces_between_special_tokens"),
    ]
)

#: The same for fields that only /v1/completions has.
REFUSED_IN_CHAT: dict[str, tuple[tuple[Any, ...], str]] = {
    "echo": ((False,), "A chat's prompt is not echoed; /v1/completions can, and return_token_ids gives its tokens."),
}

KNOWN = LABELS | REFUSED.keys() | REFUSED_IN_CHAT.keys()


def check_refused(fields: dict[str, msgspec.Raw], chat: bool = False) -> None:
    """Raise ApiError 400 for a field that asks for what is not supported."""
    refused = {**REFUSED, **REFUSED_IN_CHAT} if chat else REFUSED
    for name in fields.keys() & refused.keys():
        neutral, why = refused[name]
        value = decode_field(fields[name], Any, name)
        if value is not None and not any(value == same and type(value) is type(same) for same in neutral):
            shown = bytes(fields[name])[:80].decode(errors="replace")
            raise bad_request(f"{name} is {shown}. {why}", name, "unsupported_parameter")
