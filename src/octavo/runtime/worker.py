"""The engine process: `python -m octavo.runtime.worker --fd N --generation G`.

It owns pages and kernels, and speaks octavo.ipc over the inherited socket. It has no other way out: end of file on that
socket is the end of the process, so an engine never outlives its front.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn, Protocol

import numpy as np

from octavo import ipc
from octavo.config import EngineConfig
from octavo.engine.request import Finish, PromptLogprobs, Request, StepOutputs
from octavo.process import settle, wait_for_nobody

STATS_INTERVAL_S = 0.25
BEAT_INTERVAL_S = 0.5
FETCH_INTERVAL_S = 2.0
RECEIVE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


class OnPhase(Protocol):
    def __call__(self, phase: str, seconds: float, detail: str = "") -> None:
        """A phase of the start has ended, after so many seconds."""


class Engine(Protocol):
    """What the worker drives (runtime.engine builds it)."""

    @property
    def busy(self) -> bool:
        """Some sequence waits or runs."""

    def add(self, request: Request) -> None:
        """Raises ValueError for a request that can't be served."""

    def abort(self, request_id: int, choice: int = -1) -> None: ...

    def step(self) -> StepOutputs | None:
        """One forward pass; None when it brought nobody anything."""

    def ready(self, generation: int) -> ipc.Ready: ...

    def stats(self, generation: int) -> ipc.Stats: ...


class FrontGone(Exception):
    """End of file, or a broken pipe: the front process has ended, and so must this one."""


class Channel:
    """The engine's end of the socket. `send` may be called from any thread."""

    def __init__(self, connection: socket.socket, generation: int) -> None:
        self.generation = generation
        self._socket = connection
        self._reader = ipc.FrameReader(from_engine=False)
        self._lock = threading.Lock()
        self._fetching = ""
        self._fetch_due_s = 0.0

    def send(self, message: ipc.EngineMessage) -> None:
        """Blocks while the front does not read: an engine never runs ahead of it by more than a socket buffer."""
        frame = ipc.encode(message)
        try:
            with self._lock:
                self._socket.sendall(frame)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise FrontGone from error

    def phase_ended(self, phase: str, seconds: float, detail: str = "") -> None:
        self.send(ipc.Progress(self.generation, phase, seconds, detail))

    def fetching(self, what: str, done_bytes: int, total_bytes: int) -> None:
        """So much of a model has been fetched: told at once when `what` is new, else every FETCH_INTERVAL_S."""
        now = time.monotonic()
        if what != self._fetching or now >= self._fetch_due_s:
            self._fetching, self._fetch_due_s = what, now + FETCH_INTERVAL_S
            self.send(ipc.Fetching(self.generation, what, done_bytes, total_bytes))

    def receive(self, wait: bool) -> list[ipc.FrontMessage]:
        """Messages that have arrived; with `wait` at least one byte is awaited. Raises FrontGone at end of file."""
        messages: list[ipc.FrontMessage] = []
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES, 0 if wait and not messages else socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return messages
            except ConnectionResetError as error:
                raise FrontGone from error
            if not data:
                raise FrontGone
            messages += self._reader.feed(data)


