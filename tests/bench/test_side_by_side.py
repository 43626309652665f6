"""Plan, execution, results and page of a side-by-side run, with engines that are small processes of their own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bigger_models
import pytest
import side_by_side
import sidebyside.measure
from peers.engine import PORT, Engine, Launch, Need
from peers.environment import Environment
from peers.errors import PeerError
from sidebyside.measure import RATES, goodput
from sidebyside.page import table, write_page
from sidebyside.results import Results
from sidebyside.run import Runner, prepared, visits
from sidebyside.workloads import WORKLOADS, Work, select

from octavo.bench.completion import BenchRequest

# An engine that answers at once; argv: port, milliseconds a token.
SERVER = """
import sys, time
from sse_server import Piece, serve
def run(inbox, emit):
    while True:
        job = inbox.get()
        job.prompt_tokens = len(job.prompt.split())
        for index in range(job.max_tokens):
            time.sleep(float(sys.argv[2]) / 1e3)
            emit([Piece(job, " x", 1, index + 1 == job.max_tokens)])
serve(int(sys.argv[1]), run)
"""
PEERS = str(Path(side_by_side.__file__).parent / "peers" / "inside")


@dataclass
class Small(Engine):
    token_ms: float = 0.0
    per_need: bool = False

    def prepare(self) -> None:
        if self.token_ms < 0:
            raise PeerError(f"{self.name} can't be installed.")
        self.facts = {"versions": {self.name: "1"}, "environment_mb": 1.5}

    def launch(self, need: Need) -> Launch:
        extra = (str(need.in_flight),) if self.per_need else ()
        return Launch((sys.executable, "-c", SERVER, PORT, str(self.token_ms), *extra), (("PYTHONPATH", PEERS),))


class FakeTexts:
    """Requests without a tokenizer; remembers every prompt."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def build(self, work: Work, salt: int) -> list[BenchRequest]:
        requests = [BenchRequest(f"{salt} {index}", 2, 4) for index in range(3)]
        self.prompts += [request.prompt for request in requests]
        return requests

    def warm_up(self, work: Work, salt: int) -> list[BenchRequest]:
        return [BenchRequest("warm up", 2, 1)]


def facts(**changed: Any) -> dict[str, Any]:
    return {
        "date": "2026-01-01", "commands": ["c"], "model": "m", "rounds": 2, "quick": False, "workloads": {},
        "machine": {"cpu": "c", "cores": 2, "extensions": [], "last_level_cache": "1M", "memory_gib": 1, "system": "s"},
    } | changed  # fmt: skip


def works(*names: str) -> list[Work]:
    return [WORKLOADS[name] for name in names]


def test_each_round_measures_everything_once_and_begins_with_another_engine() -> None:
    slow = Small("slow", "Slow", "s", slow_start=True)
    slots = Small("slots", "Slots", "s", slow_start=True, per_need=True)
    plain = Small("octavo", "Octavo", "s")
    chosen = works("W1", "W2-32", "W4")
    rounds = [visits(turn, [plain, slow, slots], chosen) for turn in range(3)]
    for planned in rounds:
        pairs = [(visit.engine.name, work.name) for visit in planned for work in visit.works]
        assert sorted(pairs) == sorted((e, w.name) for e in ("octavo", "slow", "slots") for w in chosen)
        assert [v.works for v in planned if v.engine is slow] == [tuple(chosen)]
        assert [len(v.works) for v in planned if v.engine is slots] == [2, 1]
    assert [planned[0].engine.name for planned in rounds] == ["octavo", "slow", "slots"]
    some = Small("some", "Some", "s", only=("W4",))
    planned = visits(0, [plain, some], chosen)
    assert [work.name for visit in planned if visit.engine is some for work in visit.works] == ["W4"]


