"""Request bodies: JSON to typed structs, and every way it can fail to a 400 that names field and value."""

from __future__ import annotations

import logging
import re
import time
from typing import Any, TypeVar

import msgspec

from octavo.server.errors import ApiError, bad_request

log = logging.getLogger("octavo.server")

T = TypeVar("T", bound=msgspec.Struct)

MAX_PARAMETER_BYTES = 128 << 10
_SHOWN_CHARS = 80
_NAMES_SHOWN = 8
_UNKNOWN_LOG_INTERVAL_S = 60.0
_AT = re.compile(r"^(?P<problem>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_field_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class BodyDecoder:
    """Decodes one kind of body. Fields it does not know are accepted; their names are logged once a minute at most.

    large: the fields that may be as large as the body; others are looked at only up to a size that suits a parameter.
    """

    def __init__(self, kind: type[T], large: str, also_known: frozenset[str] = frozenset()) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._known = also_known | set(kind.__struct_encode_fields__)
        self._large = frozenset(large.split())
        self._logged_s = -_UNKNOWN_LOG_INTERVAL_S

    def decode(self, body: bytes) -> tuple[Any, dict[str, msgspec.Raw]]:
        """The struct, and every field as raw JSON. Raises ApiError 400."""
        try:
            fields = _field_decoder.decode(body)
            self._check_sizes(fields)
            request = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise invalid_field(str(error), body) from None
        except _MALFORMED as error:
            raise _invalid_json("The body", None, error, len(body)) from None
        unknown = fields.keys() - self._known
        if unknown:
            self._log(unknown)
        return request, fields

    def _check_sizes(self, fields: dict[str, msgspec.Raw]) -> None:
        """Parsing holds up every stream, so what can't be right is not parsed."""
        for name, raw in fields.items():
            if len(bytes(raw)) > MAX_PARAMETER_BYTES and name not in self._large:
                shown = name[:_SHOWN_CHARS]
                raise bad_request(
                    f"{shown} has {len(bytes(raw))} bytes; the limit for a parameter is {MAX_PARAMETER_BYTES}.",
                    shown,
                    "too_large",
                )

    def _log(self, unknown: set[str]) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= _UNKNOWN_LOG_INTERVAL_S:
            self._logged_s = now_s
            names = ", ".join(repr(name[:_SHOWN_CHARS]) for name in sorted(unknown)[:_NAMES_SHOWN])
            log.warning("A request has fields that this server does not know and ignores: %s", names)


def decode_field(raw: msgspec.Raw, kind: Any, param: str) -> Any:
    """One raw field as `kind`. Raises ApiError 400."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), raw, param) from None
    except _MALFORMED as error:
        raise _invalid_json(param, param, error, len(bytes(raw))) from None


def invalid_field(problem: str, body: bytes | msgspec.Raw, root: str = "") -> ApiError:
    """From msgspec's "Expected `int`, got `str` - at `$.stop[0]`" to an error with param "stop[0]" and the value."""
    match = _AT.match(problem)
    assert match is not None
    path = match["path"] or ""
    param = (root + path).removeprefix(".")
    missing = re.search(r"missing required field `([^`]*)`", match["problem"])
    if missing is not None:
        name = f"{param}.{missing[1]}".removeprefix(".")
        return bad_request(f"{name} is missing; it is required.", name, "missing_field")
    where = param or "The body"
    try:
        shown = _shown(body, path)
    except _MALFORMED as error:  # further on than the wrong field
        return _invalid_json(root or "The body", root or None, error, len(bytes(body)))
    return bad_request(f"{where} is {shown}: {match['problem']}.", param or None, "invalid_type")


def _invalid_json(where: str, param: str | None, error: Exception, length: int) -> ApiError:
    at = f" at its end (byte {length})" if str(error).endswith("truncated") else ""  # msgspec says no position there
    return bad_request(f"{where} is not valid JSON: {error}{at}", param, "invalid_json")


def _shown(body: bytes | msgspec.Raw, path: str) -> str:
    """The value at a path such as `.logit_bias[...]`, shortened; as far down as the path can be followed."""
    value = msgspec.json.decode(body)
    for name, index in _STEP.findall(path):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and index.isdigit() and int(index) < len(value):
            value = value[int(index)]
        else:
            break
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
