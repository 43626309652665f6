"""A small HTTP/1.1 client for load generation: kept-alive connections, streamed bodies, little work per chunk.

It shares the machine with the server under test, so it must be cheap: httptools parses, and nothing is copied twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

MAX_ERROR_BODY_BYTES = 64 << 10
MAX_BODY_BYTES = 64 << 20

OnBody = Callable[[bytes], None]


class HttpError(OSError):
    """The exchange failed below HTTP: refused, cut off, not HTTP."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server is: scheme, host, port and the path its API begins under (no slash at the end)."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Origin:
        """`http://host:8000`, with or without `/v1`. Raises ValueError."""
        parts = urlsplit(url if "://" in url else "http://" + url)
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"the base URL {url} is not valid: {error}.") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the base URL is {url}; it must look like http://127.0.0.1:8000.")
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[bytes] | None = None
        self._parser: Any = None
        self._on_body: OnBody | None = None
        self._body = bytearray()
        self.status = 0
        self.answered = False

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, on_body: OnBody | None) -> bytes:
        """Send `request`; pieces of a 200's body go to `on_body`, any other body is returned; sets `status`.

        `answered` is True once the first byte has come back. Raises HttpError.
        """
        self.status, self.answered = 0, False
        if self._transport is None:
            raise HttpError("the connection is closed.")
        self._on_body = on_body
        self._body.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        except BaseException:
            self.close()  # what is still on its way belongs to this exchange
            raise
        finally:
            self._done = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _finish(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is not None:
            self._done.set_exception(error)
        else:
            self._done.set_result(bytes(self._body))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._finish(HttpError(f"the answer cannot be used: {error.__context__ or error}"))
        except httptools.HttpParserError as error:
            self._finish(HttpError(f"the answer is not HTTP: {error}."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._finish(HttpError(f"the connection was cut before the answer was complete{f' ({exc})' if exc else ''}."))

    # httptools

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.status == 200 and self._on_body is not None:
            self._on_body(body)
        elif len(self._body) < (MAX_BODY_BYTES if self.status == 200 else MAX_ERROR_BODY_BYTES):
            self._body += body

    def on_message_complete(self) -> None:
        if self.status < 200:
            return
        if not self._parser.should_keep_alive():
            self._transport, transport = None, self._transport
            if transport is not None:
                transport.close()
        self._finish(None)


class Client:
    """Kept-alive connections to one origin."""

    def __init__(self, origin: Origin, api_key: str | None = None) -> None:
        self._origin = origin
        self._tls = ssl.create_default_context() if origin.scheme == "https" else None
        self._idle: list[Connection] = []
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        head = f"Host: {host}:{origin.port}\r\nAccept: text/event-stream, application/json\r\n"
        if api_key:
            head += f"Authorization: Bearer {api_key}\r\n"
        self._head = head.encode()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        return await self._exchange(b"GET", path, b"", None)

    async def post(self, path: str, body: bytes, on_body: OnBody | None = None) -> tuple[int, bytes]:
        """Status and body; with `on_body` the body of a 200 goes there in pieces. Raises HttpError."""
        return await self._exchange(b"POST", path, body, on_body)

    def close(self) -> None:
        """Close the idle connections; busy ones close when their exchange is cancelled."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, method: bytes, path: str, body: bytes, on_body: OnBody | None) -> tuple[int, bytes]:
        request = method + b" " + (self._origin.path + path).encode() + b" HTTP/1.1\r\n" + self._head
        if method == b"POST":
            request += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        request += b"\r\n" + body
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._on(connection, request, on_body)
            except HttpError:
                # A server may close an idle connection at any moment, also while this request is on its way to it.
                if connection.answered:
                    raise
        return await self._on(await self._connect(), request, on_body)

    async def _on(self, connection: Connection, request: bytes, on_body: OnBody | None) -> tuple[int, bytes]:
        answer = await connection.exchange(request, on_body)
        if connection.open:
            self._idle.append(connection)
        return connection.status, answer

    async def _connect(self) -> Connection:
        where = self._origin
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                Connection, where.host, where.port, ssl=self._tls
            )
        except OSError as error:
            reason = error.strerror or error
            raise HttpError(f"no connection to {where.host} port {where.port}: {reason}.") from error
        return connection
