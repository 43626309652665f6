"""`octavo simulate`: figures as JSON, interrupts, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.simulate.test_replay import record

from octavo.cli.main import main
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.fleet import Fleet
from octavo.simulate.recording import Segment
from octavo.simulate.replay import what_if

TRAFFIC = ["--num-requests", "40", "--request-rate", "20", "--input-len", "64", "--output-len", "16"]
SMALL = ["--spec", "smollm2-135m", "--device", "cpu", *TRAFFIC]


def test_figures_go_to_the_terminal_and_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    assert main(["simulate", *SMALL, "--replicas", "2", "--json", str(path)]) == 0
    assert "40 complete" in capsys.readouterr().out
    content = json.loads(path.read_text())
    assert content["figures"]["complete"]
    assert content["figures"]["completed"] == 40
    assert content["settings"]["replicas"] == 2


def test_the_same_simulation_gives_the_same_figures(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        assert main(["simulate", *SMALL, "--router", "least-loaded", "--json", str(tmp_path / name)]) == 0
        figures = json.loads((tmp_path / name).read_text())["figures"]
        found.append({key: value for key, value in figures.items() if key != "wall_s"})
    assert found[0] == found[1]


def test_an_interrupted_run_keeps_what_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Fleet.run

    def interrupted(self: Fleet, *args: object) -> bool:
        for replica in self.replicas:
            replica._after_step = stop  # type: ignore[assignment]
        return whole(self, *args)  # type: ignore[arg-type]

    steps = 0

    def stop(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 60:
            raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "run", interrupted)
    path = tmp_path / "x.json"
    assert main(["simulate", *SMALL, "--json", str(path)]) == 130
    content = json.loads(path.read_text())
    assert not content["complete"]
    assert 0 < content["figures"]["completed"] < 40
    assert "INTERRUPTED" in capsys.readouterr().out


def what_if_asked(folder: Path) -> list[str]:
    record(folder / "run.jsonl", 1)
    return [
        "simulate",
        "--replay",
        str(folder / "run.jsonl"),
        "--what-if",
        "--max-num-seqs",
        "1",
        "--json",
        str(folder / "x.json"),
    ]


def test_what_if_shows_both_and_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(what_if_asked(tmp_path)) == 0
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["complete"]
    slower, faster = content["what if"]["latencies"]["e2e_ms"], content["as recorded, simulated"]["latencies"]["e2e_ms"]
    assert slower["p50"] > faster["p50"]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_interrupted_what_if_keeps_the_part_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, segment: Segment, config: SchedulerConfig, *rest: Any) -> Any:
        if config.max_num_seqs == 1:
            raise KeyboardInterrupt
        return what_if(path, segment, config, *rest)

    monkeypatch.setattr("octavo.simulate.replay.what_if", interrupted)
    assert main(what_if_asked(tmp_path)) == 130
    content = json.loads((tmp_path / "x.json").read_text())
    assert not content["complete"]
    assert "as recorded, simulated" in content
    assert "what if" not in content
    assert "INTERRUPTED" in capsys.readouterr().out


def test_ctrl_c_ends_a_real_run_with_its_figures_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    words = [*SMALL, "--num-requests", "1000000", "--replicas", "4", "--json", str(path)]
    command = [sys.executable, "-c", "import sys; from octavo.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    ours, theirs = pty.openpty()
    with subprocess.Popen([*command, "simulate", *words], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"/1000000, " not in shown:  # the progress bar: it is under way
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 130
    assert b"INTERRUPTED" in out
    content = json.loads(path.read_text())
    assert not content["complete"]
    assert content["figures"]["requests"] == 1000000
    assert not content["figures"]["complete"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--device abacus", "there is no device 'abacus'"),
        ("--spec none", "there is no model 'none'"),
        ("--tensor-parallel 3", "degree is 3"),
        ("--replicas 0", "must be an integer from 1 to 10000"),
        ("--replicas 100000000", "must be an integer from 1 to 10000"),
        ("--prefix-len 1000000000", "must be an integer from 1 to 10000000"),
        ("--weight-bytes 1e308", "must be a number from 0.25 to 8"),
        ("--trace /nonexistent.csv", "cannot be read: No such file"),
        ("--calibration /nonexistent.json", "cannot be read: No such file"),
        ("--replay /nonexistent.jsonl", "cannot be read: No such file"),
        ("--what-if", "give one with --replay"),
        ("--calibrate /nonexistent/c.json", "there is no folder"),
        ("--request-rate nan", "must be a number of at least 0.001"),
        ("--page-size 16 --max-model-len 10000000", "less than one sequence"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words.split()]) in (1, 2)
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert "internal error" not in error
