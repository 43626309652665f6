"""The engine on a tiny model: promise 4 in small, failed steps, aborts, and where the time goes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.harness import generate
from tests.oracle.tiny import MODELS, write_folder

import octavo
from octavo.backends.kv_types import KV_TYPES
from octavo.backends.ops import Batch, Sampled, SlotParams
from octavo.config import EngineConfig
from octavo.engine.params import SamplingParams
from octavo.engine.request import Finish, Request
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine
from octavo.runtime.facts import build_identity, fingerprint
from octavo.runtime.worker import tokens_message


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(MODELS["tied"], tmp_path_factory.mktemp("tiny"))


def engine(model: Path, **changes: object) -> Engine:
    settings = {"kv_cache_memory_bytes": 1 << 20, "page_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return build_engine(EngineConfig(model=str(model), backend="reference", **{**settings, **changes}))


def request(request_id: int, length: int = 9, **params: object) -> Request:
    prompt = (np.arange(length) * 31 + request_id * 7).astype(np.int32) % 263
    fields = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params}
    return Request(request_id, prompt, SamplingParams(**fields), seed=request_id, arrival_s=0.0)


def drain(running: Engine) -> dict[tuple[int, int], tuple[list[int], Finish]]:
    """Tokens and end of every sequence."""
    tokens: dict[tuple[int, int], list[int]] = {}
    ends: dict[tuple[int, int], Finish] = {}
    while running.busy:
        outputs = running.step()
        if outputs is None:
            continue
        columns = (outputs.request_ids, outputs.choices, outputs.tokens, outputs.finish)
        for request_id, choice, token, finish in zip(*(column.tolist() for column in columns), strict=True):
            key = (request_id, choice)
            tokens.setdefault(key, [])
            if token >= 0:
                tokens[key].append(token)
            if finish:
                ends[key] = Finish(finish)
    return {key: (tokens[key], ends[key]) for key in tokens}


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_request_same_logits(model: Path, kv: str, temperature: float) -> None:
    """Bit-identical alone, among others, in chunks, on other pages and the second time."""
    params = SamplingParams(temperature=temperature, max_tokens=6, ignore_eos=True, top_p=0.9)
    prompts = [((np.arange(n) * 13 + n) % 263).astype(np.int32) for n in (23, 5, 40, 1, 30)]

    def run(changes: dict[str, object], batch: list[np.ndarray]) -> list[tuple[list[int], bytes]]:
        running = engine(model, kv_cache_dtype=kv, **changes)
        drawn = [*generate(running, batch, lambda _: params), *generate(running, batch, lambda _: params)]
        return [(one.tokens, np.stack(one.logits).tobytes()) for one in drawn]

    (alone, warm) = run({}, prompts[:1])
    assert warm == alone
    for changes in ({}, {"max_num_batched_tokens": 7, "max_num_seqs": 3}, {"page_size": 16}, {"page_size": 8}):
        first, *_ = run(changes, prompts)
        assert first == alone, changes


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = engine(model)
    expected = engine(model)
    expected.add(request(3))
    plan = running.executor._plan
    real_run = plan.run

    def fail_when_poisoned(batch: Batch) -> Sampled:
        if 7 in batch.tokens[: batch.num_tokens]:
            raise FloatingPointError("poisoned")
        return real_run(batch)

    monkeypatch.setattr(plan, "run", fail_when_poisoned)
    running.add(request(1, n=2))  # its prompt begins with token 7
    ended = drain(running)
    assert ended == {(1, 0): ([], Finish.ERROR), (1, 1): ([], Finish.ERROR)}
    assert "poisoned" in capsys.readouterr().err
    running.add(request(1))
    outputs = running.step()
    assert outputs is not None
    assert re.fullmatch(r"A forward pass failed, .*: FloatingPointError: poisoned\.", outputs.message)
    assert tokens_message(outputs, 1, 5).message == outputs.message
    running.add(request(3))
    assert drain(running) == drain(expected)
    stats = running.stats()
    assert stats.pages_held == 0


def test_a_sequence_that_the_sampler_refuses_ends_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even one whose tokens no pass may carry: its neighbours in the step get the tokens they would have had."""
    running, expected = engine(model), engine(model)
    real_set_slot = running.executor._plan.set_slot

    def picky(slot: int, params: SlotParams, tokens: np.ndarray, prompt_len: int) -> None:
        if tokens.max() >= 263:
            raise ValueError(f"tokens holds token id {tokens.max()}")
        real_set_slot(slot, params, tokens, prompt_len)

    monkeypatch.setattr(running.executor._plan, "set_slot", picky)
    for number in (3, 4):
        running.add(request(number))
        expected.add(request(number))
    wrong = replace(request(1, n=2), prompt=np.array([5, 9999, 6, 7, 8, 9], np.int32))
    running.add(wrong)
    message = ""
    ended: dict[tuple[int, int], tuple[list[int], int]] = {}
    while running.busy:
        outputs = running.step()
        if outputs is None:
            continue
        message = message or outputs.message
        for key in zip(outputs.request_ids.tolist(), outputs.choices.tolist(), strict=True):
            ended.setdefault(key, ([], 0))
        columns = (outputs.request_ids, outputs.choices, outputs.tokens, outputs.finish)
        for request_id, choice, token, finish in zip(*(column.tolist() for column in columns), strict=True):
            tokens, _ = ended[request_id, choice]
            ended[request_id, choice] = (tokens + [token] * (token >= 0), finish)
    assert ended.pop((1, 0)) == ended.pop((1, 1)) == ([], Finish.ERROR)
    assert ended == drain(expected)
    assert message == "The sampler did not take this request: ValueError: tokens holds token id 9999."
    assert "9999" in capsys.readouterr().err
    assert running.stats().pages_held == 0
    assert running.stats().generated_tokens == 16
    running.add(replace(request(6), prompt=wrong.prompt[2:]))  # nothing of it is in the prefix index
    expected.add(replace(request(6), prompt=wrong.prompt[2:]))
    assert drain(running) == drain(expected)


