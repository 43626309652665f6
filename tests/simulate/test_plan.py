"""Plans: the fewest replicas, why fewer fail, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.fields import FileError
from octavo.simulate.machine import LoopTime
from octavo.simulate.plan import Asked, Bill, Level, Option, Prices, Trial, best, fewest, next_cheaper, sweep, trial
from octavo.simulate.scenario import EngineChoice, Machine, Traffic


class RowCost:
    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed

    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        return (0.01 + 0.001 * tokens) / self._speed


def option(name: str, speed: float) -> Option:
    return Option(name, 1, 256, Machine(name, RowCost(speed), LoopTime(), 65536, 4096, 64, 256, 16), EngineChoice())


def asked(**changes: object) -> Asked:
    work = Traffic(count=120, rate=12, prompt_tokens=100, output_tokens=16).build
    prices = Prices("EUR", {"slow": 1.0, "fast": 2.6})
    fields: dict[str, object] = {"level": Level(600, 60), "router": "least-loaded", "max_replicas": 32, **changes}
    return Asked(work=work, prices=prices, **fields)  # type: ignore[arg-type]


def quiet(done: int, total: int) -> None:
    pass


def test_the_fewest_replicas_meet_the_level_and_one_less_does_not() -> None:
    for one in (option("slow", 1.0), option("fast", 2.0)):
        trials = list(fewest(asked(), one, quiet))
        chosen = best(trials)
        assert chosen is not None
        assert chosen.replicas > 1
        assert trial(asked(), one, chosen.replicas, quiet).reason == ""
        below = trial(asked(), one, chosen.replicas - 1, quiet)
        assert "of 120 requests have a T" in below.reason
        assert any(made.replicas == chosen.replicas - 1 and made.reason for made in trials)


def test_the_cheapest_is_chosen_and_the_next_cheaper_named() -> None:
    trials = [made for one in (option("slow", 1.0), option("fast", 2.0)) for made in fewest(asked(), one, quiet)]
    chosen = best(trials)
    assert chosen is not None
    cheaper = next_cheaper(trials, chosen)
    assert cheaper is not None
    assert cheaper.reason
    assert cheaper.price_per_hour < chosen.price_per_hour
    assert not any(made.price_per_hour < chosen.price_per_hour and not made.reason for made in trials)


def test_a_level_that_nobody_meets_ends_at_the_most_replicas() -> None:
    trials = list(fewest(asked(level=Level(1, 1), max_replicas=6), option("slow", 1.0), quiet))
    assert best(trials) is None
    assert [made.replicas for made in trials] == [1, 2, 4, 6]
    assert all(made.latencies is None for made in trials), "a hopeless simulation went on to its end"


def test_the_bill_follows_from_hours_and_tokens() -> None:
    made = Trial(option("slow", 1.0), 3, "", None, 3.0)
    load = Traffic(count=120, rate=12).build(4096).load
    bill = Bill.of(made, load)
    assert bill.device_hours == pytest.approx(3 * load.arrival_s[-1] / 3600)
    assert bill.per_million_output == pytest.approx(bill.price / load.output_tokens.sum() * 1e6)


def test_goodput_falls_behind_the_load_when_it_is_too_much() -> None:
    chosen = best(list(fewest(asked(), option("slow", 1.0), quiet)))
    assert chosen is not None
    points = list(sweep(asked(), chosen, (0.5, 1.0, 6.0), 120, quiet))
    assert points[0].good_per_s == pytest.approx(points[0].rate, rel=0.02)
    assert points[2].good_per_s < 0.7 * points[2].rate
    assert points[2].latencies.ttft_ms.p99 > points[0].latencies.ttft_ms.p99


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"per_hour": {"slow": 1}}', "currency is missing"),
        ('{"currency": "EUR", "per_hour": {}}', "per_hour.slow is missing"),
        ('{"currency": "EUR",\n "per_hour": {"slow": 0}}', "line 2: per_hour.slow is 0"),
    ],
)
def test_a_wrong_price_file_is_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(content)
    with pytest.raises(FileError, match=words):
        Prices.read(path, ["slow"])


def test_the_command_plans_and_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    prices, report, found = tmp_path / "prices.json", tmp_path / "plan.html", tmp_path / "plan.json"
    prices.write_text('{"currency": "USD", "per_hour": {"a100-80g": 2.0, "l4": 0.7}}')
    words = f"--ttft-p99-ms 1500 --tpot-p99-ms 150 --devices a100-80g l4 --prices {prices} --num-requests 60 "
    words += f"--request-rate 6 --sweep-requests 30 --json {found} --report {report} --spec qwen3-14b"
    assert main(["plan", *words.split()]) == 0
    out = capsys.readouterr().out
    assert "l4 x 1 is left out: Qwen3 14B needs" in out
    assert "USD per million output tokens" in out
    content = json.loads(found.read_text())
    assert content["complete"]
    assert any(made["meets"] for made in content["trials"])
    assert report.read_text().count("<svg") == 2


def test_an_interrupted_plan_keeps_the_trials_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def interrupted(*arguments: Any) -> Trial:
        nonlocal made
        made += 1
        if made == 2:
            raise KeyboardInterrupt
        return trial(*arguments)

    monkeypatch.setattr("octavo.simulate.plan.trial", interrupted)
    found = tmp_path / "plan.json"
    words = f"--ttft-p99-ms 1 --tpot-p99-ms 1 --devices a100-80g --num-requests 60 --request-rate 6 --json {found}"
    assert main(["plan", *words.split()]) == 130
    content = json.loads(found.read_text())
    assert not content["complete"]
    assert [(one["replicas"], one["meets"]) for one in content["trials"]] == [(1, False)]
    assert "INTERRUPTED" in capsys.readouterr().out


def test_what_can_not_serve_the_model_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --ttft-p99-ms 1 --tpot-p99-ms 1 --devices l4 --spec llama-3-70b"
    assert main(words.split()) == 1
    assert "nothing that was asked for can serve this model" in capsys.readouterr().err


def test_a_machine_smaller_than_the_context_shortens_it() -> None:
    config = Machine("m", RowCost(), LoopTime(), 1000, 4096, 64, 256, 16).config(EngineChoice())
    assert isinstance(config, SchedulerConfig)
    assert config.max_model_len == 992
