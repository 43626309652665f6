"""Keeps one engine process alive, and knows the truth about it.

A first engine that can't load ends the server. Later a dead engine is replaced after a pause that doubles with every
death in a row; after too many of them the server gives up. An engine that is silent, or inside one step, for too long
counts as dead: it is killed first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from octavo import ipc
from octavo.config import EngineConfig
from octavo.server.engine_line import EngineLine
from octavo.server.engine_process import EngineProcess

log = logging.getLogger("octavo.server.engine")


class State(str, Enum):
    """What /health says. Only READY takes requests."""

    STARTING = "starting"
    READY = "ready"
    STUCK = "stuck"
    RESTARTING = "restarting"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits, in seconds.

    A beat comes every half second from a thread of its own, so silence means a stopped process, whatever the model's
    size. A step may take long on a large model: its limits are wider, and can be set.
    """

    silence_stuck_s: float = 3.0
    silence_dead_s: float = 10.0
    step_dead_s: float = 60.0
    check_every_s: float = 0.5
    first_backoff_s: float = 0.1
    max_backoff_s: float = 10.0
    deaths_in_a_row: int = 5
    healthy_after_s: float = 60.0

    @property
    def step_stuck_s(self) -> float:
        return self.step_dead_s / 4


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what: of an engine's start, of its messages, and that it is gone (with a sentence on how)."""

    phase: Callable[[str], None]
    ready: Callable[[ipc.Ready], None]
    prompt: Callable[[ipc.PromptLogprobs], None]
    tokens: Callable[[ipc.Tokens], None]
    stats: Callable[[ipc.Stats], None]
    gone: Callable[[str], None]


class EngineFailedError(RuntimeError):
    """The engine can't be brought up (again); one sentence for the user."""


