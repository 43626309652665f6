"""One HTTP request and its response, over raw ASGI messages: no framework between the bytes and the socket."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from octavo.server.errors import ApiError, bad_request

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: So much of a body above the limit is let in and dropped (by uvicorn, after the answer): many clients listen only once
#: they have sent all of it. For more the connection is closed.
MAX_DISCARDED_BYTES = 64 << 20
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client closed the connection; nobody is there to answer."""


class Exchange:
    """A request being answered.

    Attributes: request_id (the client's x-request-id if it is a plain word of at most 64 characters, else a fresh one),
    tenant (whose key was used; "" without keys), status and started once a response has begun, note (what the log line
    says beyond method, path, status and duration).
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.client: str = scope["client"][0] if scope.get("client") else "-"
        self.tenant = ""
        self.status = 0
        self.note = ""
        self.began_s = time.monotonic()
        self._receive = receive
        self._send = send
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)

    @property
    def started(self) -> bool:
        return self.status != 0

    async def body(self, limit: int) -> bytes:
        """The whole request body. Raises ApiError 413 above `limit` bytes, before reading what is too much."""
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(int(declared), limit)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(size, limit)
            more = message.get("more_body", False)
        return b"".join(parts)

    async def json_body(self, limit: int) -> bytes:
        """The body of a request that must be JSON; browsers can't send that type across sites without asking first."""
        kind = self.headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
        if kind != b"application/json":
            shown = kind.decode("latin-1")
            raise ApiError(
                415,
                f"The content-type is {shown!r}; it must be application/json. With curl, add "
                "-H 'content-type: application/json'.",
                code="not_json",
            )
        body = await self.body(limit)
        if not body:
            raise bad_request("The request has no body; it must be a JSON object.", code="empty_body")
        return body

    async def disconnected(self) -> None:
        """Returns when the client is gone. Only after the body has been read, and by one caller."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        await self._start(status, [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def respond_json(self, message: object, status: int = 200) -> None:
        await self.respond(status, msgspec.json.encode(message))

    async def respond_error(self, error: ApiError) -> None:
        extra = ((b"connection", b"close"),) if error.close else ()
        await self.respond(error.status, error.body(), headers=error.headers + extra)

    async def start_stream(self) -> None:
        await self._start(200, _STREAM_HEADERS)

    async def write(self, data: bytes) -> None:
        """Waits while the client reads more slowly than tokens come."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class CancelWhenGone:
    """`async with`: the enclosed work is cancelled, and ClientGone raised instead, when the client disconnects.

    Streams and whole answers alike: a request must not run on for nobody.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._gone = False

    async def __aenter__(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        self._watch = asyncio.ensure_future(self._exchange.disconnected())

        def cancel(watch: asyncio.Future[None]) -> None:
            if not watch.cancelled():
                self._gone = True
                worker.cancel()

        self._watch.add_done_callback(cancel)
        self._cancel = cancel

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._watch.remove_done_callback(self._cancel)
        self._watch.cancel()
        if self._gone and kind is asyncio.CancelledError:
            raise ClientGone from None


def _too_large(size: int, limit: int) -> ApiError:
    return ApiError(
        413,
        f"The request body has {size} bytes or more; the limit is {limit} (--max-body-bytes).",
        code="body_too_large",
        close=size > limit + MAX_DISCARDED_BYTES,
    )
