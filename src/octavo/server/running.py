"""The front process while it serves: the event loop, the HTTP server, signals, and the end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Coroutine
from typing import Any

from octavo import ipc
from octavo.config import EngineConfig, ServerConfig
from octavo.formats.errors import ModelFileError
from octavo.formats.resolve import public_name
from octavo.process import settle, wait_for_kernels
from octavo.server.admission import Admission
from octavo.server.app import App
from octavo.server.auth import Keys
from octavo.server.errors import engine_failed, unavailable
from octavo.server.front import Front
from octavo.server.http_server import http_server
from octavo.server.journal import Journal
from octavo.server.metrics import Metrics
from octavo.server.supervisor import EngineFailedError, Listener, State, Supervisor
from octavo.server.text import TextService
from octavo.text.chat import ChatTemplateError

log = logging.getLogger("octavo.server")

DRAIN_POLL_S = 0.02
FAILED, INTERRUPTED = 1, 130


def run(
    engine: EngineConfig,
    server: ServerConfig,
    keys: Keys,
    listener: socket.socket,
    supervisor: Supervisor,
    began_s: float,
) -> int:
    """Serve on `listener` until a signal or until the engine can't be kept alive. Returns the exit code."""
    wait_for_kernels()
    loop: asyncio.AbstractEventLoop
    try:
        import uvloop

        loop = uvloop.new_event_loop()
    except ImportError:  # platforms without it
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_Running(engine, server, keys, supervisor, began_s).serve(listener))
    finally:
        loop.close()


class _Running:
    def __init__(
        self, engine: EngineConfig, server: ServerConfig, keys: Keys, supervisor: Supervisor, began_s: float
    ) -> None:
        names = server.served_model_name or (public_name(engine.model),)
        metrics = Metrics(names[0], server.metrics_prefix)
        admission = Admission(server.max_queue)
        self._engine = engine
        self._config = server
        self._supervisor = supervisor
        self._began_s = began_s
        self._front = Front(
            config=server,
            keys=keys,
            model_names=names,
            also_named=() if server.served_model_name else (engine.model,),
            apply_model_defaults=engine.generation_config == "auto",
            supervisor=supervisor,
            journal=Journal(metrics, supervisor.send, admission.release),
            admission=admission,
            metrics=metrics,
            text=TextService(),
        )
        metrics.watch("queue_seats_taken", "Sequences accepted and not ended yet.", lambda: admission.taken)
        metrics.watch("queue_seats", "Most sequences that may be accepted.", lambda: admission.limit)
        self._ending: asyncio.Future[int] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._resolved = asyncio.Event()
        self._signals: dict[int, int] = {}

    async def serve(self, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        self._ending = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._on_signal, number)
        http = http_server(App(self._front))
        serving = self._start(http.serve(sockets=[listener]))
        supervising = self._start(self._supervise())
        loading = self._start(self._load_text())
        code = await self._ending
        http.end(at_once=code == INTERRUPTED)
        loading.cancel()
        if code == INTERRUPTED:
            self._supervisor.kill()
        else:
            await serving
            await self._supervisor.stop()
        supervising.cancel()
        await asyncio.gather(serving, supervising, loading, return_exceptions=True)
        self._front.text.close()
        if code == 0:
            log.info("stopped")
        return code

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Without this part there is no server: its failure ends everything, and is never only a silent task."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("the front process failed", exc_info=error)
                self._end(FAILED, f"The front process failed: {error!r}")

        task = asyncio.ensure_future(work)
        task.add_done_callback(ended)
        return task

    # The engine and the tokenizer

    async def _supervise(self) -> None:
        front = self._front
        listener = Listener(
            phase=self._engine_phase,
            ready=self._engine_ready,
            prompt=front.journal.apply_prompt,
            tokens=front.journal.apply,
            stats=front.metrics.engine_stats,
            gone=self._engine_gone,
        )
        try:
            await self._supervisor.run(listener)
        except EngineFailedError as error:
            self._end(FAILED, str(error))

    def _engine_phase(self, phase: str) -> None:
        if phase == "resolve":
            self._resolved.set()

    def _engine_ready(self, ready: ipc.Ready) -> None:
        self._front.metrics.engine_ready(ready)
        if self._supervisor.generation > 1:
            self._front.metrics.engine_restarts.add()
        self._announce()

    def _engine_gone(self, how: str) -> None:
        self._began_s = time.monotonic()
        self._front.metrics.engine_gone()
        lost = self._front.journal.fail_all(
            engine_failed("The engine died while this request was open. Send it again.")
        )
        if lost:
            log.error("%s ended with an error: %s", _requests(lost), how)

    async def _load_text(self) -> None:
        """Build the tokenizer as soon as the engine process has found (or fetched) the model's files."""
        await self._resolved.wait()
        try:
            await self._front.text.load(self._engine.model, self._config.chat_template)
        except (ModelFileError, ChatTemplateError) as error:
            self._end(FAILED, str(error))
        else:
            self._announce()

    def _announce(self) -> None:
        if self._front.state is not State.READY:
            return
        if words := self._front.sampling_in_words:
            log.info("sampling defaults: %s", words)
        took_s, names = time.monotonic() - self._began_s, ", ".join(self._front.model_names)
        log.info("ready after %.2f s; %s", took_s, names)
        settle()

    # The end

    def _on_signal(self, number: int) -> None:
        self._signals[number] = self._signals.get(number, 0) + 1
        if self._signals.get(signal.SIGINT, 0) > 1:
            log.warning("interrupted twice: ending at once")
            self._end(INTERRUPTED)
        elif self._draining is None:
            name = signal.Signals(number).name
            log.info("%s: no new requests; %d open", name, len(self._front.journal.entries))
            self._supervisor.drain()
            self._draining = self._start(self._drain())

    async def _drain(self) -> None:
        """Let open requests finish for a while; what is left then ends with an error event."""
        admission, until_s = self._front.admission, time.monotonic() + self._config.shutdown_timeout
        while admission.taken and time.monotonic() < until_s:
            await asyncio.sleep(DRAIN_POLL_S)
        lost = self._front.journal.fail_all(unavailable("The server is shutting down.", "shutting_down"))
        if lost:
            log.warning("%s still open after %g s: ended with an error", _requests(lost), self._config.shutdown_timeout)
        self._end(0)

    def _end(self, code: int, error: str = "") -> None:
        """The first reason to end is the one that counts."""
        assert self._ending is not None
        if not self._ending.done():
            if error:
                log.error("%s", error)
            self._ending.set_result(code)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
