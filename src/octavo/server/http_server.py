"""uvicorn, as this process needs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.app import App

KEEP_ALIVE_S = 75
#: After the last stream has ended: for its bytes to leave, and for connections to close.
GOODBYE_S = 2
DATE_INTERVAL_S = 1.0


class HttpServer(uvicorn.Server):
    """Without uvicorn's signal handling (this process drains first), and without its ten looks a second at a flag."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self, at_once: bool = False) -> None:
        """Accept no more, and let `serve` return when open connections have closed, or at once."""
        self.should_exit, self.force_exit = True, at_once
        self._ended.set()

    async def main_loop(self) -> None:
        while not self._ended.is_set():
            await self.on_tick(0)  # the date header
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), DATE_INTERVAL_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpProtocol(HttpToolsProtocol):
    """A connection that never sends a byte does not stay open for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(KEEP_ALIVE_S, self.timeout_keep_alive_handler)


def http_server(app: App) -> HttpServer:
    """A server for sockets that exist already; its method `end` ends it."""
    return HttpServer(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GOODBYE_S,
        )
    )
