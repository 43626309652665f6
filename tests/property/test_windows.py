"""Layers with sliding windows keep only what their windows reach, and nobody can tell: every logit is bit for bit what
an engine gives whose layers keep all, however requests are crowded, cut, forked, preempted, aborted and cached."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.oracle.families import FAMILIES, write_family
from tests.oracle.tiny import VOCAB

from octavo import _native
from octavo.config import EngineConfig
from octavo.engine.groups import first_seen
from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.formats.resolve import resolve
from octavo.models.load import load_model
from octavo.runtime import build
from octavo.runtime.engine import Engine
from octavo.runtime.kv_groups import KvGrouping

BACKENDS = ("reference", *_native.supported_levels())
#: All layers with a window; 6 of 7 layers, 1 KV head; every other, with sinks; the upper half. The window is 12 tokens.
MODELS = ("mistral", "gemma3-gguf", "gpt-oss", "qwen2-windows")
WINDOW, MAX_LEN = 12, 96


@dataclass(frozen=True)
class Asked:
    """A request: `length` tokens of a base text, a few of its own; the step before which it is aborted (-1: none)."""

    base: int
    length: int
    own: int
    tokens: int
    n: int = 1
    aborted_at: int = -1
    arrives_at: int = 0


@dataclass(frozen=True)
class Surroundings:
    backend: str
    page_size: int = 4
    chunk: int = 16
    threads: int = 1
    spare_blocks: int = 4
    prefix_caching: bool = True
    max_num_seqs: int = 6


@functools.cache
def folder_of(model: str) -> Path:
    return write_family(FAMILIES[model], Path(tempfile.mkdtemp(prefix="octavo-windows-")) / model)


def make_engine(model: str, around: Surroundings, keeps_all: bool = False) -> Engine:
    """A pool for one sequence of the longest length and a few blocks; `keeps_all`: for everybody, and no windows."""
    on = {"backend": "reference"} if around.backend == "reference" else {"isa": around.backend}
    config = EngineConfig(
        model=str(folder_of(model)),
        threads=around.threads,
        page_size=around.page_size,
        max_model_len=MAX_LEN,
        max_num_seqs=around.max_num_seqs,
        max_num_batched_tokens=around.chunk,
        prefix_caching=around.prefix_caching,
        **on,  # type: ignore[arg-type]
    )
    spec = load_model(resolve(config.model)).spec
    with pytest.MonkeyPatch.context() as patch:
        kv = build.kv_groups_for(spec, config)
        if keeps_all:
            kv = KvGrouping((build.kv_spec(spec, config),), tuple((0, i) for i in range(len(spec.layers))))
            patch.setattr(build, "kv_groups_for", lambda spec, config: kv)
        pages = around.max_num_seqs * -(-MAX_LEN // around.page_size)
        if not keeps_all:
            demand = build._demand(load_model(resolve(config.model)), config, kv)
            pages = demand.groups.pages_for(MAX_LEN) + around.spare_blocks * len(kv.groups)
        return build.build_engine(replace(config, kv_cache_memory_bytes=pages * kv.page_bytes))


def prompt_of(index: int, asked: Asked) -> np.ndarray:
    base = np.random.RandomState(asked.base).randint(3, VOCAB, MAX_LEN)[: asked.length]
    return np.concatenate([base, np.random.RandomState(900 + index).randint(3, VOCAB, asked.own)]).astype(np.int32)


def serve(engine: Engine, crowd: tuple[Asked, ...], ends_early: bool = True) -> dict[tuple[int, int], list[bytes]]:
    """The logits of every token, by (request, choice)."""
    engine.executor.capture_logits = True
    seen: dict[tuple[int, int], list[bytes]] = {}
    for number in range(100_000):
        for index, asked in enumerate(crowd):
            if asked.arrives_at == number:
                params = SamplingParams(temperature=0.9, n=asked.n, max_tokens=asked.tokens, ignore_eos=True)
                engine.add(Request(index, prompt_of(index, asked), params, seed=index, arrival_s=0.0))
            if ends_early and asked.aborted_at == number:
                engine.abort(index)
        if not engine.busy:
            if number > max(asked.arrives_at for asked in crowd):
                break
            continue
        step = engine.scheduler.schedule(0.0)
        assert step is not None, "work is left but nothing is scheduled"
        result = engine.executor.submit(step).result()
        outputs = engine.scheduler.apply(step, result, 0.0)
        assert result.outputs is not None
        for row, key in enumerate(zip(outputs.request_ids.tolist(), outputs.choices.tolist(), strict=True)):
            seen.setdefault(key, []).append(result.outputs["logits"][row].tobytes())
        engine.scheduler.check()  # type: ignore[union-attr]
        assert_holds_windows_only(engine)
    return seen


def assert_holds_windows_only(engine: Engine) -> None:
    scheduler = engine.scheduler
    windows, size = scheduler.config.windows, scheduler.config.page_size
    for sequence in scheduler._slots.running():  # type: ignore[union-attr]
        computed = int(scheduler._slots.computed[sequence.slot])  # type: ignore[union-attr]
        for group, window in enumerate(windows):
            pages = sequence.table.pages[group :: len(windows)]
            first = first_seen(window, computed, size) if window else 0
            assert [page < 0 for page in pages] == [block < first for block in range(len(pages))]


def assert_same(model: str, around: Surroundings, crowd: tuple[Asked, ...]) -> Engine:
    expected = serve(make_engine(model, around, keeps_all=True), crowd, ends_early=False)
    engine = make_engine(model, around)
    assert max(engine.scheduler.config.windows) == WINDOW
    seen = serve(engine, crowd)
    for (index, choice), logits in expected.items():
        found = seen.get((index, choice), [])
        if crowd[index].aborted_at < 0:
            assert len(found) == crowd[index].tokens
        assert found == logits[: len(found)], f"request {index}, choice {choice}"
    stats = engine.stats()
    assert stats.pages_held == 0
    assert stats.running == stats.waiting == 0
    return engine


asks = st.builds(
    Asked,
    base=st.integers(0, 1),
    length=st.integers(0, 60),
    own=st.integers(1, 6),
    tokens=st.integers(1, 20),
    n=st.sampled_from([1, 1, 2, 3]),
    aborted_at=st.sampled_from([-1, -1, -1, 2, 5, 9]),
    arrives_at=st.integers(0, 12),
)
surroundings = st.builds(
    Surroundings,
    backend=st.sampled_from(BACKENDS),
    page_size=st.sampled_from([4, 8, 16]),
    chunk=st.sampled_from([5, 16, 64]),
    threads=st.sampled_from([1, 2]),
    spare_blocks=st.sampled_from([0, 3, 20]),
    prefix_caching=st.booleans(),
)
crowds = st.lists(asks, min_size=1, max_size=6).map(tuple)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODELS), surroundings, crowds)
def test_same_logits_as_with_everything_kept(model: str, around: Surroundings, crowd: tuple[Asked, ...]) -> None:
    assert_same(model, around, crowd)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODELS), surroundings, crowds)
def test_same_logits_in_many_surroundings(model: str, around: Surroundings, crowd: tuple[Asked, ...]) -> None:
    assert_same(model, around, crowd)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", MODELS)
def test_preempted_forked_and_cached(model: str, backend: str) -> None:
    """Long answers to short prompts in a pool for one, forks at the prompt's end, and prefixes that come again."""
    crowd = (
        Asked(0, 4, 2, 50),
        Asked(1, 5, 2, 50),
        Asked(0, 6, 1, 50),
        Asked(0, 40, 3, 20, n=3, arrives_at=4),
        Asked(1, 30, 2, 20, aborted_at=60),
        Asked(0, 40, 5, 9, arrives_at=9),
        Asked(0, 44, 1, 3, arrives_at=150),
    )
    engine = assert_same(model, Surroundings(backend, threads=2, spare_blocks=1), crowd)
    if 0 in engine.scheduler.config.windows:  # else nobody grows once the window is full
        assert engine.stats().preemptions > 0
    assert engine.stats().cached_tokens > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_long_sequence_holds_a_window(model: str) -> None:
    """Sequences that together are far longer than a pool could hold that kept all."""
    around = Surroundings(BACKENDS[-1], spare_blocks=6, prefix_caching=False)
    engine = make_engine(model, around)
    windows = engine.scheduler.config.windows
    engine.add(Request(0, prompt_of(0, Asked(0, 60, 1, 1)), SamplingParams(max_tokens=30, ignore_eos=True), 0, 0.0))
    while engine.scheduler.stats().generated_tokens < 29:
        engine.step()
    blocks, kept = -(-89 // 4), -(-WINDOW // 4) + 1
    held = engine.scheduler.stats().pages_held
    most = sum(kept if window else blocks for window in windows)
    assert most - len(windows) <= held <= most
