"""Servers as child processes: started, waited for, asked for metrics, stopped. One at a time, on a free port."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from octavo.bench.report import write_json

STOP_TIMEOUT_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """`with Server(...) as server:` runs `command` until the block ends; entering waits for a 200 of `ready_path`.

    ready_s: from just before the process was started to that answer. environment: variables beside this process's own.
    The server and the processes that it starts form a group, which ends as a whole.
    """

    name: str
    command: Sequence[str]
    port: int
    ready_path: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 180.0
    ready_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def child_pid(self) -> int:
        """Its first child process: of an Octavo server, the engine."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def cpu_s(self) -> float:
        """Processor time of the process so far, without its children."""
        return (
            sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat")) / 1e9
        )

    def __enter__(self) -> Server:
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **self.environment},
            preexec_fn=os.setpgrp,  # not a new session: schedulers may weigh a session as a whole
        )
        try:
            while self.status(self.ready_path) != 200:
                if self._process.poll() is not None or time.perf_counter() - begin > self.ready_timeout_s:
                    raise RuntimeError(f"{self.name} did not get ready; it said:\n{self.log()[-3000:]}")
                time.sleep(0.005)
        except BaseException:
            self._stop()
            raise
        self.ready_s = time.perf_counter() - begin
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def status(self, path: str) -> int:
        """Status of a GET; 0 while nothing answers."""
        try:
            return self._get(path)[0]
        except (OSError, http.client.HTTPException):
            return 0

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name without prefix and labels."""
        samples = {}
        for line in self._get("/metrics")[1].decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name.partition("{")[0].rpartition(":")[2]] = float(value)
        return samples

    @property
    def pid(self) -> int:
        """The server's own process, which leads its group. Raises RuntimeError while none runs."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    def log(self) -> str:
        """What the process has printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what did not stop, children that were left behind included
        process.wait()


def octavo(*flags: str) -> Server:
    """This repository's server, in this Python's environment."""
    port = free_port()
    command = [sys.executable, "-m", "octavo.cli.main", "serve", "--port", str(port), "--log-level", "warning", *flags]
    return Server("Octavo", command, port)


def write_result(path: Path | None, content: dict[str, Any]) -> None:
    """Write JSON to `path`, if one was asked for."""
    if path is not None:
        write_json(path, content)
