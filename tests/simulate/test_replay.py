"""What was recorded replays step for step, without a token in the file."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.driver import config
from tests.engine.driver import request as make_request
from tests.engine.fake_executor import FakeExecutor

from octavo.engine.params import ParamError
from octavo.engine.request import Request
from octavo.runtime.record import RecordingScheduler
from octavo.simulate.fields import FileError
from octavo.simulate.machine import VirtualMachine
from octavo.simulate.recording import read_recording
from octavo.simulate.replay import ReplayError, recorded_cost, replay_exactly, what_if
from octavo.simulate.scenario import EngineChoice

BASES = [[(i * kind) % 7 + 20 for i in range(200)] for kind in (1, 2, 3)]


def record(path: Path, seed: int, **changes: object) -> RecordingScheduler:
    """A crowded run: shared prefixes, follow-up turns, several choices, aborts, shortage, ends by eos."""
    rng = random.Random(seed)
    settings = config(**changes)
    scheduler = RecordingScheduler(settings, path)
    executor = FakeExecutor(settings.num_pages, settings.page_size, 8, 64, settings.eos_ids, windows=settings.windows)
    executor.padding_rows = 0
    executor.next_token = lambda tokens, s, c: int(tokens.sum() * 7 + s + c) % 23
    waiting = [request(i, rng) for i in range(40)]
    texts: dict[int, list[int]] = {}
    now_s = 0.0
    while waiting or scheduler.has_work:
        for _ in range(min(len(waiting), rng.choice([0, 0, 1, 4]))):
            one = waiting.pop(0)
            if texts and rng.random() < 0.3:  # a conversation goes on
                before = rng.choice(list(texts.values()))[:150]
                one = Request(one.request_id, np.array([*before, 30, 31], np.int32), one.params, one.seed, now_s)
            texts[one.request_id] = one.prompt.tolist()
            scheduler.add(one)
        if rng.random() < 0.05:
            scheduler.abort(rng.randrange(40))
        step = scheduler.schedule(now_s)
        if step is None:
            continue
        if rng.random() < 0.01:
            executor.execute(step)
            scheduler.fail(step)
            continue
        result = executor.execute(step)
        if step.starts and rng.random() < 0.05:
            result = replace(result, refused={rng.choice(step.starts).slot: "not today"})
        now_s += 0.001 * step.num_tokens_total
        outputs = scheduler.apply(step, result, now_s)
        for owner, token in zip(outputs.request_ids.tolist(), outputs.tokens.tolist(), strict=True):
            if token >= 0:
                texts[owner].append(token)
    scheduler._file.flush()
    return scheduler


def request(index: int, rng: random.Random) -> Request:
    return make_request(
        index,
        rng.choice(BASES)[: rng.randint(1, 150)],
        rng.choice([1, 5, 30, None]),
        seed=rng.randint(0, 2),
        n=rng.choice([1, 1, 1, 3]),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=rng.choice([(), (7,)]),
        min_tokens=rng.choice([0, 1]),
        salt=rng.choice([(), (("tenant", "secret-name"),)]),
        priority=rng.randint(0, 1),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"page_size": 8, "num_pages": 40, "policy": "fair"},
        {"policy": "priority", "target_itl_s": 0.05},
        {"windows": (0, 24, 24), "num_pages": 200},
        {"kv_policy": "buddy", "prefix_caching": False},
        {"batch_policy": "static", "prefix_caching": False},
    ],
)
def test_a_recorded_run_replays_step_for_step(tmp_path: Path, seed: int, changes: dict[str, object]) -> None:
    path = tmp_path / "run.jsonl"
    recorded = record(path, seed, **changes)
    found = replay_exactly(path, read_recording(path), lambda done, total: None)
    stats = recorded.stats()
    assert found.steps == stats.steps + path.read_text().count('"failed"')
    assert found.tokens == stats.generated_tokens
    assert found.preemptions == stats.preemptions
    assert found.requests == 40


def test_prefix_hits_are_part_of_what_replays(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run.jsonl", 1)
    assert recorded.stats().cached_tokens > 200


def test_nothing_of_the_text_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 2)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert "secret-name" not in path.read_text()
    marks = [mark for event in events if "add" in event for mark in event["prompt"]]
    assert min(marks) > 1000  # token ids of these prompts are below 30; hashes are spread over 2^31
    again = tmp_path / "again.jsonl"
    record(again, 2)
    other = [json.loads(line) for line in again.read_text().splitlines()]
    prompts = [next(event for event in found if "add" in event)["prompt"] for found in (events, other)]
    assert prompts[0] != prompts[1], "the key is the same in two recordings"


def test_two_lives_in_one_file_and_a_line_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 3)
    record(path, 4)
    segments = read_recording(path)
    assert len(segments) == 2
    assert replay_exactly(path, segments, lambda done, total: None).requests == 80
    path.write_text(path.read_text()[:-40])
    assert replay_exactly(path, read_recording(path), lambda done, total: None).requests == 80


def test_another_decision_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 5)
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"step"' in line)
    event = json.loads(lines[at])
    event["tokens"][0] += 1
    lines[at] = json.dumps(event)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ReplayError, match=f"line {at + 1}: in step 0, tokens was"):
        replay_exactly(path, read_recording(path), lambda done, total: None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "octavo_record is missing"),
        ('{"add":1}\n', "line 1: octavo_record is missing"),
        ("[]\n", "line 1: there is no JSON object"),
        ("{\n{}\n", "line 1: this is not JSON"),
        ('{"octavo_record":9,"config":{}}\n', "octavo_record is 9"),
        ('{"octavo_record":1,"config":{}}\n', "config is not a scheduler's"),
        ("HEAD{}\n", "line 2: there is no add, abort, step"),
        ('HEAD{"applied":0}\n', "line 2: a result comes without a step"),
        ('HEAD{"add":1}\n', "line 2: salt is 'None'"),
        ('HEAD{"add":-1,"prompt":[5],"output":[],"salt":[],"n":1,"min_tokens":0,"arrival_s":0,"priority":0,"choice":0}\n',
         "line 2: add is '-1'"),
        ('HEAD{"add":1,"prompt":[0],"output":[],"salt":[],"n":1,"min_tokens":0,"arrival_s":0,"priority":0,"choice":0}\n',
         "line 2: prompt is"),
        ('HEAD{"add":1,"prompt":[],"output":[],"salt":[],"n":1,"min_tokens":0,"arrival_s":0,"priority":0,"choice":0}\n',
         "line 2: the prompt is empty"),
        ('HEAD{"add":1,"prompt":[5],"output":[],"salt":[],"n":200,"min_tokens":0,"arrival_s":0,"priority":0,"choice":0}\n',
         "line 2: n is 200"),
        ('HEAD{"abort":[],"choice":0}\n', r"line 2: abort is '\[\]'"),
        ('HEAD{"step":0,"now_s":0}\n', "line 2: step 0 was recorded; the scheduler makes none"),
        ("[" * 100_000 + "\n", "line 1: this JSON is nested too deeply"),
    ],
)  # fmt: skip
def test_a_wrong_recording_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.jsonl"
    head = tmp_path / "head.jsonl"
    RecordingScheduler(config(), head)
    path.write_text(text.replace("HEAD", head.read_text()))
    with pytest.raises((FileError, ReplayError), match=words) as error:
        replay_exactly(path, read_recording(path), lambda done, total: None)
    assert str(error.value).count(str(path)) == 1


def test_a_request_that_is_refused_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    scheduler = RecordingScheduler(config(), path)
    with pytest.raises(ParamError):
        scheduler.add(make_request(1, 1000))
    scheduler._file.flush()
    assert "add" not in path.read_text().splitlines()[-1][:8]


def test_what_if_asks_about_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 1)
    (segment,) = read_recording(path)
    cost, loop = recorded_cost(path, segment)
    assert cost.seconds(10, 10, 500, 500, 10) > 0
    same, scheduler = what_if(path, segment, segment.config, VirtualMachine(cost, loop), lambda done, total: None)
    assert same.done.all()
    assert scheduler.stats().cached_tokens > 100
    one = config(max_num_seqs=1, eos_ids=frozenset({0}))
    alone, _ = what_if(path, segment, one, VirtualMachine(cost, loop), lambda done, total: None)
    assert alone.done.all()
    assert (alone.finish_s - alone.arrival_s).mean() > (same.finish_s - same.arrival_s).mean()


def test_a_recording_from_before_kv_groups_replays(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 1)
    path.write_text(path.read_text().replace(',"windows":[0]', "", 1))
    assert '"windows"' not in path.read_text()
    assert replay_exactly(path, read_recording(path), lambda done, total: None).requests == 40


@pytest.mark.parametrize("windows", ["[]", "[-1]", "7", '["a"]', str([0] * 300)])
def test_wrong_windows_are_one_sentence(tmp_path: Path, windows: str) -> None:
    path = tmp_path / "run.jsonl"
    RecordingScheduler(config(), path)
    path.write_text(path.read_text().replace('"windows":[0]', f'"windows":{windows}'))
    with pytest.raises(FileError, match=r"line 1: config.windows is .*; it must be 1 to 256 integers"):
        read_recording(path)


def test_what_if_there_were_no_windows(tmp_path: Path) -> None:
    """In contiguous memory all layers are one group; the pool keeps its bytes."""
    path = tmp_path / "run.jsonl"
    record(path, 1, windows=(0, 24), num_pages=256)
    (segment,) = read_recording(path)
    changed = EngineChoice(kv_policy="contiguous").change(segment.config, None)
    assert (changed.windows, changed.num_pages) == ((0,), 128)
    assert EngineChoice().change(segment.config, None).num_pages == 256
    assert EngineChoice().change(segment.config, 4000).num_pages == 2000


def test_what_if_keeps_every_page_of_a_recording_with_windows() -> None:
    recorded = config(page_size=16, num_pages=2533, windows=(0, 64, 64, 64, 64, 64))
    assert EngineChoice().change(recorded, None).num_pages == 2533
    assert EngineChoice(page_size=8).change(recorded, None).num_pages == 5066
    assert EngineChoice().change(recorded, 1600).num_pages == 600
    static = EngineChoice(batch_policy="static", prefix_caching=False).change(recorded, None)
    assert (static.windows, static.num_pages) == ((0,), 2533 * 16 // 6 // 16)
