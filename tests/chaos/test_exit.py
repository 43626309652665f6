"""The end of the server: it drains, it leaves nothing behind, and it never hangs (CASES CR-02, CR-04)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server.harness import Served, until

OTHERS = [pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP)]


def gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def open_events(served: Served, max_tokens: int) -> Iterator[str]:
    events = served.stream("/v1/completions", {"prompt": "abc", "max_tokens": max_tokens}).events()
    next(events)
    return events


@pytest.mark.parametrize("number", [signal.SIGTERM, *OTHERS])
def test_an_idle_server_ends_at_once(model: Path, number: int) -> None:
    with Served(model) as one:
        engine = one.engine_pid
        began_s = time.monotonic()
        assert one.stop(number) == 0
        assert time.monotonic() - began_s < 1.5
        assert gone(engine)
        assert "Traceback" not in one.log


@pytest.mark.parametrize("number", [signal.SIGTERM, OTHERS[0]])
def test_streams_are_finished_and_new_requests_refused(model: Path, number: int) -> None:
    with Served(model, "--step-ms", "10") as one, ThreadPoolExecutor(8) as readers:
        streams = [open_events(one, 100) for _ in range(8)]
        engine = one.engine_pid
        one.process.send_signal(number)
        until(lambda: one.get("/health").json == {"status": "draining"})
        refused = one.complete()
        assert (refused.status, refused.error["code"]) == (503, "draining")
        endings = list(readers.map(list, streams))
        assert one.process.wait(5) == 0
        for events in endings:
            assert events[-1] == "[DONE]"
            assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        assert gone(engine)


def test_a_signal_to_all_processes_is_one_to_the_front(model: Path) -> None:
    """What systemd does to stop a service, and a shell to its jobs when its terminal is closed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        with Served(model, "--step-ms", "10") as one, ThreadPoolExecutor(4) as readers:
            streams = [open_events(one, 50) for _ in range(4)]
            os.kill(one.engine_pid, number)
            one.process.send_signal(number)
            assert all(events[-1] == "[DONE]" for events in readers.map(list, streams))
            assert one.process.wait(5) == 0


def test_streams_that_take_too_long_end_with_an_error(model: Path) -> None:
    settings = {"shutdown_timeout": 0.3}
    with Served(model, "--step-ms", "10", engine={"max_model_len": 1 << 20}, server=settings) as one:
        streams = [open_events(one, 100_000) for _ in range(3)]
        with ThreadPoolExecutor(1) as client:
            whole = client.submit(one.complete, max_tokens=100_000)
            until(lambda: one.metric("queue_seats_taken") == 4)
            began_s = time.monotonic()
            one.process.send_signal(signal.SIGTERM)
            for events in streams:
                *_, last = events
                assert json.loads(last)["error"]["code"] == "shutting_down"
            assert whole.result().status == 503
        assert one.process.wait(5) == 0
        assert 0.3 < time.monotonic() - began_s < 2.5


@pytest.mark.parametrize("number", [signal.SIGTERM, OTHERS[0]])
def test_a_server_that_is_still_loading_ends_at_once(model: Path, number: int) -> None:
    with Served(model, "--load-s", "30", wait_for="resolve in") as one:
        engine = one.engine_pid
        began_s = time.monotonic()
        assert one.stop(number) == 0
        assert time.monotonic() - began_s < 1.5
        assert gone(engine)


def test_two_interrupts_end_it_whatever_runs(model: Path) -> None:
    with Served(model, "--step-ms", "10", engine={"max_model_len": 1 << 20}) as one:
        stream = one.stream("/v1/completions", {"prompt": "abc", "max_tokens": 100_000})
        next(stream.events())
        engine = one.engine_pid
        one.process.send_signal(signal.SIGINT)
        until(lambda: one.get("/health").json == {"status": "draining"})
        began_s = time.monotonic()
        assert one.stop(signal.SIGINT) == 130
        assert time.monotonic() - began_s < 1.0
        assert gone(engine)
        stream.close()


@pytest.mark.parametrize("loading", [False, True])
def test_an_engine_does_not_outlive_a_killed_front(model: Path, loading: bool) -> None:
    options = ("--load-s", "30") if loading else ()
    with Served(model, *options, wait_for="resolve in" if loading else "ready after") as one:
        engine = one.engine_pid
        if not loading:
            open_events(one, 100_000)
        one.process.kill()
        until(lambda: gone(engine), 2.0)


@pytest.mark.slow
def test_an_engine_that_is_stopped_does_not_hold_up_the_end(model: Path) -> None:
    with Served(model) as one:
        engine = one.engine_pid
        os.kill(engine, signal.SIGSTOP)
        assert one.stop(limit_s=5) == 0
        assert gone(engine)


@pytest.mark.slow
def test_an_engine_that_dies_while_draining_ends_the_drain(model: Path) -> None:
    with Served(model, "--step-ms", "10", engine={"max_model_len": 1 << 20}) as one:
        events = open_events(one, 100_000)
        one.process.send_signal(signal.SIGTERM)
        until(lambda: one.get("/health").json == {"status": "draining"})
        os.kill(one.engine_pid, signal.SIGKILL)
        *_, last = events
        assert json.loads(last)["error"]["code"] == "engine_error"
        assert one.process.wait(5) == 0


def test_cr04_a_taken_port_is_known_before_anything_is_loaded(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        began_s = time.monotonic()
        with Served(model, "--load-s", "30", server={"port": port}, wait_for="") as late:
            assert late.process.wait(5) == 1
            assert time.monotonic() - began_s < 2
            assert late.log == f"octavo: Port {port} on 127.0.0.1 is taken by another program; " + (
                "stop that, or choose another one with --port.\n"
            )


def test_cr04_two_servers_coexist_and_own_one_socket_each(model: Path) -> None:
    with Served(model) as first, Served(model) as second:
        first.is_well()
        second.is_well()
        for one in (first, second):
            assert listening(one.process.pid) == 1
            assert listening(one.engine_pid) == 0


@pytest.mark.slow
def test_cr04_a_killed_server_can_be_started_again_at_once(model: Path) -> None:
    with Served(model, engine={"max_model_len": 1 << 20}) as first:
        open_events(first, 100_000)  # a connection that the killed server leaves in TIME_WAIT
        port = first.port
        first.process.kill()
        first.process.wait(5)
    with Served(model, server={"port": port}) as second:
        assert second.port == port
        second.is_well()


@pytest.mark.parametrize("host", ["999.1.1.1", "no such host"])
def test_a_host_that_is_none(model: Path, host: str) -> None:
    with Served(model, server={"host": host}, wait_for="") as lost:
        assert lost.process.wait(5) == 1
        assert host in lost.log
        assert lost.log.count("\n") == 1


def listening(pid: int) -> int:
    """How many TCP sockets a process listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd))
        inodes |= {found[1]} if found else set()
    tables = "".join(Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for line in tables.splitlines() if ":" in line]
    return sum(row[3] == "0A" and row[9] in inodes for row in rows if len(row) > 9)
