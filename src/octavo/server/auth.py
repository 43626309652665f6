"""Who may use the API: deny by default, several keys, compared in constant time, never shown."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from octavo.config import ConfigError, ServerConfig
from octavo.server.errors import ApiError

MAX_KEY_BYTES = 4096


class Keys:
    """The keys that open the API. Without any key everybody may use it.

    `tenant(header)` names the owner of a key without telling it: requests of different keys must not share cached
    pages, or the time to the first token would tell one tenant what another one asked.
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = [key.encode() for key in dict.fromkeys(keys)]
        self._tenants = [hashlib.sha256(b"octavo tenant\0" + key).hexdigest()[:16] for key in self._keys]

    def __len__(self) -> int:
        return len(self._keys)

    def tenant(self, authorization: bytes | None) -> str:
        """The tenant of an Authorization header, "" when one key or none is configured. Raises ApiError 401."""
        if not self._keys:
            return ""
        scheme, _, given = (authorization or b"").partition(b" ")
        given = given.strip()
        if scheme.lower() != b"bearer" or not given:
            raise _refused("You did not send an API key. Send it as `Authorization: Bearer KEY`.")
        found = ""
        for key, tenant in zip(self._keys, self._tenants, strict=True):  # all of them: the time tells nothing
            if hmac.compare_digest(key, given):
                found = tenant
        if not found:
            raise _refused("The API key is not one of this server's keys.")
        return found if len(self._keys) > 1 else ""


def load_keys(config: ServerConfig) -> Keys:
    """Keys from the flag or OCTAVO_API_KEY, and from a file with one key a line. Raises ConfigError."""
    keys = list(config.api_key)
    if config.api_key_file is not None:
        try:
            text = Path(config.api_key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file {config.api_key_file} can't be read: {error}") from error
        lines = [line.strip() for line in text.splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ConfigError(f"--api-key-file {config.api_key_file} holds no key; put one on a line of its own.")
        keys += found
    for key in keys:
        if not key.strip() or key != key.strip():
            raise ConfigError("An API key is empty or begins or ends with a space; headers can't carry such a key.")
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ConfigError(f"An API key has more than {MAX_KEY_BYTES} bytes.")
    return Keys(tuple(keys))


def _refused(message: str) -> ApiError:
    return ApiError(
        401,
        message,
        type="authentication_error",
        code="invalid_api_key",
        headers=((b"www-authenticate", b'Bearer realm="octavo"'),),
    )