class Supervisor:
    """Takes over the first engine process and spawns those after it.

    Attributes: state; ready (what the present engine said of itself, None while there is none).
    """

    def __init__(
        self, process: EngineProcess, config: EngineConfig, command: Sequence[str], patience: Patience
    ) -> None:
        self.state = State.STARTING
        self.ready: ipc.Ready | None = None
        self._config = config
        self._command = command
        self._patience = patience
        self._generation = process.generation
        self._process: EngineProcess | None = process
        self._line: EngineLine | None = None
        self._listener: Listener | None = None
        self._failure = ""
        self._ready_s = 0.0
        self._heard_s = 0.0
        self._turn_s = 0.0
        self._turns = -1

    @property
    def generation(self) -> int:
        return self._generation

    def send(self, message: ipc.FrontMessage) -> None:
        """To the present engine; nothing happens while there is none (its requests have been failed already)."""
        if self._line is not None:
            self._line.send(message)

    def drain(self) -> None:
        """No new requests from now on."""
        self.state = State.DRAINING

    async def run(self, listener: Listener) -> None:
        """Supervise until cancelled. Raises EngineFailedError when there is no hope."""
        self._listener = listener
        deaths = 0
        while True:
            cause = await self._live_and_die()
            lived_s = time.monotonic() - self._ready_s if self._ready_s else 0.0
            if self._generation == 1 and not self._ready_s:
                raise EngineFailedError(cause)
            deaths = 1 if lived_s > self._patience.healthy_after_s else deaths + 1
            listener.gone(cause)
            if self.state is State.DRAINING:
                return
            self.state = State.RESTARTING
            if deaths > self._patience.deaths_in_a_row:
                self.state = State.FAILED
                raise EngineFailedError(f"The engine died {deaths} times in a row; the last time: {cause}")
            pause_s = min(self._patience.first_backoff_s * 2 ** (deaths - 1), self._patience.max_backoff_s)
            log.error("%s Restarting it in %.1f s.", cause, pause_s)
            await asyncio.sleep(pause_s)
            self._generation += 1
            self._process = EngineProcess(self._command, self._generation, self._config)

    async def stop(self, grace_s: float = 2.0) -> None:
        """End the engine process: politely, then by force. Safe to call at any time, and twice."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING  # what dies from now on is not restarted
        process, self._process = self._process, None
        if process is None:
            return
        if self._line is not None and self.ready is not None:
            self._line.send(ipc.Shutdown())
            await asyncio.wait([self._line.closed], timeout=grace_s)
        await _reap(process)

    def kill(self) -> None:
        """End the engine process now."""
        if self._process is not None:
            self._process.kill()

    async def _live_and_die(self) -> str:
        """One engine, from connection to death. Returns how it ended, as a sentence."""
        process = self._process
        assert process is not None
        self._failure, self._ready_s, self._turns = "", 0.0, -1
        self._line = line = await EngineLine.open(process.socket, process.generation, self._receive)
        watch = asyncio.ensure_future(self._watch(process))
        try:
            await asyncio.wait([line.closed])
        finally:
            watch.cancel()
            self._line = None
            self.ready = None
        how = await _reap(process)
        if self._process is process:
            self._process = None
        return self._failure or f"The engine process (pid {process.pid}) died: {how}."

    def _receive(self, message: ipc.EngineMessage) -> None:
        listener = self._listener
        assert listener is not None
        self._heard_s = time.monotonic()
        if isinstance(message, ipc.Tokens):
            listener.tokens(message)
        elif isinstance(message, ipc.PromptLogprobs):
            listener.prompt(message)
        elif isinstance(message, ipc.Beat):
            if not message.busy or message.turns != self._turns:
                self._turns, self._turn_s = message.turns, self._heard_s
        elif isinstance(message, ipc.Stats):
            listener.stats(message)
        elif isinstance(message, ipc.Progress):
            log.info("engine: %s in %.2f s%s", message.phase, message.seconds, _parenthesis(message.detail))
            listener.phase(message.phase)
        elif isinstance(message, ipc.Fetching):
            done, total = message.done_bytes / 1e6, message.total_bytes / 1e6
            log.info("engine: %s, %.0f of %.0f MB", message.what, done, total)
        elif isinstance(message, ipc.Failed):
            self._failure = message.message
        else:
            self.ready = message
            self._ready_s = self._turn_s = self._heard_s
            if self.state is not State.DRAINING:
                self.state = State.READY
            listener.ready(message)

    async def _watch(self, process: EngineProcess) -> None:
        """Find out that the engine is stopped or stuck; kill it when that has lasted too long."""
        patience = self._patience
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(patience.check_every_s)
            now_s = time.monotonic()
            late_s = now_s - looked_s - patience.check_every_s
            looked_s = now_s
            if late_s > 1.0:  # it was this process that stood still: the engine's messages are still to be read
                self._heard_s += late_s
                self._turn_s += late_s
                continue
            if self.ready is None:
                continue
            silent_s, in_step_s = now_s - self._heard_s, now_s - self._turn_s
            stuck = silent_s > patience.silence_stuck_s or in_step_s > patience.step_stuck_s
            if stuck and self.state is State.READY:
                log.warning("The engine is stuck: silent for %.1f s, in one step for %.1f s.", silent_s, in_step_s)
                self.state = State.STUCK
            elif not stuck and self.state is State.STUCK:
                log.warning("The engine goes on.")
                self.state = State.READY
            if silent_s > patience.silence_dead_s:
                self._failure = (
                    f"The engine process (pid {process.pid}) was silent for {silent_s:.0f} s and was killed."
                )
            elif in_step_s > patience.step_dead_s:
                self._failure = (
                    f"The engine process (pid {process.pid}) hung in a step for {in_step_s:.0f} s and was killed."
                )
            else:
                continue
            process.kill()
            return


async def _reap(process: EngineProcess) -> str:
    """Make sure that the process is gone, without waiting for it on the loop; says how it ended."""
    process.kill()
    return await asyncio.get_running_loop().run_in_executor(None, process.wait)


def _parenthesis(detail: str) -> str:
    return f" ({detail})" if detail else ""