class Loop:
    """Messages in, steps, tokens out, until the front says so or is gone."""

    def __init__(self, engine: Engine, channel: Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._turns = 0
        self._busy = False
        self._stats_due_s = 0.0

    def run(self) -> None:
        """Returns after Shutdown; raises FrontGone, or whatever a step raises."""
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        engine, channel = self._engine, self._channel
        while True:
            for message in channel.receive(wait=not engine.busy):
                if isinstance(message, ipc.Shutdown):
                    return
                self._handle(message)
            self._busy = engine.busy
            if self._busy:
                outputs = engine.step()
                if outputs is not None and outputs.prompt is not None:
                    channel.send(prompt_message(outputs.prompt, channel.generation))
                if outputs is not None and len(outputs.tokens):
                    channel.send(tokens_message(outputs, channel.generation, self._turns))
                self._busy = engine.busy
            self._turns += 1
            self._report()

    def _handle(self, message: ipc.FrontMessage) -> None:
        if isinstance(message, ipc.Submit):
            try:
                self._engine.add(request_of(message))
            except ValueError as error:
                self._channel.send(refusal(message, self._channel.generation, str(error)))
        elif isinstance(message, ipc.Abort):
            for request_id in message.request_ids:
                self._engine.abort(request_id, message.choice)
        else:
            raise ipc.FrameError(f"a {type(message).__name__} message out of order")

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._stats_due_s or not self._busy:
            self._stats_due_s = now + STATS_INTERVAL_S
            self._channel.send(self._engine.stats(self._channel.generation))

    def _beat(self) -> None:
        try:
            while True:
                self._channel.send(ipc.Beat(self._channel.generation, self._turns, self._busy))
                time.sleep(BEAT_INTERVAL_S)
        except FrontGone:
            return  # the main thread finds out by itself, at its next send or receive


def request_of(message: ipc.Submit) -> Request:
    return Request(
        request_id=message.request_id,
        prompt=np.frombuffer(message.prompt, "<i4").astype(np.int32),
        params=message.params,
        seed=message.seed,
        arrival_s=time.monotonic(),
        priority=message.priority,
        salt=message.salt,
        output=np.frombuffer(message.output, "<i4").astype(np.int32),
        choice=message.choice,
    )


def tokens_message(outputs: StepOutputs, generation: int, step_id: int) -> ipc.Tokens:
    """The columns of `outputs` as little-endian bytes."""
    top_ids, top_logprobs = outputs.top_ids, outputs.top_logprobs
    return ipc.Tokens(
        generation=generation,
        step_id=step_id,
        request_ids=outputs.request_ids.astype("<i8", copy=False).tobytes(),
        choices=outputs.choices.astype("<i4", copy=False).tobytes(),
        tokens=outputs.tokens.astype("<i4", copy=False).tobytes(),
        finish=outputs.finish.astype("u1", copy=False).tobytes(),
        cached_tokens=outputs.cached_tokens.astype("<i4", copy=False).tobytes(),
        queued_s=outputs.queued_s.astype("<f4", copy=False).tobytes(),
        logprobs=b"" if outputs.logprobs is None else outputs.logprobs.astype("<f4", copy=False).tobytes(),
        top_ids=b"" if top_ids is None else top_ids.astype("<i4", copy=False).tobytes(),
        top_logprobs=b"" if top_logprobs is None else top_logprobs.astype("<f4", copy=False).tobytes(),
        top_width=0 if top_ids is None else top_ids.shape[1],
        message=outputs.message,
    )


def prompt_message(found: PromptLogprobs, generation: int) -> ipc.PromptLogprobs:
    """The columns of `found` as little-endian bytes."""
    return ipc.PromptLogprobs(
        generation=generation,
        request_ids=found.request_ids.astype("<i8", copy=False).tobytes(),
        positions=found.positions.astype("<i4", copy=False).tobytes(),
        logprobs=found.logprobs.astype("<f4", copy=False).tobytes(),
        top_ids=found.top_ids.astype("<i4", copy=False).tobytes(),
        top_logprobs=found.top_logprobs.astype("<f4", copy=False).tobytes(),
        top_width=found.top_ids.shape[1],
    )


def refusal(message: ipc.Submit, generation: int, reason: str) -> ipc.Tokens:
    """All choices of a request end with Finish.ERROR, without a token."""
    n = message.params.sequences
    return ipc.Tokens(
        generation=generation,
        step_id=-1,
        request_ids=np.full(n, message.request_id, "<i8").tobytes(),
        choices=np.arange(message.choice, message.choice + n, dtype="<i4").tobytes(),
        tokens=np.full(n, -1, "<i4").tobytes(),
        finish=np.full(n, Finish.ERROR, "u1").tobytes(),
        cached_tokens=np.zeros(n, "<i4").tobytes(),
        queued_s=np.zeros(n, "<f4").tobytes(),
        message=reason,
    )


def serve(channel: Channel, build: Callable[[EngineConfig, OnPhase], Engine]) -> int:
    """The life of an engine process; returns its exit code. `build(config, on_phase)` loads the model.

    What a build says in a ValueError, OSError or MemoryError is for the user; any other error is a bug and leaves its
    traceback on standard error.
    """
    try:
        try:
            engine = _build(channel, build)
            channel.send(engine.ready(channel.generation))
            settle()
            Loop(engine, channel).run()
        except FrontGone:
            raise
        except Exception as error:
            if not isinstance(error, _LoadError):
                traceback.print_exc()
            channel.send(ipc.Failed(channel.generation, str(error) or type(error).__name__))
            return 1
    except FrontGone:
        pass
    return 0


class _LoadError(Exception):
    """The model can't be served, for a reason that is the user's to know."""


def _build(channel: Channel, build: Callable[[EngineConfig, OnPhase], Engine]) -> Engine:
    start = channel.receive(wait=True)[0]
    if not isinstance(start, ipc.Start):
        raise ipc.FrameError(f"the first message is {type(start).__name__}, not Start")
    try:
        return build(start.config, channel.phase_ended)
    except MemoryError as error:
        raise _LoadError(f"There is too little memory to load the model: {error}") from error
    except (ValueError, OSError) as error:
        raise _LoadError(str(error)) from error


def belong_to_the_front() -> None:
    """The front ends this process, and nobody else: services are stopped by a signal to all of their processes, and a
    word on standard error must not stop one in the background of the front's terminal.

    When the front ends, Linux sends SIGKILL: works also while stopped, or deep in a load. And kernels wait for nobody.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    wait_for_nobody()


def main() -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="octavo.runtime.worker", description="The engine process; `octavo serve` starts it."
    )
    parser.add_argument("--fd", type=int, required=True, help="inherited end of the socketpair")
    parser.add_argument("--generation", type=int, required=True, help="number of this engine, counted by the front")
    arguments = parser.parse_args()
    belong_to_the_front()
    channel = Channel(socket.socket(fileno=arguments.fd), arguments.generation)

    from octavo.runtime.build import build_engine  # the kernels load only once the process is safe to leave

    code = serve(channel, lambda config, on_phase: build_engine(config, on_phase, channel.fetching))
    sys.stderr.flush()
    os._exit(code)  # kernel threads and a mapped model need no tidying, and nothing may hang the exit


if __name__ == "__main__":
    main()