def test_a_run_end_to_end_then_resumed(tmp_path: Path) -> None:
    target = tmp_path / "side.json"
    factories = {
        "octavo": lambda: Small("octavo", "Octavo", "fast"),
        "peer": lambda: Small("peer", "Peer", "slow", factor=2.0, token_ms=20.0),
        "broken": lambda: Small("broken", "Broken", "b", token_ms=-1),
    }
    results, texts = Results.new(target, facts()), FakeTexts()
    chosen = prepared(factories, ["octavo", "broken", "peer"], results)
    assert [engine.name for engine in chosen] == ["octavo", "peer"]
    assert results.content["failed"] == {"broken": "broken can't be installed."}
    plan = visits(0, chosen, works("W1", "W4"))
    assert Runner(results, texts, "m", 1).run(plan)  # type: ignore[arg-type]
    assert len(texts.prompts) == len(set(texts.prompts)) == 12

    kept = Results.read(target)
    assert [(e["engine"], e["workload"]) for e in kept.content["measurements"]] == [
        ("octavo", "W1"), ("peer", "W1"), ("octavo", "W4"), ("peer", "W4"),
    ]  # fmt: skip
    assert all(start["ready_s"] > 0 and start["idle_mib"] > 5 for start in kept.content["starts"])
    assert 10 < 1e3 / (kept.median("peer", "W1", "decode_tokens_per_s") or 0) < 40
    ratio = kept.ratio("peer", "W1", "decode_tokens_per_s", higher=True)
    measured = (kept.median("octavo", "W1", "decode_tokens_per_s") or 0) / (
        kept.median("peer", "W1", "decode_tokens_per_s") or 1
    )
    assert ratio == pytest.approx(measured / 2)

    kept.go_on(facts(commands=["c --resume"], workloads={"W5": {}}))
    assert kept.content["commands"] == ["c", "c --resume"]
    with pytest.raises(ValueError, match="is a run of m; --model is n"):
        kept.go_on(facts(model="n"))
    again = FakeTexts()
    assert Runner(kept, again, "m", 1).run(plan)  # type: ignore[arg-type]
    assert again.prompts == []
    kept.content["measurements"].pop()
    assert Runner(kept, again, "m", 1).run(plan)  # type: ignore[arg-type]
    assert again.prompts == texts.prompts[-3:]


def test_a_server_that_dies_is_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    class Dying(Small):
        def launch(self, need: Need) -> Launch:
            return Launch((sys.executable, "-c", "print('no such device')"))

    factories = {"dying": lambda: Dying("dying", "Dying", "d"), "octavo": lambda: Small("octavo", "Octavo", "o")}
    results = Results.new(tmp_path / "side.json", facts())
    chosen = prepared(factories, ["dying", "octavo"], results)
    assert not Runner(results, FakeTexts(), "m", 1).run(visits(0, chosen, works("W1")))  # type: ignore[arg-type]
    assert "no such device" in results.content["failed"]["dying W1 round 1"]
    assert [entry["engine"] for entry in results.content["measurements"]] == ["octavo"]

    factories["dying"] = lambda: Small("dying", "Mended", "d")
    chosen = prepared(factories, ["dying", "octavo"], results)
    assert Runner(results, FakeTexts(), "m", 1).run(visits(0, chosen, works("W1")))  # type: ignore[arg-type]
    assert results.content["failed"] == {}


def test_an_interrupted_run_keeps_and_marks_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measured(*_: object, **__: object) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {"decode_tokens_per_s": 10.0}

    monkeypatch.setattr("sidebyside.run.measure", measured)
    target = tmp_path / "side.json"
    results = Results.new(target, facts())
    chosen = prepared({"octavo": lambda: Small("octavo", "Octavo", "o")}, ["octavo"], results)
    plan = visits(0, chosen, works("W1", "W4"))
    assert side_by_side._measure(results, FakeTexts(), "m", 1, plan) == 130  # type: ignore[arg-type]
    kept = json.loads(target.read_text())
    assert not kept["complete"]
    assert kept["interrupted"]
    assert len(kept["measurements"]) == 1
    write_page(Results.read(target), tmp_path / "page.md")
    assert "**Incomplete run**: it was interrupted" in (tmp_path / "page.md").read_text()
    assert side_by_side._measure(Results.read(target), FakeTexts(), "m", 1, plan) == 0  # type: ignore[arg-type]
    kept = json.loads(target.read_text())
    assert kept["complete"]
    assert "interrupted" not in kept


def filled(tmp_path: Path) -> Results:
    """Octavo and two peers over two rounds of W1."""
    results = Results.new(tmp_path / "side.json", facts())
    for name, factor in (("octavo", 1.0), ("native", 1.0), ("wheel", 1.4)):
        results.content["engines"][name] = {
            "label": name.title(), "settings": "s", "factor": factor, "versions": {name: "1"}, "environment_mb": 2.0,
        }  # fmt: skip
        start = {"engine": name, "round": 0, "workloads": ["W1"], "ready_s": 0.5, "idle_mib": 100}
        results.content["starts"].append({**start, "environment": {"SLOTS": "4"}, "command": "/a/b/python /c/run.py"})
    rates = {"octavo": (300.0, 200.0), "native": (200.0, 100.0), "wheel": (150.0, 100.0)}
    for name, values in rates.items():
        for turn, rate in enumerate(values):
            entry = {"engine": name, "workload": "W1", "round": turn}
            figures = {"decode_tokens_per_s": rate, "ttft_p50_ms": 1e4 / rate}
            results.content["measurements"].append({**entry, "took_s": 1.0, "figures": figures})
    return results


