"""An engine process: spawned, killed, waited for. No event loop: the first one is spawned before there is any."""

from __future__ import annotations

import os
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
            self._process = _spawn([*command, "--generation", str(generation)], theirs.fileno())
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


def _spawn(command: Sequence[str], fd: int) -> subprocess.Popen[bytes]:
    """In a process group of its own: Ctrl-C in a terminal is for the front alone. But in the front's session: Linux
    shares a core out among sessions first (autogroups, sched(7)), and what one offers only its own threads take.
    """
    full = [*command, "--fd", str(fd)]
    if sys.version_info >= (3, 11):
        return subprocess.Popen(full, pass_fds=[fd], stdin=subprocess.DEVNULL, process_group=0)
    return subprocess.Popen(full, pass_fds=[fd], stdin=subprocess.DEVNULL, preexec_fn=os.setpgrp)
