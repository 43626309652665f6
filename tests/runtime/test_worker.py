"""The engine process on the wire, with the fake engine inside."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import ipc
from octavo.config import EngineConfig
from octavo.engine.params import SamplingParams
from octavo.engine.request import Finish
from octavo.runtime import worker

FAKE_ENGINE = Path(__file__).parent.parent / "server" / "fake_engine.py"


class Front:
    """The front's end of the socketpair, blocking."""

    def __init__(self, *options: str) -> None:
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, str(FAKE_ENGINE), "--fd", str(theirs.fileno()), "--generation", "7", *options]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
        theirs.close()
        self.socket.settimeout(10)
        self._reader = ipc.FrameReader(from_engine=True)
        self._inbox: list[Any] = []

    def send(self, message: ipc.FrontMessage) -> None:
        self.socket.sendall(ipc.encode(message))

    def until(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """Messages up to the first wanted one, which is the last of them."""
        seen = []
        while True:
            while self._inbox:
                seen.append(self._inbox.pop(0))
                if wanted(seen[-1]):
                    return seen
            data = self.socket.recv(1 << 16)
            assert data, f"end of file after {seen}"
            self._inbox += self._reader.feed(data)

    def start(self, **config: Any) -> ipc.Ready:
        self.send(ipc.Start(EngineConfig(**config)))
        return self.until(lambda message: isinstance(message, ipc.Ready))[-1]


@pytest.fixture
def front() -> Iterator[Front]:
    one = Front("--step-ms", "1")
    yield one
    one.socket.close()
    one.process.wait(5)


def submit(request_id: int, prompt: list[int], seed: int = 1, **params: Any) -> ipc.Submit:
    return ipc.Submit(request_id, array("i", prompt).tobytes(), SamplingParams(**params), seed, 0, ())


def ends(message: Any) -> bool:
    return isinstance(message, ipc.Tokens) and any(message.finish)


def test_tokens_come_in_columns_one_message_a_step(front: Front) -> None:
    assert front.start().generation == 7
    front.send(submit(1, [5, 6], n=2, max_tokens=3))
    steps = [m for m in front.until(ends) if isinstance(m, ipc.Tokens)]
    assert [array("i", step.tokens).tolist() for step in steps] == [[5, 5], [6, 6], [5, 5]]
    assert array("q", steps[-1].request_ids).tolist() == [1, 1]
    assert array("i", steps[-1].choices).tolist() == [0, 1]
    assert list(steps[-1].finish) == [Finish.LENGTH, Finish.LENGTH]


def test_abort_takes_effect_within_one_step(front: Front) -> None:
    front.start()
    front.send(submit(1, [5], max_tokens=100_000))
    front.until(lambda m: isinstance(m, ipc.Tokens))
    front.send(ipc.Abort([1]))
    front.until(lambda m: isinstance(m, ipc.Stats) and m.aborted == 1 and m.running == 0)
    front.send(submit(2, [9], max_tokens=1))
    after = [m for m in front.until(ends) if isinstance(m, ipc.Tokens)]
    assert [array("q", m.request_ids).tolist() for m in after] == [[2]]


def test_a_request_the_engine_refuses_ends_alone(front: Front) -> None:
    front.start()
    front.send(submit(1, [5], seed=-108, n=2))
    refused = front.until(ends)[-1]
    assert list(refused.finish) == [Finish.ERROR] * 2
    assert "refuses" in refused.message
    front.send(submit(2, [9], max_tokens=1))
    assert array("i", front.until(ends)[-1].tokens).tolist() == [9]


def test_a_failed_step_ends_the_process_with_a_sentence(front: Front) -> None:
    front.start()
    front.send(submit(1, [5], seed=-103))
    assert "on purpose" in front.until(lambda m: isinstance(m, ipc.Failed))[-1].message
    assert front.process.wait(5) == 1


def test_beats_say_that_a_step_hangs(front: Front) -> None:
    front.start()
    front.send(submit(1, [5], seed=-104))
    front.until(lambda m: isinstance(m, ipc.Tokens))

    def beat() -> ipc.Beat:
        return front.until(lambda m: isinstance(m, ipc.Beat))[-1]

    beat()
    first, second = beat(), beat()
    assert (second.busy, second.turns) == (True, first.turns)
    front.process.kill()


@pytest.mark.parametrize("busy", [False, True])
def test_end_of_file_ends_the_process(front: Front, busy: bool) -> None:
    front.start()
    if busy:
        front.send(submit(1, [5], max_tokens=1_000_000))
        front.until(lambda m: isinstance(m, ipc.Tokens))
    front.socket.close()
    assert front.process.wait(5) == 0


def test_shutdown_ends_the_process(front: Front) -> None:
    front.start()
    front.send(ipc.Shutdown())
    assert front.process.wait(5) == 0


def test_garbage_ends_the_process_with_a_sentence(front: Front) -> None:
    front.start()
    front.socket.sendall(b"\x02\x00\x00\x00\x80\x04")  # a pickle, of all things
    assert "does not decode" in front.until(lambda m: isinstance(m, ipc.Failed))[-1].message
    assert front.process.wait(5) == 1


def test_an_oversized_frame_is_refused_by_its_length(front: Front) -> None:
    front.start()
    front.socket.sendall(b"\xff\xff\xff\xff")
    assert "above the limit" in front.until(lambda m: isinstance(m, ipc.Failed))[-1].message


def test_a_long_fetch_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    clock = [100.0]
    monkeypatch.setattr("octavo.runtime.worker.time.monotonic", lambda: clock[0])
    channel = worker.Channel(theirs, 3)
    for what, done in [*(("downloading m", n) for n in range(50)), ("unpacking m", 50)]:
        channel.fetching(what, done, 100)
        clock[0] += 0.2
    told = ipc.FrameReader(from_engine=True).feed(ours.recv(1 << 16))
    assert [(one.what, one.done_bytes) for one in told] == [
        *(("downloading m", n) for n in (0, 10, 20, 30, 40)),
        ("unpacking m", 50),
    ]
    ours.close()
    theirs.close()


PARENT = f"""
import socket, subprocess, sys, time
from octavo import ipc
from octavo.config import EngineConfig
ours, theirs = socket.socketpair()
command = [sys.executable, {str(FAKE_ENGINE)!r}, "--fd", str(theirs.fileno()), "--generation", "1"]
engine = subprocess.Popen(command, pass_fds=[theirs.fileno()])
ours.sendall(ipc.encode(ipc.Start(EngineConfig())))
ours.recv(1)
print(engine.pid, flush=True)
time.sleep(60)
"""


def test_a_front_that_dies_takes_even_a_stopped_engine_along() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        os.kill(engine, signal.SIGSTOP)
        parent.kill()
    status = Path(f"/proc/{engine}/status")
    end = time.monotonic() + 5
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < end, "the engine outlived its front"
        time.sleep(0.01)
