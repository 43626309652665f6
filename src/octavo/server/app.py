"""The ASGI application: whom to let in, which route, one log line, and an OpenAI error for everything that fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from octavo.server.errors import ApiError, not_found
from octavo.server.exchange import ClientGone, Exchange, Receive, Scope, Send
from octavo.server.front import Front
from octavo.server.routes import chat, completions, models, status, tokens

Handler = Callable[[Front, Exchange], Awaitable[None]]
log = logging.getLogger("octavo.server")

#: What is open without a key, by exact path: load balancers have none.
OPEN_PATHS = frozenset({"/health", "/ping", "/livez"})

ROUTES: dict[str, tuple[str, Handler]] = {
    "/v1/completions": ("POST", completions.completions),
    "/v1/chat/completions": ("POST", chat.chat),
    "/v1/models": ("GET", models.models),
    "/tokenize": ("POST", tokens.tokenize),
    "/detokenize": ("POST", tokens.detokenize),
    "/health": ("GET", status.health),
    "/ping": ("GET", status.live),
    "/livez": ("GET", status.live),
    "/metrics": ("GET", status.metrics),
    "/version": ("GET", status.version),
    "/": ("GET", status.root),
}
_MODEL_PREFIX = "/v1/models/"
#: Polled by machines; their log lines are for debugging.
_QUIET_PATHS = OPEN_PATHS | {"/metrics"}
CLIENT_GONE_STATUS = 499


class App:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._root = front.config.root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer(exchange)
        except ClientGone:
            exchange.status = CLIENT_GONE_STATUS
        except ApiError as error:
            await self._fail(exchange, error)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            message = f"The server failed on this request; its log has more under {exchange.request_id}."
            await self._fail(exchange, ApiError(500, message, type="server_error", code="internal_error"))
        self._log(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        path = exchange.path
        if self._root and path.startswith(self._root + "/"):
            path = path[len(self._root) :]
        if path not in OPEN_PATHS:
            exchange.tenant = self._front.keys.tenant(exchange.headers.get(b"authorization"))
        route = ROUTES.get(path)
        if route is not None:
            method, handler = route
            _check_method(exchange.method, method)
            await handler(self._front, exchange)
        elif path.startswith(_MODEL_PREFIX):
            _check_method(exchange.method, "GET")
            await models.model(self._front, exchange, path[len(_MODEL_PREFIX) :])
        else:
            raise not_found(path[:200], "/v1" + path if "/v1" + path in ROUTES else None)

    async def _fail(self, exchange: Exchange, error: ApiError) -> None:
        exchange.note = f"error={error.detail.code or error.detail.type}"
        if error.status in (429, 503):
            self._front.metrics.refused.add(value=str(error.status))
        if exchange.started:
            log.error("request %s: %s", exchange.request_id, error)
            return
        await exchange.respond_error(error)

    def _log(self, exchange: Exchange) -> None:
        level = logging.DEBUG if exchange.path in _QUIET_PATHS else logging.INFO
        log.log(
            level,
            "%s %s %.200r %d %.1fms id=%s %s",
            exchange.client,
            exchange.method,
            exchange.path,
            exchange.status,
            (time.monotonic() - exchange.began_s) * 1e3,
            exchange.request_id,
            exchange.note,
        )


def _check_method(given: str, wanted: str) -> None:
    if given != wanted and not (given == "HEAD" and wanted == "GET"):
        raise ApiError(
            405,
            f"The method is {given[:20]}; this route takes {wanted}.",
            code="method_not_allowed",
            headers=((b"allow", wanted.encode()),),
        )
