"""The front's end of the socket to an engine: frames in, frames out."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from octavo import ipc

log = logging.getLogger("octavo.server.engine")


class EngineLine(asyncio.Protocol):
    """Messages of one engine. `closed` is done at end of file, or at the first frame that is none."""

    def __init__(self, generation: int, on_message: Callable[[ipc.EngineMessage], None]) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._generation = generation
        self._on_message = on_message
        self._reader = ipc.FrameReader(from_engine=True)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, sock: socket.socket, generation: int, on_message: Callable[[ipc.EngineMessage], None]
    ) -> EngineLine:
        """`on_message` is called with each message, except those that carry another generation's number."""
        loop = asyncio.get_running_loop()
        _, line = await loop.create_unix_connection(lambda: cls(generation, on_message), sock=sock)
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour only

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                if message.generation == self._generation:
                    self._on_message(message)
        except ipc.FrameError as error:
            log.error("The engine sent what is no message: %s", error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, message: ipc.FrontMessage) -> None:
        """Nothing happens once the line is closed: whoever waits for an answer is told of the end in another way."""
        if self._transport is not None:
            self._transport.write(ipc.encode(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
