"""`octavo bench serve` as a whole, against a server whose answers are chosen."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.bench.fake_server import Exchange, good_answer, serving

from octavo.bench.http import HttpError
from octavo.bench.serve import first_model
from octavo.cli import main as cli

TINY = ["--dataset", "random", "--input-len", "8", "--output-len", "3", "--num-warmups", "1"]


@pytest.fixture(autouse=True)
def _model(default_model: object) -> None:
    """Counting tokens needs the default model's tokenizer."""


def test_prints_figures_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    with serving(good_answer) as server:
        arguments = [*TINY, "--base-url", server.url, "--num-prompts", "5", "--goodput", "ttft:60000", "--salt", "7"]
        assert cli.main(["bench", "serve", *arguments, "--json", str(file)]) == 0
        assert len(server.bodies) == 6
        assert {len(body["prompt"].split()) for body in server.bodies} == {9}
    printed = capsys.readouterr().out
    assert "5 complete, 0 failed" in printed
    assert "within TTFT 60000 ms" in printed
    content = json.loads(file.read_text())
    assert content["figures"]["complete"] is True
    assert content["figures"]["output_tokens"] == 15
    assert content["workload"]["salt"] == 7
    assert content["load"]["request_rate"] is None


def test_a_sharegpt_file(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "tell me more " * 10}, {"from": "gpt", "value": "well then " * 10}]
    data = tmp_path / "data.json"
    data.write_text(json.dumps([{"conversations": turns}] * 3)[:-1])
    with serving(good_answer) as server:
        arguments = ["--dataset", str(data), "--num-prompts", "3", "--num-warmups", "0", "--base-url", server.url]
        assert cli.main(["bench", "serve", *arguments]) == 0
        assert [body["prompt"] for body in server.bodies] == [turns[0]["value"]] * 3
        assert 16 <= server.bodies[0]["max_tokens"] <= 256


def test_failures_show_in_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.send_json(500, {"error": {"message": "no"}})

    with serving(refuse) as server:
        arguments = [*TINY, "--base-url", server.url, "--num-prompts", "2", "--num-warmups", "0"]
        assert cli.main(["bench", "serve", *arguments]) == 1
    assert "2 x error: status 500: no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["serve", "--num-prompts", "0"], 2, "--num-prompts is '0'; it must be an integer of at least 1"),
        (["serve", "--request-rate", "fast"], 2, "--request-rate is 'fast'; it must be a number"),
        (["serve", "--goodput", "itl:3"], 2, "must be ttft:MS, tpot:MS or e2e:MS"),
        (["serve", *TINY, "--base-url", "ftp://x"], 1, "must look like http://"),
        (["serve", *TINY, "--base-url", "http://127.0.0.1:1"], 1, "no connection to 127.0.0.1 port 1"),
        (["serve", *TINY, "--prefix-len", "9"], 1, "the shared prefix is 9 tokens; the prompts have 8"),
        ([], 2, "SUBJECT"),
        (["latency"], 2, "latency"),
    ],
)
def test_wrong_usage(arguments: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *arguments]) == status
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_an_interrupt_still_writes_the_file(tmp_path: Path) -> None:
    async def slow_later(exchange: Exchange) -> None:
        if exchange.body["prompt"].startswith(" "):
            seen.append(exchange.body["prompt"])
        if len(seen) > 3:
            await asyncio.sleep(30)
        await good_answer(exchange)

    seen: list[str] = []
    file = tmp_path / "result.json"
    with serving(slow_later) as server:
        arguments = [*TINY, "--base-url", server.url, "--num-prompts", "9", "--num-warmups", "0", "--json", str(file)]
        command = [sys.executable, "-m", "octavo.cli.main", "bench", "serve", *arguments, "--max-concurrency", "1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 30
        while len(seen) <= 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        printed, _ = process.communicate(timeout=20)
    assert process.returncode == 130, printed
    assert "INTERRUPTED" in printed
    assert "Traceback" not in printed
    figures = json.loads(file.read_text())["figures"]
    assert (figures["complete"], figures["completed"], figures["requests"]) == (False, 3, 9)


@pytest.mark.parametrize(
    ("flags", "sent"),
    [
        ([], None),
        (["--base-url", "https://api.openai.com.example.org"], None),
        (["--base-url", "https://api.openai.com"], "secret"),
        (["--base-url", "https://api.openai.com/v1"], "secret"),
        (["--api-key", "own"], "own"),
    ],
)
def test_the_key_in_the_environment_is_sent_to_openai_only(
    flags: list[str], sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str | None] = []

    def record(base_url: str, requests: object, warm_up: object, load: object, api_key: str | None) -> None:
        keys.append(api_key)
        raise ValueError("seen enough")

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr("octavo.bench.serve.run_serve", record)
    assert cli.main(["bench", "serve", *TINY, *flags]) == 1
    assert keys == [sent]


def test_a_server_with_keys_asks_for_one() -> None:
    class Locked:
        async def get(self, path: str) -> tuple[int, bytes]:
            return 401, b'{"error": {"message": "A key is needed."}}'

    with pytest.raises(HttpError, match=r"answered with status 401: A key is needed; give a key with --api-key\.$"):
        asyncio.run(first_model(Locked()))  # type: ignore[arg-type]
