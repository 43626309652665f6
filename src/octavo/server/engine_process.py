"""An engine process: spawned, killed, waited for. No event loop: the first one is spawned before there is any."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from octavo import ipc
from octavo.config import EngineConfig

WORKER = (sys.executable, "-m", "octavo.runtime.worker")


class EngineProcess:
    """A child process that loads the model described by `config`.

    Attributes: generation; socket, the front's end of the line to it, non-blocking.
    """

    def __init__(self, command: Sequence[str], generation: int, config: EngineConfig) -> None:
        self.generation = generation
        self.socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno()), "--generation", str(generation)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the front alone
            )
        self.socket.sendall(ipc.encode(ipc.Start(config)))
        self.socket.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL; works on a stopped process too."""
        self._process.kill()

    def wait(self) -> str:
        """Block until the process is gone; says how it ended."""
        code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