def test_aborted_requests_bring_no_more_tokens(model: Path) -> None:
    running = engine(model)
    for number in range(4):
        running.add(request(number + 10))
    running.step()
    running.abort(11)
    running.abort(99)
    ended = drain(running)
    assert {key[0] for key in ended} == {10, 12, 13}
    assert running.stats().aborted == 1
    assert running.stats().pages_held == 0


def test_time_is_busy_only_while_work_is_there(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine(model)
    clock = [100.0]
    monkeypatch.setattr("octavo.runtime.engine.time.perf_counter", lambda: clock[0])
    real_schedule = running.scheduler.schedule

    def schedule(now_s: float):  # one second of overhead in every step
        clock[0] += 1.0
        return real_schedule(now_s)

    monkeypatch.setattr(running.scheduler, "schedule", schedule)
    clock[0] += 50.0  # idle
    running.add(request(5, max_tokens=3))
    drain(running)
    clock[0] += 50.0  # idle again
    stats = running.stats()
    assert stats.steps == 3
    assert stats.busy_s == pytest.approx(3.0)
    assert stats.step_overhead_s == pytest.approx(3.0)


def test_ready_and_fingerprint(model: Path) -> None:
    ready = engine(model, max_model_len=100).ready(4)
    assert (ready.generation, ready.max_model_len, ready.page_size) == (4, 100, 4)
    assert ready.num_pages * ready.page_size >= 100
    assert ready.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    same = engine(model, max_num_seqs=3, page_size=8).ready(0).fingerprint
    assert ready.fingerprint == same
    of_types = {engine(model, kv_cache_dtype=kv).ready(0).fingerprint for kv in KV_TYPES}
    assert len(of_types) == len(KV_TYPES)
    assert ready.fingerprint in of_types
    assert engine(model, kv_cache_dtype="int8").ready(0).kv_bytes_per_token == 2 * 2 * 2 * (16 + 2)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("kv", "share"), [("bf16", 0.02), ("f16", 0.003), ("int8", 0.03)])
def test_each_kv_type_is_near_f32(model: Path, backend: str, kv: str, share: float) -> None:
    """A whole model, prefill and decodes: the logits of an answer's tokens beside those over unrounded K and V."""
    prompt = (np.arange(60) * 13 % 263).astype(np.int32)
    params = SamplingParams(temperature=0.0, max_tokens=8, allowed_token_ids=[7])
    logits = {}
    for stored in ("f32", kv):
        config = EngineConfig(
            model=str(model), backend=backend, activations="f32", kv_cache_dtype=stored, kv_cache_memory_bytes=1 << 20
        )
        (drawn,) = generate(build_engine(config), [prompt], lambda _: params)
        logits[stored] = np.stack(drawn.logits)
    np.testing.assert_allclose(logits[kv], logits["f32"], rtol=0, atol=share * np.abs(logits["f32"]).max())
    assert (logits[kv] != logits["f32"]).any()


def test_a_page_is_found_only_under_its_own_kv_type(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    salts = []
    for kv in ("bf16", "int8"):
        running = engine(model, kv_cache_dtype=kv)
        monkeypatch.setattr(running.scheduler, "add", lambda one: salts.append(one.salt))
        running.add(replace(request(1), salt=(("tenant", "a"),)))
    assert salts == [(("tenant", "a"), ("kv", "bf16")), (("tenant", "a"), ("kv", "int8"))]


def test_fingerprint_leaves_threads_out() -> None:
    facts = {"isa": "avx2", "threads": "2"}
    assert fingerprint("1", "w", "f32", facts) == fingerprint("1", "w", "f32", {**facts, "threads": "8"})
    assert fingerprint("1", "w", "f32", facts) != fingerprint("1", "w", "f32", {**facts, "isa": "generic"})


def test_builds_are_told_apart() -> None:
    assert build_identity() == build_identity()
    assert build_identity().startswith(f"{octavo.__version__} ")
    facts = {"isa": "avx2"}
    assert fingerprint("1 ab", "w", "f32", facts) != fingerprint("1 cd", "w", "f32", facts)


def test_phases_are_reported_in_order(model: Path) -> None:
    phases: list[tuple[str, float, str]] = []
    config = EngineConfig(model=str(model), backend="reference", kv_cache_memory_bytes=1 << 20)
    build_engine(config, lambda *phase: phases.append(phase))
    assert [name for name, _, _ in phases] == ["resolve", "open", "sizes", "pack", "warm-up"]
    assert all(seconds >= 0 and detail for _, seconds, detail in phases)


@pytest.mark.parametrize("prompt", [[], list(range(100))])
def test_requests_that_cannot_be_served_are_refused(model: Path, prompt: list[int]) -> None:
    running = engine(model, max_model_len=100)
    with pytest.raises(ValueError, match="prompt"):
        running.add(Request(1, np.array(prompt, np.int32), SamplingParams(), 0, 0.0))
    assert not running.busy
