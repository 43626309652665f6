"""A running engine process and the line to it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import cast

from octavo import ipc
from octavo.config import EngineConfig

WORKER = (sys.executable, "-m", "octavo.runtime.worker")
log = logging.getLogger("octavo.server.engine")


class EngineProcess:
    """A child process that loads the model described by `config`; spawned at once, connected once a loop runs."""

    def __init__(self, command: Sequence[str], generation: int, config: EngineConfig) -> None:
        self.generation = generation
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno()), "--generation", str(generation)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the front alone
            )
        self._socket.sendall(ipc.encode(ipc.Start(config)))
        self._socket.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def connect(self, on_message: Callable[[ipc.EngineMessage], None]) -> EngineLine:
        loop = asyncio.get_running_loop()
        _, line = await loop.create_unix_connection(lambda: EngineLine(self.generation, on_message), sock=self._socket)
        return line

    def kill(self) -> None:
        """SIGKILL; works on a stopped process too."""
        self._process.kill()

    async def reap(self) -> str:
        """Make sure that the process is gone, and say how it ended."""
        self._process.kill()
        code = await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
        if code >= 0:
            return f"exit code {code}"
        return f"signal {-code} ({signal.Signals(-code).name})"


class EngineLine(asyncio.Protocol):
    """The front's end of the socket: frames in, frames out. `closed` is done at end of file or a first bad frame."""

    def __init__(self, generation: int, on_message: Callable[[ipc.EngineMessage], None]) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._generation = generation
        self._on_message = on_message
        self._reader = ipc.FrameReader(from_engine=True)
        self._transport: asyncio.Transport | None = None

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
