"""The engine dies, hangs, is stopped, or fails (CASES CR-01, ER-01): clients hear of it, and it comes back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server import fake_engine
from tests.server.harness import Served, Stream, until

LONG = 100_000


@pytest.fixture
def served(model: Path) -> Iterator[Served]:
    with Served(model, "--step-ms", "5", engine={"max_model_len": 1 << 20}) as one:
        yield one
        assert one.stop() == 0, one.log


def test_the_front_waits_for_kernels_and_no_engine_does(served: Served) -> None:
    def check() -> None:
        front, engine = served.process.pid, served.engine_pid
        assert os.sched_getscheduler(front) == os.SCHED_BATCH
        assert os.sched_getscheduler(engine) == os.SCHED_OTHER  # restarted ones, too, which the front spawns as it is
        assert os.getpgid(engine) != os.getpgid(front)  # Ctrl-C
        assert os.getsid(engine) == os.getsid(front)  # one share of a core for both

    check()
    kill(served)
    until(lambda: status(served) == "restarting")
    until(lambda: status(served) == "ready")
    check()


def open_stream(served: Served) -> tuple[Stream, Iterator[str]]:
    stream = served.stream("/v1/completions", {"prompt": "abc", "max_tokens": LONG})
    events = stream.events()
    for _ in range(3):
        next(events)
    return stream, events


def ends_with_error(events: Iterator[str], within_s: float = 5.0) -> str:
    """Exactly one error, as the last event; no finish reason and no [DONE]. Returns its message."""
    began_s = time.monotonic()
    *chunks, last = events
    assert time.monotonic() - began_s < within_s
    for chunk in chunks:
        assert json.loads(chunk)["choices"][0]["finish_reason"] is None
    error = json.loads(last)["error"]
    assert error["type"] == "server_error"
    return str(error["message"])


def status(served: Served) -> str:
    answer = served.get("/health")
    assert (answer.status == 200) == (answer.json["status"] == "ready")
    assert served.get("/ping").status == 200
    return str(answer.json["status"])


def kill(served: Served) -> None:
    os.kill(served.engine_pid, signal.SIGKILL)


def stop(served: Served) -> None:
    os.kill(served.engine_pid, signal.SIGSTOP)


def by_hook(seed: int) -> Callable[[Served], None]:
    """A request that makes the fake engine do it to itself."""

    def ask(served: Served) -> None:
        stream = served.stream("/v1/completions", {"prompt": "abc", "max_tokens": LONG, "seed": seed})
        ends_with_error(stream.events())
        stream.close()

    return ask


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (kill, "ready"),
        (stop, "stuck"),
        pytest.param(by_hook(fake_engine.DIE), "ready", marks=pytest.mark.slow),
        pytest.param(by_hook(fake_engine.RAISE), "ready", marks=pytest.mark.slow),
        (by_hook(fake_engine.HANG), "stuck"),
        pytest.param(by_hook(fake_engine.STOP), "stuck", marks=pytest.mark.slow),
    ],
    ids=["kill", "stop", "die in a step", "raise in a step", "hang in a step", "stop in a step"],
)
def test_cr01_whatever_happens_nobody_hangs(served: Served, fault: Callable[[Served], None], says: str) -> None:
    stream, events = open_stream(served)
    old = served.engine_pid
    seen = {status(served)}
    with ThreadPoolExecutor(2) as others:
        whole = others.submit(served.complete, max_tokens=LONG)
        until(lambda: served.metric("queue_seats_taken") == 2)
        broken = others.submit(fault, served)
        while not whole.done():
            seen.add(status(served))
        error = ends_with_error(events)
        assert whole.result().status == 500
        assert whole.result().error["message"] == error
        assert whole.result().error["code"] == "engine_error"
        broken.result()
    assert says in seen
    assert seen <= {"ready", "stuck", "restarting"}
    served.wait_for_log("ready after", count=2)
    assert status(served) == "ready"
    assert served.engine_pid != old
    served.is_well()
    assert served.metric("queue_seats_taken") == 0
    assert served.metric("engine_restarts_total") == 1
    stream.close()


def test_a_stopped_engine_that_goes_on_in_time_loses_nothing(served: Served) -> None:
    stream, events = open_stream(served)
    pid = served.engine_pid
    os.kill(pid, signal.SIGSTOP)
    until(lambda: status(served) == "stuck")
    answer = served.complete()
    assert (answer.status, answer.error["code"]) == (503, "stuck")
    assert int(answer.headers["retry-after"]) >= 1
    os.kill(pid, signal.SIGCONT)
    until(lambda: status(served) == "ready")
    assert json.loads(next(events))["choices"][0]["text"]
    stream.close()
    assert served.engine_pid == pid


def test_er01_a_failure_before_the_first_token_has_a_status(served: Served) -> None:
    for seed, message in ((fake_engine.ERROR_FIRST, "go on"), (fake_engine.REFUSE, "refuses")):
        answer = served.complete(seed=seed, stream=True)
        assert answer.status == 500
        assert answer.headers["content-type"] == "application/json"
        assert message in answer.error["message"]
    served.is_well()
    assert served.metric("engine_restarts_total") == 0


def test_er01_a_failure_of_one_request_leaves_the_others_alone(served: Served) -> None:
    stream, events = open_stream(served)
    for fields in ({"seed": fake_engine.ERROR}, {"seed": fake_engine.ERROR, "n": 3, "prompt": ["ab", "cd"]}):
        body = {"prompt": "abc", "max_tokens": LONG, **fields}
        failing = served.stream("/v1/completions", body)
        assert "go on" in ends_with_error(failing.events(), within_s=1.0)
        failing.close()
        assert served.post("/v1/completions", body).status == 500
    assert json.loads(next(events))["choices"][0]["text"]
    stream.close()
    until(lambda: served.metric("queue_seats_taken") == 0)
    served.wait_for_log("finish=error", count=2)
    assert served.metric("engine_restarts_total") == 0


@pytest.mark.slow
def test_requests_are_refused_while_the_engine_restarts(model: Path) -> None:
    with Served(model, "--load-s", "0.5") as slow:
        kill(slow)
        until(lambda: status(slow) == "restarting")
        answer = slow.complete()
        assert (answer.status, answer.error["code"]) == (503, "restarting")
        assert slow.metric("requests_refused_total", status="503") == 1
        slow.wait_for_log("ready after", count=2)
        slow.is_well()


def test_the_server_gives_up_after_some_deaths_in_a_row(model: Path) -> None:
    with Served(model, "--die-from", "2") as doomed:
        kill(doomed)
        assert doomed.process.wait(10) == 1
        assert doomed.log.count("Restarting it") == 3
        assert "died 4 times in a row" in doomed.log


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(["--fail-load", "the file is no model"], "the file is no model"), (["--die-from", "1"], "SIGKILL")],
)
def test_a_first_engine_that_can_not_load_ends_the_server(model: Path, options: list[str], sentence: str) -> None:
    with Served(model, *options, wait_for="") as doomed:
        assert doomed.process.wait(10) == 1
        errors = [line for line in doomed.log.splitlines() if " ERROR " in line]
        assert len(errors) == 1
        assert sentence in errors[0]


def test_a_model_without_a_tokenizer_ends_the_server(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF but not really")
    with Served(file, wait_for="") as doomed:
        assert doomed.process.wait(10) == 1
        assert str(file) in doomed.log
        assert "Traceback" not in doomed.log