def test_ratios_are_of_the_same_round_and_the_best_peer_is_the_hardest(tmp_path: Path) -> None:
    results = filled(tmp_path)
    assert results.ratio("native", "W1", "decode_tokens_per_s", True) == pytest.approx(1.75)
    assert results.ratio("wheel", "W1", "decode_tokens_per_s", True) == pytest.approx(2.0 / 1.4)
    assert results.best_peer("W1", "decode_tokens_per_s", True) == ("wheel", pytest.approx(2.0 / 1.4))
    assert results.ratio("native", "W1", "ttft_p50_ms", False) == pytest.approx(1.75)
    assert results.ratio("native", "W2-32", "output_tokens_per_s", True) is None


def test_the_page_holds_figures_ratios_plots_and_how_it_was_run(tmp_path: Path) -> None:
    results = filled(tmp_path)
    results.content["complete"] = True
    results.content["perplexity"] = {"tokens": 1000, "f32": 5.0, "engines": {"octavo": 5.01, "wheel": 5.1}}
    write_page(results, tmp_path / "performance.md")
    page = (tmp_path / "performance.md").read_text()
    assert "| W1 decode, tokens/s | 250 | 150 | 125 | 1.43 (Wheel) | 1.2 | 1.5 |" in page
    assert "| perplexity against f32 (5.000) | +0.20 % | - | +2.00 % |" in page
    assert "Wheel by 1.4" in page
    assert "`SLOTS=4 python run.py`" in page
    assert "Incomplete" not in page
    plot = (tmp_path / "performance" / "w1-decode_tokens_per_s.svg").read_text()
    assert plot.count("<rect") == 3
    assert "](performance/w1-decode_tokens_per_s.svg)" in page
    assert table(results) in page


def test_a_row_that_is_about_one_peer_names_it_beside_the_best(tmp_path: Path) -> None:
    results = filled(tmp_path)
    results.content["engines"]["openvino"] = results.content["engines"].pop("native")
    for entry in results.content["measurements"]:
        entry["workload"], entry["engine"] = "W3-4", entry["engine"].replace("native", "openvino")
        entry["figures"] = {"ttft_p99_ms": entry["figures"]["ttft_p50_ms"]}
    assert "1.43 (Wheel); 1.75 (Native), which floor and goal are about | 1.67 | 2.5 |" in table(results)


def test_bigger_models_have_a_row_for_each_file_and_a_ratio_for_each_peer(tmp_path: Path) -> None:
    results = filled(tmp_path)
    results.content["engines"]["llamacpp"] = results.content["engines"].pop("native")
    for entry in results.content["measurements"]:
        entry["engine"] = entry["engine"].replace("native", "llamacpp")
    results.content["failed"]["vllm-bf16"] = "it did not start"
    page = bigger_models.page({"llama-3.2-1b:bf16": results, "llama-3.2-1b:q4_0": results})
    assert page.count("| 250 | 150 | 1.75 |  |  |") == 2
    assert "> llama-3.2-1b:bf16, vllm-bf16: it did not start" in page


@pytest.mark.parametrize("limit", [0.5, 1.2, 4.2, 5.2, 13, 100])
def test_goodput_is_the_highest_rate_within_the_limits(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spread:
        def __init__(self, p99: float) -> None:
            self.p50, self.p99 = 1.0, p99

    class Result:
        def __init__(self, rate: float) -> None:
            self.failed, self.ttft_ms, self.tpot_ms = 0, Spread(999.0 if rate <= limit else 1000.0), Spread(79.0)

    monkeypatch.setattr(sidebyside.measure, "_run", lambda server, requests, load: Result(load.rate))
    monkeypatch.setattr(sidebyside.measure, "flat", lambda result: {})
    found = goodput(None, WORKLOADS["W3-goodput"], FakeTexts(), 1, 0)  # type: ignore[arg-type]
    assert found["rate"] == max((rate for rate in RATES if rate <= limit), default=0)
    assert len({probe["rate"] for probe in found["probes"]}) == len(found["probes"]) <= 8


def test_workloads_are_chosen_by_name_or_group() -> None:
    assert [work.name for work in select("W1, W2", quick=False)] == ["W1", "W2-32", "W2-64"]
    assert select("W1", quick=True) == [replace(WORKLOADS["W1"], requests=replace(WORKLOADS["W1"].requests, count=4))]
    with pytest.raises(ValueError, match="--workloads has 'W9'; known are"):
        select("W9", quick=False)


def test_a_peer_that_can_not_be_installed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(PeerError) as error:
        Environment("nothing", ("octavo-no-such-package",)).ensure()
    assert str(error.value).startswith("nothing can't be installed from octavo-no-such-package: ERROR: No matching")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peers", "foo"], "--peers has 'foo'"),
        (["--workloads", "W7"], "--workloads has 'W7'"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--model", "llama-3.2-1b:q2"], "no model of random weights"),
        (["--resume"], "can't be read as results"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", "--json", str(tmp_path / "x.json"), *words])
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    assert side_by_side.main() == 2
    assert said in capsys.readouterr().err
